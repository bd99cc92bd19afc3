"""GridOperator: a fixed sparse matrix cut into blocks over a grid; products run while rows and sums travel.

    forward     gather the columns' rows along i, multiply, scatter the sums along k
    backward    gather the rows' gradients along k, multiply by the transposed block, scatter the sums along i

Input and output have the same layout, so layers follow each other without moving anything between them, and no rank
needs edges of another for the transpose. A grid with pi = P is halo exchange.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from torch import Tensor

from laconic.graph.operators.dropout import drop_entries
from laconic.graph.operators.linear import LinearOperator
from laconic.grids.axis import Axis
from laconic.grids.product import GridMatrix

# Shapes: N rows of the own block, F features


@final
@dataclass(frozen=True, eq=False)
class GridOperator(GridMatrix):
    """One rank's block of a matrix, in quarters by whether rows and columns are in the own block; rows named first.

    Args:
        columns: the axis along which the rows of x for this block's columns are gathered.
        rows: the axis along which sums for this block's rows are scattered.
    """

    own_own: LinearOperator
    own_other: LinearOperator
    other_own: LinearOperator
    other_other: LinearOperator
    columns: Axis
    rows: Axis

    @property
    def transposed(self) -> "GridOperator":
        return GridOperator(
            self.own_own.transposed,
            self.other_own.transposed,
            self.own_other.transposed,
            self.other_other.transposed,
            columns=self.rows,
            rows=self.columns,
        )

    def multiply(self, x: Tensor, widest: int) -> Tensor:
        gathering = self.columns.start_expand(x, widest)
        partial = self.other_own.multiply(x)
        out = self.own_own.multiply(x)
        others = gathering.wait()
        # Sums for others leave as soon as they are whole; the rest of the own ones is made meanwhile.
        self.other_other.multiply(others, add_to=partial)
        scattering = self.rows.start_fold(partial, widest)
        self.own_other.multiply(others, add_to=out)
        self.rows.add_folded(scattering.wait(), out)
        return out

    def dropped(self, probability: float, key: np.uint64, row_ids: Tensor, column_ids: Tensor) -> "GridOperator":
        num_own = self.own_own.adjacency.num_rows

        def drop(quarter: LinearOperator, row_ids: Tensor, column_ids: Tensor) -> LinearOperator:
            return drop_entries(quarter, probability, key, column_ids, row_ids=row_ids)

        return replace(
            self,
            own_own=drop(self.own_own, row_ids[:num_own], column_ids[:num_own]),
            own_other=drop(self.own_other, row_ids[:num_own], column_ids[num_own:]),
            other_own=drop(self.other_own, row_ids[num_own:], column_ids[:num_own]),
            other_other=drop(self.other_other, row_ids[num_own:], column_ids[num_own:]),
        )
