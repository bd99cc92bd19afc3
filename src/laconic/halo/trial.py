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

from laconic.attach import attach, detached_copy, is_over_nodes, why_no_kernel
from laconic.attach.forward import run_model
from laconic.attach.norms import NORMS
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.errors import UnsupportedModelError
from laconic.graph import Graph, Shard
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
        if _is_unknown_norm(module):
            raise UnsupportedModelError(
                f"{name} is a {type(module).__name__}, whose statistics over several ranks are not known. Use "
                f"BatchNorm, LayerNorm, GraphNorm or PairNorm, or the strategy single."
            )
        if isinstance(module, MessagePassing) and why_no_kernel(module) is not None:
            _try(name or "the model", module)


def check_whole(model: nn.Module, shard: Shard) -> None:
    """Raises UnsupportedModelError if the model as a whole gives something else when two ranks share it.

    Whatever mixes the rows of nodes outside of convolutions and norms shows here: pooling, attention over all nodes, a
    mean over rows. So does what the model draws itself, of which every rank would draw its own.
    """
    graph = _tiny_graph(shard.x.shape[1], shard.x.dtype, weighted=shard.edge_weight is not None)
    for training in (False, True):
        _check_mode(detached_copy(model).train(training), graph)


def _check_mode(model: nn.Module, graph: Graph) -> None:
    kind, when = type(model).__name__, "training" if model.training else "evaluation"
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            expected, again = (_run_whole(model, graph) for _ in range(2))
            shared = _run_shared(model, graph)
    except Exception as error:
        raise UnsupportedModelError(
            f"{kind} was tried on a tiny graph before it is shared by ranks, and raised {type(error).__name__} in "
            f"{when}: {error}. Mend that, or use the strategy single."
        ) from error
    if isinstance(expected, Tensor) and not torch.equal(expected, again):
        raise UnsupportedModelError(
            f"{kind} gives other outputs each time it is called in {when}: it draws random numbers itself, and every "
            f"rank would draw its own. Dropout of torch.nn is keyed, and the same on any number of ranks: use that, or "
            f"the strategy single."
        )
    scale = max(1.0, float(expected.abs().max())) if isinstance(expected, Tensor) else 1.0
    # Rounding of float32 is far below, rows of one rank alone far above.
    if not isinstance(expected, Tensor) or not float((shared - expected).abs().max()) <= 1e-3 * scale:
        raise UnsupportedModelError(
            f"{kind} gives other outputs in {when} when two ranks share a tiny graph: something in it mixes the "
            f"rows of nodes outside of convolutions and norms (a mean over rows, pooling, attention over all nodes). "
            f"Take it out, or use the strategy single."
        )


def _run_whole(model: nn.Module, graph: Graph) -> Tensor:
    shard, mine = Shard.whole(graph), copy.deepcopy(model)
    if model.training:
        # Its dropout is then the one that ranks will have.
        attach(mine, shard)
    return run_model(mine, shard)


def _is_unknown_norm(module: nn.Module) -> bool:
    if isinstance(module, pyg.BatchNorm):
        # With it, a rank of one node or none would leave its part of the sums out.
        return bool(module.allow_single_element)
    if is_over_nodes(module):
        return False
    # Subclasses of those we know may have a formula of their own.
    is_of_nodes = isinstance(module, (*_OF_NODES, *_UNKNOWN_NORMS, *NORMS))
    return is_of_nodes and not (isinstance(module, pyg.LayerNorm) and module.mode == "node")


def _try(name: str, conv: MessagePassing) -> None:
    width: Any = getattr(conv, "in_channels", None)
    if not isinstance(width, int) or width < 1:
        _refuse(name, conv, "it does not say how wide its input is (in_channels), so it cannot be tried")
    graph = _tiny_graph(width, torch.float64, weighted=False)
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


def _run_shared(model: nn.Module, graph: Graph) -> Tensor:
    parts = np.arange(_NUM_NODES) % 2

    def run(transport: Transport) -> Tensor:
        communicator = Communicator(transport, Ledger(transport.rank))
        chunk = chunk_in_memory(graph, parts, 2, transport.rank)
        placement = place([chunk], ChunkMap.even(np.bincount(parts).tolist(), 2), communicator)
        mine = copy.deepcopy(model)
        attach(mine, placement.shard, aggregator=HaloAggregator(placement))
        # Whether gradients are recorded is each thread's own affair.
        with torch.no_grad():
            return run_model(mine, placement.shard)

    # Long: on a busy machine the first run waits for kernels to be compiled.
    outputs = run_ranks(2, run, timeout=120)
    whole = outputs[0].new_empty(_NUM_NODES, *outputs[0].shape[1:])
    for part, rows in enumerate(outputs):
        whole[part::2] = rows
    return whole


def _tiny_graph(width: int, dtype: torch.dtype, *, weighted: bool) -> Graph:
    random = torch.Generator().manual_seed(0)
    edges = torch.randint(0, _NUM_NODES, (2, 40), generator=random)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    every = torch.arange(_NUM_NODES) % 3
    return Graph(
        x=torch.randn(_NUM_NODES, width, dtype=torch.float64, generator=random).to(dtype),
        y=torch.arange(_NUM_NODES) % 2,
        edge_index=edges,
        edge_weight=torch.rand(edges.shape[1], generator=random) if weighted else None,
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
