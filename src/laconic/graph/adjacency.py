"""Adjacency: who sends to whom, as compressed rows by destination, and its transpose.

Every operator on a graph (GCN, mean, sum, max, attention) shares one Adjacency: normalisation is a scale per row and
per column beside it (`operators/linear.py`), never a weight per edge: five operators still hold the edges once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.kernels.compress import as_indices, compress_edges

IntArray = NDArray[np.int32] | NDArray[np.int64]

# Shapes: R rows (destinations), C columns (sources), E edges


@final
@dataclass(frozen=True, eq=False)
class Adjacency:
    """Edges in compressed rows: row r receives from `indices[indptr[r]:indptr[r + 1]]`.

    Within a row edges are sorted by source when made of an edge list; a sampled batch keeps the whole graph's order.

    Args:
        indptr: where each row starts, int64, (R + 1,).
        indices: the source of each edge, int32 where it fits, (E,).
        num_columns: number of possible sources, C.
        edge_order: position of each edge in the edge list that this was made of, (E,); None when it is that order.
    """

    indptr: NDArray[np.int64]
    indices: IntArray
    num_columns: int
    edge_order: IntArray | None = None

    @staticmethod
    def from_edges(
        sources: NDArray[np.integer], destinations: NDArray[np.integer], num_rows: int, num_columns: int
    ) -> "Adjacency":
        """Returns the compressed rows of an edge list in any order; duplicates stay."""
        indptr, indices, order = compress_edges(sources, destinations, num_rows, num_columns)
        return Adjacency(indptr, indices, num_columns, order)

    def part(self, mask: NDArray[np.bool_], rows: slice, columns: slice) -> "Adjacency":
        """Returns some edges, all of them between `rows` and `columns`, numbered from the first of each, in this order.

        Args:
            mask: which edges, (E,).
        """
        (first_row, end_row, _), (first, end, _) = rows.indices(self.num_rows), columns.indices(self.num_columns)
        before = np.append(0, np.cumsum(mask))[self.indptr[first_row : end_row + 1]]
        return Adjacency(before, as_indices(self.indices[mask] - first, end - first), end - first)

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @cached_property
    def row_degrees(self) -> NDArray[np.int64]:
        """Edges that arrive at each row (in-degree), (R,)."""
        return np.diff(self.indptr)

    @cached_property
    def row_of_edge(self) -> IntArray:
        """The destination of each edge, (E,)."""
        rows = np.arange(self.num_rows, dtype=self.indices.dtype)
        return np.repeat(rows, self.row_degrees)  # type: ignore[return-value]

    @property
    def edge_index(self) -> Tensor:
        """The source and the destination of each edge, as PyG has them, in this order, int64, (2, E)."""
        return torch.from_numpy(np.stack([self.indices, self.row_of_edge]).astype(np.int64))

    @cached_property
    def transposed(self) -> "Adjacency":
        """The same edges by source; its `edge_order` points into this adjacency's edges."""
        indptr, indices, order = compress_edges(self.row_of_edge, self.indices, self.num_columns, self.num_rows)
        if np.array_equal(indptr, self.indptr) and np.array_equal(indices, self.indices):
            # An undirected graph is its own transpose: keep its edges once. Only the order of the edges differs.
            indptr, indices = self.indptr, self.indices
        return Adjacency(indptr, indices, self.num_rows, order)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every edge has its reverse."""
        return self.transposed.indices is self.indices
