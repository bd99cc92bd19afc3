"""Whether a model can be shared by ranks: known layers by their kind, others by trying them on a tiny graph.

A convolution that runs PyG's own code is right over several ranks if it looks at the graph through its messages alone;
one that counts degrees or nodes on the way is not. Nothing about a class says which, so it is run on twelve nodes,
whole and split in two, and the outputs are compared.
"""

import copy
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn import norm as pyg

from laconic.attach import attach, is_over_nodes, why_no_kernel
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.errors import UnsupportedModelError
from laconic.graph import Graph
from laconic.halo.aggregator import HaloAggregator
from laconic.halo.placement import ChunkMap, place
from laconic.store import chunk_in_memory

_NUM_NODES = 12
_INSTEAD = "Use a convolution such as GCNConv, SAGEConv, GINConv, GATConv or GATv2Conv, or the strategy single."

_OF_NODES = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_UNKNOWN_NORMS = (pyg.GraphSizeNorm, pyg.HeteroBatchNorm, pyg.HeteroLayerNorm)


def check_layers(model: nn.Module) -> None:
    """Raises UnsupportedModelError, naming the layer, unless every layer gives the same over several ranks."""
    for name, module in model.named_modules():
        if isinstance(module, _UNKNOWN_NORMS) or (isinstance(module, _OF_NODES) and not is_over_nodes(module)):
            raise UnsupportedModelError(
                f"{name} is a {type(module).__name__}, whose statistics over several ranks are not known. Use "
                f"BatchNorm, LayerNorm, GraphNorm or PairNorm, or the strategy single."
            )
        if isinstance(module, MessagePassing) and why_no_kernel(module) is not None:
            _try(name or "the model", module)


def _try(name: str, conv: MessagePassing) -> None:
    graph = _tiny_graph(name, conv)
    plain = copy.deepcopy(conv).double().eval()
    try:
        with torch.no_grad():
            expected = plain(graph.x, graph.edge_index)
            shared = _run_shared(plain, graph)
    except Exception as error:
        _refuse(name, conv, f"on a tiny graph it raised {type(error).__name__}: {error}")
    if not isinstance(expected, Tensor) or expected.shape != shared.shape:
        _refuse(name, conv, "its output is not one row per node")
    difference = float((shared - expected).abs().max())
    if not difference <= 1e-9 * max(1.0, float(expected.abs().max())):
        _refuse(name, conv, f"on a tiny graph its output differs by {difference:.2g} when two ranks share it")


def _run_shared(conv: MessagePassing, graph: Graph) -> Tensor:
    parts = np.arange(_NUM_NODES) % 2

    def run(transport: Transport) -> Tensor:
        communicator = Communicator(transport, Ledger(transport.rank))
        chunk = chunk_in_memory(graph, parts, 2, transport.rank)
        placement = place([chunk], ChunkMap.even(np.bincount(parts).tolist(), 2), communicator)
        mine = copy.deepcopy(conv)
        attach(mine, placement.shard, aggregator=HaloAggregator(placement))
        # Whether gradients are recorded is each thread's own affair.
        with torch.no_grad():
            out: Tensor = mine(placement.shard.x, placement.shard.edge_index)
        return out

    outputs = run_ranks(2, run, timeout=20)
    whole = outputs[0].new_empty(_NUM_NODES, *outputs[0].shape[1:])
    for part, rows in enumerate(outputs):
        whole[part::2] = rows
    return whole


def _tiny_graph(name: str, conv: Any) -> Graph:
    width = getattr(conv, "in_channels", None)
    if not isinstance(width, int) or width < 1:
        _refuse(name, conv, "it does not say how wide its input is (in_channels), so it cannot be tried")
    random = torch.Generator().manual_seed(0)
    edges = torch.randint(0, _NUM_NODES, (2, 40), generator=random)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    every = torch.arange(_NUM_NODES) % 3
    return Graph(
        x=torch.randn(_NUM_NODES, width, dtype=torch.float64, generator=random),
        y=torch.arange(_NUM_NODES) % 2,
        edge_index=edges,
        train_mask=every == 0,
        val_mask=every == 1,
        test_mask=every == 2,
        num_classes=2,
        name="a tiny graph",
    )


def _refuse(name: str, conv: object, reason: str) -> NoReturn:
    raise UnsupportedModelError(
        f"{name} is a {type(conv).__name__}, which several ranks cannot share: {reason}. {_INSTEAD}"
    )
