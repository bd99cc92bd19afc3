"""GraphChange: nodes and edges that come and go between two epochs, and what is wrong with such a list."""

import hashlib
from dataclasses import dataclass, field
from typing import NoReturn, final

import torch
from torch import Tensor

from laconic.errors import DataError
from laconic.graph.checks import widened
from laconic.graph.shard import Shard

# Shapes: A nodes added, R nodes removed, E edges, F features, L labels of a multi-label task


def _no_ids() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


def _no_edges() -> Tensor:
    return torch.empty(2, 0, dtype=torch.int64)


@final
@dataclass(frozen=True, eq=False)
class NewNodes:
    """Nodes that come into a graph.

    Args:
        ids: of the nodes, int64 (A,); no node of the graph may have one of them.
        x: features, (A, F).
        y: labels as in Graph; left out, they have none and can be in no mask.
        train_mask, val_mask, test_mask: bool (A,); left out, none is in it.
    """

    ids: Tensor
    x: Tensor
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", widened(self.ids))

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks by their names."""
        none = torch.zeros(len(self.ids), dtype=torch.bool)
        names = ("train_mask", "val_mask", "test_mask")
        return {name: none if getattr(self, name) is None else getattr(self, name) for name in names}

    def labels(self, like: Tensor) -> Tensor:
        """Returns y, or that there are none, in the form of the labels `like`."""
        if self.y is not None:
            return self.y.to(like.dtype)
        return like.new_full((len(self.ids), *like.shape[1:]), -1 if like.dim() == 1 else 0)


@final
@dataclass(frozen=True, eq=False)
class GraphChange:
    """What changes in a graph between two epochs, in the ids of its nodes; every rank gives the whole of it.

    It is done in this order: edges leave; nodes leave, with all edges that are left to them; nodes come; edges come.

    Args:
        add_edges: source and destination ids, int64 (2, E). Each entry is one edge one way: a link both ways is two.
        remove_edges: the same; of several equal edges, an entry removes the oldest.
        add_nodes: nodes that come.
        remove_nodes: ids of nodes that leave, int64 (R,). The ids of others stay what they are.
        add_weights: weight of each edge that comes, (E,), where the graph's edges have weights.
    """

    add_edges: Tensor = field(default_factory=_no_edges)
    remove_edges: Tensor = field(default_factory=_no_edges)
    add_nodes: NewNodes | None = None
    remove_nodes: Tensor = field(default_factory=_no_ids)
    add_weights: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("add_edges", "remove_edges", "remove_nodes"):
            object.__setattr__(self, name, widened(getattr(self, name)))

    @property
    def new_ids(self) -> Tensor:
        """Ids of the nodes that come, (A,)."""
        return _no_ids() if self.add_nodes is None else self.add_nodes.ids

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not any(map(len, (self.add_edges.T, self.remove_edges.T, self.new_ids, self.remove_nodes)))

    def facts(self) -> dict[str, str]:
        """Returns each part by name as a short text, for ranks to compare."""
        parts = {name: part for name, part in vars(self).items() if name != "add_nodes"}
        parts |= {f"add_nodes.{name}": part for name, part in vars(self.add_nodes or _NOBODY).items()}
        return {f"change.{name}": _describe(part) for name, part in parts.items()}


_NOBODY = NewNodes(_no_ids(), torch.empty(0, 0))


def check_change(change: GraphChange, shard: Shard, num_classes: int) -> None:
    """Raises DataError unless every part of a change fits the others, and the rows of a graph.

    What depends on which nodes and edges there are is not known here.

    Args:
        shard: rows of that graph.
        num_classes: classes or labels of that graph.
    """
    for name, edges in (("add_edges", change.add_edges), ("remove_edges", change.remove_edges)):
        if not isinstance(edges, Tensor) or edges.dim() != 2 or edges.shape[0] != 2 or edges.dtype != torch.int64:
            refuse_change(
                f"{name} should be int64 of shape (2, edges): ids of sources and destinations; got {_kind(edges)}"
            )
    _check_ids("remove_nodes", change.remove_nodes)
    _check_weights(change, shard)
    if change.add_nodes is not None:
        _check_nodes(change.add_nodes, shard, num_classes)


def _check_ids(name: str, ids: Tensor) -> None:
    if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.dtype != torch.int64:
        refuse_change(f"{name} should be int64 of shape (nodes,), one id for each; got {_kind(ids)}")
    values, counts = torch.unique(ids, return_counts=True)
    if len(values) != len(ids):
        most = int(counts.argmax())
        refuse_change(f"{name} holds node {int(values[most])} {int(counts[most])} times. Name each node once")


def _check_weights(change: GraphChange, shard: Shard) -> None:
    weights, num_edges = change.add_weights, change.add_edges.shape[1]
    if shard.edge_weight is None:
        if weights is not None:
            refuse_change("add_weights was given, but the edges of this graph have no weights. Leave it out")
        return
    if weights is None and not num_edges:
        return
    if not isinstance(weights, Tensor) or weights.shape != (num_edges,) or not weights.is_floating_point():
        refuse_change(
            f"add_weights should be floating point of length {num_edges}, one for each edge that comes, since the "
            f"edges of this graph have weights; got {_kind(weights)}"
        )
    if not bool(torch.isfinite(weights).all()):
        refuse_change("add_weights holds NaN or infinite values")


def _check_nodes(nodes: NewNodes, shard: Shard, num_classes: int) -> None:
    _check_ids("add_nodes.ids", nodes.ids)
    num_nodes, width = len(nodes.ids), shard.x.shape[1]
    if not isinstance(nodes.x, Tensor) or nodes.x.shape != (num_nodes, width) or not nodes.x.is_floating_point():
        refuse_change(
            f"add_nodes.x should be floating point of shape ({num_nodes}, {width}), as wide as the graph's features; "
            f"got {_kind(nodes.x)}"
        )
    if not bool(torch.isfinite(nodes.x).all()):
        node = int((~torch.isfinite(nodes.x)).any(1).nonzero()[0])
        refuse_change(f"add_nodes.x holds NaN or infinite values, the first for node {int(nodes.ids[node])}")
    used = torch.zeros(num_nodes, dtype=torch.int64)
    for name, mask in nodes.masks.items():
        if not isinstance(mask, Tensor) or mask.shape != (num_nodes,) or mask.dtype != torch.bool:
            refuse_change(
                f"add_nodes.{name} should be bool of shape ({num_nodes},), one for each node; got {_kind(mask)}"
            )
        used += mask
    if bool((used > 1).any()):
        refuse_change(
            f"node {int(nodes.ids[int((used > 1).nonzero()[0])])} is in two masks; it may be in one of them only"
        )
    _check_labels(nodes, shard.y, used > 0, num_classes)


def _check_labels(nodes: NewNodes, like: Tensor, used: Tensor, num_classes: int) -> None:
    y = nodes.y
    if y is None:
        if bool(used.any()):
            refuse_change(f"node {int(nodes.ids[int(used.nonzero()[0])])} is in a mask, but add_nodes.y was left out")
        return
    if not isinstance(y, Tensor) or y.shape != (len(used), *like.shape[1:]) or y.dtype != like.dtype:
        refuse_change(
            f"add_nodes.y should be {_name(like)} of shape {(len(used), *like.shape[1:])}, as the graph's labels are; "
            f"got {_kind(y)}"
        )
    if y.dim() == 2:
        is_wrong = used & ~((y == 0) | (y == 1)).all(1)
        expected = "hold 0 and 1 only"
    else:
        is_wrong = (y < -1) | (y >= num_classes) | (used & (y < 0))
        expected = f"lie between 0 and {num_classes - 1}, or be -1 in no mask"
    if bool(is_wrong.any()):
        node = int(is_wrong.nonzero()[0])
        refuse_change(f"add_nodes.y should {expected}, but node {int(nodes.ids[node])} has {y[node].tolist()}")


def _describe(part: Tensor | None) -> str:
    if not isinstance(part, Tensor):
        return str(part)
    if not part.numel():
        return _kind(part)
    digest = hashlib.sha256(part.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().data)
    return f"{_kind(part)}, {digest.hexdigest()[:16]}"


def _kind(part: object) -> str:
    return f"{_name(part)} of shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def refuse_change(message: str) -> NoReturn:
    """Raises: before anything has changed, on all ranks alike."""
    raise DataError(f"The graph stays as it is. Of the change, {message}.")
