"""Quarters: the edges of a block in four, by whether a row and a column is in the own block or another rank's.

M = [ own_own    own_other   ]      (N + R') x (N + C')
    [ other_own  other_other ]
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.graph import Adjacency

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
        own, other = slice(num_own), slice(num_own, None)
        is_other_row, is_other_column = adjacency.row_of_edge >= num_own, adjacency.indices >= num_own
        masks = (
            ~is_other_row & ~is_other_column,
            ~is_other_row & is_other_column,
            is_other_row & ~is_other_column,
            is_other_row & is_other_column,
        )
        return Quarters(
            adjacency.part(masks[0], own, own),
            adjacency.part(masks[1], own, other),
            adjacency.part(masks[2], other, own),
            adjacency.part(masks[3], other, other),
            masks,
        )
