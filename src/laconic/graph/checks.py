"""The checks that a Graph passes on construction. Each error names the field, what it held and what it should hold."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from laconic.errors import DataError
from laconic.graph.id_names import MOST_BYTES

if TYPE_CHECKING:
    from laconic.graph.graph import Graph

# A graph of fewer nodes may be cut out of one with more classes than it has nodes, but hardly with more than this.
_MOST_CLASSES = 10_000

# Integers that int64 holds whatever their value.
_NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)


def widened(numbers: Tensor) -> Tensor:
    """Returns integers of a narrower type as int64; all else as it is."""
    return numbers.long() if isinstance(numbers, Tensor) and numbers.dtype in _NARROW else numbers


def check_graph(graph: "Graph") -> None:
    """Raises DataError unless every field of `graph` is sound and fits the others."""
    _check_shape_of_features(graph)
    _check_node_ids(graph)
    _check_id_names(graph)
    _check_features(graph)
    _check_edges(graph)
    _check_masks(graph)
    _check_labels(graph)
    _check_class_names(graph)


def _check_shape_of_features(graph: "Graph") -> None:
    x = graph.x
    if x.dim() != 2 or not x.is_floating_point():
        remedy = "Give each node a row of features" if x.dim() != 2 else "Convert it, for example with x.float()"
        raise DataError(
            f"{graph.name}: x should be floating point of shape (nodes, features), got {_kind(x)}. {remedy}."
        )
    if x.shape[0] == 0:
        raise DataError(f"{graph.name}: x has no rows; a graph needs at least one node.")
    if x.shape[1] == 0:
        raise DataError(
            f"{graph.name}: x has no features. Give each node at least one, for example its degree or a constant 1."
        )


def _check_node_ids(graph: "Graph") -> None:
    ids, num_nodes = graph.node_ids, graph.x.shape[0]
    if ids.shape != (num_nodes,) or ids.dtype != torch.int64:
        raise DataError(
            f"{graph.name}: node_ids should be int64 of length {num_nodes}, one per row of x, got {_kind(ids)}."
        )
    # Rising ids, which nearly all are, need no sorting to be known as distinct.
    if bool((ids[1:] > ids[:-1]).all()):
        return
    values, counts = torch.unique(ids, return_counts=True)
    if len(values) != num_nodes:
        most = int(counts.argmax())
        raise DataError(
            f"{graph.name}: node_ids holds {int(values[most])} {int(counts[most])} times. Give each node an id of its "
            f"own, or leave node_ids out."
        )


def _check_id_names(graph: "Graph") -> None:
    names, num_nodes = graph.id_names, graph.x.shape[0]
    if names is None:
        return
    if not isinstance(names, np.ndarray) or names.shape != (num_nodes,) or names.dtype.kind != "U":
        got = f"{names.dtype} of shape {names.shape}" if isinstance(names, np.ndarray) else type(names).__name__
        raise DataError(f"{graph.name}: id_names should be an array of {num_nodes} texts, one per node, got {got}.")
    listed = names.tolist()
    if len(set(listed)) != num_nodes:
        name, count = Counter(listed).most_common(1)[0]
        raise DataError(f"{graph.name}: id_names holds {name!r} {count} times. Give each node an id of its own.")
    for name in listed:
        # An array of text is as wide as its longest: one id of a million letters would take them for every node.
        if not name or "\0" in name or len(name.encode()) > MOST_BYTES:
            wrong = repr(name[:40]) + ("..." if len(name) > 40 else "")
            raise DataError(
                f"{graph.name}: id_names holds {wrong}; an id is a text of 1 to {MOST_BYTES} bytes, without a zero."
            )


def _check_class_names(graph: "Graph") -> None:
    names = graph.class_names
    if not names:
        return
    if len(set(names)) != len(names) or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"{graph.name}: class_names should be different texts, none empty, got {list(names)[:8]}.")
    if len(names) != graph.num_classes:
        raise DataError(f"{graph.name}: there are {len(names)} class_names, but num_classes is {graph.num_classes}.")


def _check_features(graph: "Graph") -> None:
    x = graph.x
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        node, feature = (int(i) for i in (~finite).nonzero()[0])
        bad = x.numel() - int(finite.sum())
        raise DataError(
            f"{graph.name}: x holds {bad} value(s) that are NaN or infinite, the first at {_say_node(graph, node)}, "
            f"feature {feature}. Replace them before training, for example with torch.nan_to_num."
        )


def _check_edges(graph: "Graph") -> None:
    edges, num_nodes = graph.edge_index, graph.x.shape[0]
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.dtype != torch.int64:
        raise DataError(
            f"{graph.name}: edge_index should be integers of shape (2, edges), got {_kind(edges)}. "
            f"Row 0 holds sources, row 1 destinations."
        )
    if edges.shape[1] and (int(edges.min()) < 0 or int(edges.max()) >= num_nodes):
        wrong = ((edges < 0) | (edges >= num_nodes)).any(dim=0)
        first = int(wrong.nonzero()[0])
        source, destination = edges[:, first].tolist()
        raise DataError(
            f"{graph.name}: edge_index should hold node numbers from 0 to {num_nodes - 1}, but {int(wrong.sum())} "
            f"edge(s) do not, the first being edge {first}: {source} -> {destination}. "
            f"Renumber the nodes, or give x a row for each of them."
        )
    weight = graph.edge_weight
    if weight is None:
        return
    if weight.shape != (edges.shape[1],) or not weight.is_floating_point():
        raise DataError(
            f"{graph.name}: edge_weight should be floating point of length {edges.shape[1]}, one per edge, "
            f"got {_kind(weight)}."
        )
    if not bool(torch.isfinite(weight).all()):
        raise DataError(f"{graph.name}: edge_weight holds NaN or infinite values. Replace or drop those edges.")


def _check_masks(graph: "Graph") -> None:
    num_nodes = graph.x.shape[0]
    masks = graph.mask_of
    are_all_empty = not any(bool(mask.any()) for mask in masks.values())
    for split, mask in masks.items():
        if mask.shape != (num_nodes,) or mask.dtype != torch.bool:
            raise DataError(
                f"{graph.name}: {split}_mask should be bool of length {num_nodes}, one per node, got {_kind(mask)}."
            )
        if not bool(mask.any()) and not are_all_empty:
            what = "training" if split == "train" else {"val": "validation", "test": "test"}[split]
            raise DataError(
                f"{graph.name}: {split}_mask is empty: there is no {what} node. "
                f"Choose some nodes for each of train, val and test."
            )
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        both = masks[one] & masks[other]
        if bool(both.any()):
            raise DataError(
                f"{graph.name}: {one}_mask and {other}_mask overlap in {int(both.sum())} node(s), the first being "
                f"{_say_node(graph, int(both.nonzero()[0]))}. A node may be in one of them only."
            )


def _check_labels(graph: "Graph") -> None:
    y, num_nodes = graph.y, graph.x.shape[0]
    if y.dim() not in (1, 2) or y.shape[0] != num_nodes:
        raise DataError(
            f"{graph.name}: y should have {num_nodes} rows, one per node: int64 class numbers (nodes,) or 0/1 floats "
            f"(nodes, labels); got {_kind(y)}."
        )
    used = graph.train_mask | graph.val_mask | graph.test_mask
    if y.dim() == 2:
        labels = y[used]
        if not y.is_floating_point() or not bool(((labels == 0) | (labels == 1)).all()):
            raise DataError(
                f"{graph.name}: multi-label y should be floating point and hold 0 and 1 only, got {_kind(y)}"
                f"{'' if not y.is_floating_point() else ' with other values'}."
            )
        if graph.num_classes not in (0, y.shape[1]):
            raise DataError(
                f"{graph.name}: num_classes is {graph.num_classes}, but y has {y.shape[1]} labels per node. "
                f"Leave num_classes out, or make them agree."
            )
        return
    _check_class_numbers(graph, used)


def _check_class_numbers(graph: "Graph", used: Tensor) -> None:
    y = graph.y
    if y.dtype != torch.int64:
        raise DataError(f"{graph.name}: y should be int64 class numbers, got {_kind(y)}. Convert it with y.long().")
    highest = graph.num_classes - 1 if graph.num_classes else None
    wrong = (y < 0) & used | (y < -1)
    if highest is not None:
        wrong |= y > highest
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        bound = f"from 0 to {highest}" if highest is not None else "of 0 or more"
        raise DataError(
            f"{graph.name}: y should hold class numbers {bound}, but {_say_node(graph, node)} has "
            f"{int(y[node])} ({int(wrong.sum())} such node(s)). Only nodes outside all masks may have -1, for no label."
        )
    if highest is None and int(y.max()) >= max(len(y), _MOST_CLASSES):
        # Codes of some kind: a model would get a weight for every number up to the highest.
        node = int(y.argmax())
        raise DataError(
            f"{graph.name}: y should hold class numbers 0, 1, 2, ..., but {_say_node(graph, node)} is of class "
            f"{int(y[node])}. Number the {len(torch.unique(y[y >= 0]))} classes from 0, or say how many there are "
            f"with num_classes."
        )


def _say_node(graph: "Graph", node: int) -> str:
    if graph.id_names is not None:
        return f"node {node} (id {graph.id_names[node]})"
    given = int(graph.node_ids[node])
    return f"node {node}" if given == node else f"node {node} (id {given})"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
