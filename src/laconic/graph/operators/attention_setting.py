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
    """The arguments that `gat_attention` and `gatv2_attention` share."""

    adjacency: Adjacency
    negative_slope: float
    self_loops: bool
    dropout: float
    key: np.uint64
    node_ids: Tensor

    @staticmethod
    def of(
        adjacency: Adjacency,
        negative_slope: float,
        self_loops: bool,
        dropout: float,
        key: int | np.uint64,
        node_ids: Tensor | None,
    ) -> "AttentionSetting":
        """Returns the setting, with node numbers filled in."""
        if node_ids is None:
            # Nobody looks at the numbers where nothing is dropped.
            node_ids = torch.arange(max(adjacency.num_rows, adjacency.num_columns) if dropout > 0 else 0)
        return AttentionSetting(adjacency, negative_slope, self_loops, dropout, np.uint64(key), node_ids.cpu())

    def as_keywords(self) -> dict[str, Any]:
        """The setting as keyword arguments, but for the adjacency."""
        return {name: value for name, value in vars(self).items() if name != "adjacency"}

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
        return EdgeDropout(self.node_ids.numpy(), self.key, threshold, np.array([0.0, scale], dtype))

    def use_threads(self, width: int) -> None:
        """Makes the kernels use torch's number of threads, or one where there is little to do."""
        use_torch_threads(self.num_terms * width)
