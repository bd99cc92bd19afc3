"""ShardedOperator: a fixed sparse matrix M whose edges lie on several ranks; products run while rows and sums travel.

    forward     M x   = own_own x + own_other fetch(x) + fold(other_own x + other_other fetch(x))
    backward    M^T g = the same with the transposed quarters, where `fold` fetches and `fetch` folds

`fetch` brings the rows of the columns that others own, `fold` sends partial sums to the owners of their rows. Input
and output have the same layout, so layers follow each other without moving anything between them, and no rank needs
edges of another for the transpose. Where all edges lie with their destination, nothing is folded: halo exchange.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
from torch import Tensor

from laconic.comm.pending import Pending
from laconic.graph.operators.dropout import drop_entries
from laconic.graph.operators.linear import LinearOperator
from laconic.graph.operators.slices import columns_of, rows_of
from laconic.sharded.axis import Axis, AxisExchange, Stage
from laconic.sharded.product import ShardedMatrix

# Shapes: N rows of the own block, F features


@final
@dataclass(frozen=True, eq=False)
class ShardedOperator(ShardedMatrix):
    """One rank's block of a matrix, in quarters by whether rows and columns are in the own block; rows named first.

    Args:
        columns: the axis along which the rows of x for this block's columns are gathered.
        rows: the axis along which sums for this block's rows are scattered.
        is_staged: rows travel block by block, the product of one running while the next is under way.
    """

    own_own: LinearOperator
    own_other: LinearOperator
    other_own: LinearOperator
    other_other: LinearOperator
    columns: Axis
    rows: Axis
    is_staged: bool = False

    @cached_property
    def transposed(self) -> "ShardedOperator":
        return ShardedOperator(
            self.own_own.transposed,
            self.other_own.transposed,
            self.own_other.transposed,
            self.other_other.transposed,
            columns=self.rows,
            rows=self.columns,
            is_staged=self.is_staged,
        )

    def multiply(self, x: Tensor, widest: int) -> Tensor:
        if self.is_staged and isinstance(self.columns, AxisExchange) and isinstance(self.rows, AxisExchange):
            return self._multiply_staged(x, widest, self.columns, self.rows)
        return self.multiply_while(x, widest)

    def multiply_while(
        self,
        x: Tensor,
        widest: int,
        meanwhile: Callable[[Tensor], None] | None = None,
        fetched: Tensor | None = None,
    ) -> Tensor:
        """Returns M x for the own rows x, (N, F), as `multiply` does.

        Args:
            meanwhile: called while rows and sums travel, with the rows of M x as far as they are known here, (N, F).
            fetched: the rows that `columns` would fetch, where they are here already, on all ranks.
        """
        fetching = self.columns.start_expand(x, widest) if fetched is None else Pending.done(fetched)
        partial = self.other_own.multiply(x)
        # Sums for others leave as soon as they are whole; the own ones are made meanwhile.
        needs_others = self.other_other.adjacency.num_edges > 0
        folding = None if needs_others else self.rows.start_fold(partial, widest)
        out = self.own_own.multiply(x)
        if meanwhile is not None:
            meanwhile(out)
        others = fetching.wait()
        if folding is None:
            self.other_other.multiply(others, add_to=partial)
            folding = self.rows.start_fold(partial, widest)
        self.own_other.multiply(others, add_to=out)
        self.rows.add_folded(folding.wait(), out)
        return out

    def _multiply_staged(self, x: Tensor, widest: int, columns: AxisExchange, rows: AxisExchange) -> Tensor:
        """Returns the same, with two blocks of other ranks in memory at most.

        Beside them are sums for other ranks, if there are other columns too: a sum is whole when all of them have come.
        """
        out = self.own_own.multiply(x)
        if not columns.stages:
            self._fold_staged(lambda stage: rows_of(self.other_own, stage.rows).multiply(x), out, widest, rows)
            return out
        partial = self.other_own.multiply(x)
        for stage, others in columns.expanded(x, widest):
            to_own, to_others = self._tiles[stage.of]
            to_own.multiply(others, add_to=out)
            to_others.multiply(others, add_to=partial)
            del others
        self._fold_staged(lambda stage: partial[stage.rows], out, widest, rows)
        return out

    def _fold_staged(self, sums_of: Callable[[Stage], Tensor], out: Tensor, widest: int, rows: AxisExchange) -> None:
        before: tuple[Stage, Pending[Tensor]] | None = None
        for stage in rows.stages:
            sums = sums_of(stage)
            if before is not None:
                rows.add_folded_stage(before[1].wait(), before[0], out)
                before = None
            before = (stage, rows.start_fold_stage(sums, stage, widest))
            del sums
        if before is not None:
            rows.add_folded_stage(before[1].wait(), before[0], out)

    @cached_property
    def _tiles(self) -> dict[int, tuple[LinearOperator, LinearOperator]]:
        """Of each rank whose rows come: its columns of `own_other` and of `other_other`."""
        assert isinstance(self.columns, AxisExchange)
        return {
            stage.of: (columns_of(self.own_other, stage.rows), columns_of(self.other_other, stage.rows))
            for stage in self.columns.stages
        }

    def dropped(self, probability: float, key: np.uint64, row_ids: Tensor, column_ids: Tensor) -> "ShardedOperator":
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
