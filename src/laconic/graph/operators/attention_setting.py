"""What an attention kernel is told beside its tensors: edges, self-loops, slope and dropout, in the kernels' form."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.threads import use_torch_threads
from laconic.kernels.attention import EdgeDropout, Neighbours
from laconic.kernels.balance import balanced_rows
from laconic.kernels.keyed import drop_threshold


@final
@dataclass(frozen=True, eq=False)
class AttentionSetting:
    """All that attention takes beside its tensors.

    Args:
        adjacency: the edges.
        negative_slope: of leaky_relu.
        self_loops: give each row one self-loop, in place of those among the edges. Where rows and sources differ in
            number, row r stands for the same node as source r.
        dropout: share of the weights to drop, after the softmax; a weight is kept or not by `key`, the end points'
            `node_ids` and the head. Duplicate edges are kept or dropped together.
        node_ids: number of each source in the whole graph, (S,), of which the first R are the rows'; 0, 1, ... if None.
    """

    adjacency: Adjacency
    negative_slope: float
    self_loops: bool
    dropout: float = 0.0
    key: int | np.uint64 = 0
    node_ids: Tensor | None = None

    @property
    def numbers(self) -> Tensor:
        """The nodes' numbers that dropout goes by; none where nothing is dropped."""
        if self.node_ids is not None:
            return self.node_ids.cpu()
        return torch.arange(max(self.adjacency.num_rows, self.adjacency.num_columns) if self.dropout > 0 else 0)

    @property
    def num_loops(self) -> int:
        return min(self.adjacency.num_rows, self.adjacency.num_columns) if self.self_loops else 0

    @property
    def num_terms(self) -> int:
        """Places in a tensor per edge: the edges, then the self-loops."""
        return self.adjacency.num_edges + self.num_loops

    @property
    def by_row(self) -> Neighbours:
        rows = self.adjacency
        nothing = rows.indices[:0]
        return Neighbours(rows.indptr, rows.indices, nothing, balanced_rows(rows.indptr), self.num_loops)

    @property
    def by_source(self) -> Neighbours:
        across = self.adjacency.transposed
        order = across.edge_order
        assert order is not None
        return Neighbours(across.indptr, across.indices, order, balanced_rows(across.indptr), self.num_loops)

    def slope(self, dtype: np.dtype[Any]) -> Any:
        return dtype.type(self.negative_slope)

    def edge_dropout(self, dtype: np.dtype[Any]) -> EdgeDropout:
        scale = 0.0 if self.dropout >= 1 else 1.0 / (1.0 - self.dropout)
        threshold = drop_threshold(self.dropout)
        return EdgeDropout(self.numbers.numpy(), np.uint64(self.key), threshold, np.array([0.0, scale], dtype))

    def use_threads(self, width: int) -> None:
        """Makes the kernels use torch's number of threads, or one where there is little to do."""
        use_torch_threads(self.num_terms * width)
