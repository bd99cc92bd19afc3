"""Quarters: the edges of a block in four, by whether a row and a column is in the own block or another rank's.

M = [ own_own    own_other   ]      (N + R') x (N + C')
    [ other_own  other_other ]
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.graph import Adjacency
from laconic.kernels.compress import compress_edges

# Shapes: N nodes of the own block, R' rows and C' columns of others


@final
@dataclass(frozen=True, eq=False)
class Quarters:
    """The edges of a block in four, by whether their row and their column is in the own block.

    Args:
        own_own, own_other, other_own, other_other: rows first: `own_other` has own rows and columns of others.
        masks: for each of them, which edges of the whole block it has.
    """

    own_own: Adjacency
    own_other: Adjacency
    other_own: Adjacency
    other_other: Adjacency
    masks: tuple[NDArray[np.bool_], ...]

    @staticmethod
    def of(adjacency: Adjacency, num_own: int) -> "Quarters":
        rows, columns = adjacency.row_of_edge, adjacency.indices
        num_rows, num_columns = adjacency.num_rows - num_own, adjacency.num_columns - num_own
        is_other_row, is_other_column = rows >= num_own, columns >= num_own

        def compress(mask: NDArray[np.bool_], first: tuple[int, int], shape: tuple[int, int]) -> Adjacency:
            # Sorted already: compressing keeps the order, so values per edge can be split by the same mask.
            indptr, indices, _ = compress_edges(columns[mask] - first[1], rows[mask] - first[0], *shape)
            return Adjacency(indptr, indices, shape[1])

        masks = (
            ~is_other_row & ~is_other_column,
            ~is_other_row & is_other_column,
            is_other_row & ~is_other_column,
            is_other_row & is_other_column,
        )
        return Quarters(
            compress(masks[0], (0, 0), (num_own, num_own)),
            compress(masks[1], (0, num_own), (num_own, num_columns)),
            compress(masks[2], (num_own, 0), (num_rows, num_own)),
            compress(masks[3], (num_own, num_own), (num_rows, num_columns)),
            masks,
        )
