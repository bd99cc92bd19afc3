"""Graph: one immutable, validated graph with features, labels and masks. Every stage takes one or gives one."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.checks import check_graph, widened

# Shapes: N nodes, E edges, F features, L labels of a multi-label task


@final
@dataclass(frozen=True, eq=False)
class Graph:
    """A graph for node classification; every field is checked on construction, so a Graph that exists is sound.

    Args:
        edge_index: source and destination of each edge, (2, E); kept as int64, narrower integers are converted.
            Duplicates and self-loops are allowed.
        x: node features, floating point and finite, (N, F).
        y: labels: int64 class numbers (N,), -1 for a node in no mask; or 0/1 floats (N, L) for a multi-label task.
        train_mask, val_mask, test_mask: bool (N,); disjoint, none empty; or all of them, for a graph to predict for.
        edge_weight: optional finite weight of each edge, (E,).
        num_classes: number of classes or labels; counted from `y` when not given.
        name: what to call it in tables.
        node_ids: the id of each node in the data it came from, int64 (N,), all different; 0..N-1 when not given.
        id_names: where ids are text, the text of each node, all different, (N,); `node_ids` are numbers then.
        class_names: where labels are text, the text of each class or label, by its number.
        split_origin: how the masks came about, for tables: "given", or "random, seed 0"; empty if nobody knows.
    """

    edge_index: Tensor
    x: Tensor
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    edge_weight: Tensor | None = None
    num_classes: int = 0
    name: str = "graph"
    node_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    id_names: NDArray[np.str_] | None = None
    class_names: tuple[str, ...] = ()
    split_origin: str = "given"

    def __post_init__(self) -> None:
        for name in ("edge_index", "node_ids"):
            object.__setattr__(self, name, widened(getattr(self, name)))
        if self.node_ids.numel() == 0 and self.x.dim() > 0:
            object.__setattr__(self, "node_ids", torch.arange(self.x.shape[0]))
        if self.num_classes == 0:
            object.__setattr__(self, "num_classes", len(self.class_names))
        check_graph(self)
        if self.num_classes == 0:
            counted = self.y.shape[1] if self.is_multilabel else int(self.y.max()) + 1
            object.__setattr__(self, "num_classes", counted)

    @staticmethod
    def from_csr(indptr: np.ndarray, indices: np.ndarray, **fields: object) -> "Graph":
        """Returns a Graph from compressed rows by destination; the other fields as in the constructor."""
        degrees = np.diff(indptr)
        destinations = torch.from_numpy(np.repeat(np.arange(len(degrees), dtype=np.int64), degrees))
        sources = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return Graph(edge_index=torch.stack([sources, destinations]), **fields)  # type: ignore[arg-type]

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def is_multilabel(self) -> bool:
        return self.y.dim() == 2

    @cached_property
    def adjacency(self) -> Adjacency:
        """The edges in compressed rows by destination."""
        sources, destinations = self.edge_index.numpy()
        return Adjacency.from_edges(sources, destinations, self.num_nodes, self.num_nodes)

    @property
    def mask_of(self) -> dict[str, Tensor]:
        """The masks by split name: train, val, test."""
        return {"train": self.train_mask, "val": self.val_mask, "test": self.test_mask}

    @property
    def num_of_split(self) -> dict[str, int]:
        """Nodes in each split: train, val, test."""
        return {split: int(mask.sum()) for split, mask in self.mask_of.items()}
