"""The graph of a run: loaded from wherever it is, its features ready for a model."""

import dataclasses
import logging
import os
import zlib
from pathlib import Path
from typing import Any, Literal

import torch

from laconic.datasets import GENERATORS, load
from laconic.graph import Graph
from laconic.store import looks_like_store, open_store

logger = logging.getLogger(__name__)

# Shapes: N nodes, F features


def load_graph(source: str) -> Graph:
    """Returns the graph that `source` names: a store folder, or anything that `laconic.datasets.load` knows.

    The nodes of a store that was reordered stay in that order, which is faster to train on; `node_ids` has their ids.
    """
    if looks_like_store(source):
        store = open_store(Path(source))
        return store.to_graph(numbering="source" if store.manifest.reorder == "none" else "store")
    return load(source)


def absolute_source(source: str) -> str:
    """Returns `source` such that it means the same from any folder: a path that exists is made absolute."""
    name, bracket, options = source.partition("(")
    # Not Path.exists, which raises for what is too long to be a path.
    if os.path.exists(source):
        name, bracket, options = source, "", ""
    path = os.path.expanduser(name.strip())
    if name.strip() in GENERATORS or not os.path.exists(path):
        return source
    return f"{Path(path).resolve()}{bracket}{options}"


def prepare_features(graph: Graph, mode: str) -> tuple[Graph, Literal["row", "none"]]:
    """Returns the graph with float features, normalised as asked, and what was done; see `data.normalise_features`."""
    x_NF = graph.x if graph.x.dtype in (torch.float32, torch.float64) else graph.x.float()
    is_wanted = mode == "row" or (mode == "auto" and has_few_labels(graph) and is_bag_of_words(x_NF))
    if is_wanted:
        if mode == "auto":
            logger.info(
                "Bags of words and few training nodes: each row of features is divided by its sum. "
                "data.normalise_features=none leaves them as they are."
            )
        # A node without a word keeps its row of zeros.
        sums = x_NF.abs().sum(dim=1, keepdim=True)
        x_NF = x_NF / torch.where(sums == 0, torch.ones_like(sums), sums)
    graph = graph if x_NF is graph.x else dataclasses.replace(graph, x=x_NF)
    return graph, "row" if is_wanted else "none"


def has_few_labels(graph: Graph) -> bool:
    """Whether there are so few training nodes that rows had better be normalised: four features or more for each.

    Small inputs learn slowly and are held back by weight decay. Measured (docs/decisions/0006-training-defaults.md):
    that helps where a model would otherwise learn 100 nodes by heart, and costs up to 14 points where there are many.
    """
    return graph.num_features >= 4 * int(graph.train_mask.sum())


def is_bag_of_words(x_NF: torch.Tensor) -> bool:
    """Whether features look like word counts or word weights: none negative, at least half of them 0."""
    return float(x_NF.min()) >= 0 and 2 * int(torch.count_nonzero(x_NF)) <= x_NF.numel()


def describe_graph(graph: Graph) -> dict[str, Any]:
    """Returns what a continued run compares, to notice that the data is not the same any more."""
    checksum = 0
    for tensor in (graph.edge_index, graph.y, graph.train_mask, graph.val_mask, graph.test_mask):
        checksum = zlib.crc32(tensor.contiguous().numpy().data, checksum)
    return {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "num_classes": graph.num_classes,
        "is_multilabel": graph.is_multilabel,
        "checksum": checksum,
    }
