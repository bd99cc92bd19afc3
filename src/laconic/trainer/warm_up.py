"""Compiles the kernels before they are needed, by using them on a graph of a few nodes.

What is compiled is so what a run uses, in float32. Numba keeps it on disk, beside the source or in the user's cache
folder: the first time takes a minute or two, every other time a second or two, for loading.
"""

from collections.abc import Callable

import numpy as np
import torch

from laconic.attach import attach
from laconic.attach.forward import run_model
from laconic.datasets import load
from laconic.graph import Shard
from laconic.graph.sampling import NeighbourSampler
from laconic.models import MODELS, ModelSpec, build_model, parse_model
from laconic.session.objective import loss_part, usual_loss

_TINY = "sbm(nodes=24, classes=2, features=4, degree=4.0)"


def warm_up_model(spec: ModelSpec) -> None:
    """Compiles, or loads from disk, every kernel that training a model of this kind uses."""
    graph = load(_TINY)
    model = build_model(spec, num_features=graph.num_features, num_classes=graph.num_classes, seed=0)
    attachment = attach(model, Shard.whole(graph))
    batch = NeighbourSampler(graph, (2, 2), seed=0).sample(np.arange(4), epoch=1, step=0)
    _backward(model, attachment.shard)
    with attachment.using(batch):
        _backward(model, batch)


def warm_up_all(report: Callable[[str], None] | None = None) -> None:
    """Compiles every kernel, for all sample models, partitioners and node orders.

    Args:
        report: told what is next.
    """
    # Here, because every run imports this module for its model.
    import tempfile
    from pathlib import Path

    from laconic.comm.codecs import MessageKey, parse_codec
    from laconic.graph.operators.dropout import drop_edges
    from laconic.graph.stats import GraphStats
    from laconic.kernels.compile import load_compiler
    from laconic.kernels.keyed import fold_key
    from laconic.partitioners import PARTITIONERS
    from laconic.sharded.cover import cover_of_pair
    from laconic.store import REORDERS, check_reorder, write_store

    tell = report or (lambda line: None)
    load_compiler()
    for spec in (*MODELS, "sage(aggregate='max')"):
        tell(f"model {spec}")
        warm_up_model(parse_model(spec))
    graph = load(_TINY)
    tell("edge dropout")
    drop_edges(graph.x, 0.5, fold_key(0), graph.node_ids, graph.node_ids)
    parts = np.zeros(graph.num_nodes, np.int32)
    for name, kind in PARTITIONERS.items():
        if name != "given":  # it reads a file
            tell(f"partitioner {name}")
            parts = kind().assign(graph, 2, np.random.default_rng(0))
    tell("cover")
    cover_of_pair(graph.adjacency.indptr, graph.adjacency.indices, graph.num_nodes)
    tell("codecs")
    key = MessageKey(0, 1, 0, 0, 0, "forward", 0, 1, graph.node_ids.numpy())
    for codec in map(parse_codec, ("quantize(bits=4)", "subset", "boundary_sample")):
        packet = codec.encode(graph.x, key, 2.0)
        codec.decode(packet, key, 2.0, width=graph.num_features, dtype=graph.x.dtype)
    tell("statistics and store")
    GraphStats.of(graph)
    with tempfile.TemporaryDirectory() as folder:
        for reorder in REORDERS:
            write_store(graph, parts, Path(folder) / reorder, reorder=check_reorder(reorder))


def _backward(model: torch.nn.Module, shard: Shard) -> None:
    y = shard.y[shard.train_mask]
    torch.autograd.backward(loss_part(usual_loss(y), run_model(model, shard)[shard.train_mask], y).total)
