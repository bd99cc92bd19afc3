"""BlockOperators: the fixed matrices of the linear convolutions, on one rank's block of the edges.

With A[v, u] the weight of the edge u -> v, in-degree d_v = sum_u A[v, u] over all ranks, loops of
weight w where a convolution adds self-loops (else w = 0), and s_v = (d_v + w)^(-1/2):

    sum     M = A + c I                             c: weight of a row's own features, or 0
    mean    M = diag(1 / number of in-edges) A
    gcn     M = diag(s) (A + w I) diag(s)

A rank has some edges of a row, (R x C) of them with R rows and C columns. So its counts and degrees
are partial sums: they are folded to the rows' owners, (R,) -> (N,), once, at set-up. The scales of
rows and columns that others own are then fetched, (N,) -> (R,) and (N,) -> (C,).
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.attach.aggregator import Linear
from laconic.comm.ledger import Ledger
from laconic.graph import Adjacency
from laconic.graph.normalize import inverse_square_root
from laconic.graph.operators.linear import FloatArray, LinearOperator
from laconic.sharded.axis import Axis, LineAxis, PlacedAxis
from laconic.sharded.operator import ShardedOperator
from laconic.sharded.product import ShardedOperators
from laconic.sharded.quarters import Quarters

# Shapes: N nodes of the own block, R rows, C columns, E edges


class OwnFactors(NamedTuple):
    """The factors of a matrix at the own nodes, (N,) each, or None: scales of rows and of columns, and the diagonal."""

    row_scale: FloatArray | None = None
    column_scale: FloatArray | None = None
    diagonal: FloatArray | None = None


class NormalisedOperators(ShardedOperators):
    """Makes matrices whose factors come from sums over the edges of all ranks."""

    weights: FloatArray | None

    def own_factors(self, aggregation: Linear, num_own: int) -> OwnFactors:
        """Returns the factors of the N own nodes, as `graph.normalize` has them; all ranks call it together."""
        assert self.weights is not None or not aggregation.weighted
        if aggregation.kind == "sum":
            own_weight = aggregation.own_weight
            return OwnFactors(diagonal=None if own_weight is None else np.full(num_own, own_weight))
        if aggregation.kind == "mean":
            degrees = self._summed(self.adjacency.row_degrees.astype(np.float64))
            return OwnFactors(row_scale=1.0 / np.maximum(degrees, 1))
        rows, loops = self.adjacency.row_of_edge, np.full(num_own, aggregation.loop_weight)
        given = self.weights if aggregation.weighted else None
        weights = np.ones(self.adjacency.num_edges) if given is None else given
        if aggregation.self_loops:
            is_loop = self._is_loop(self.adjacency)
            loops[rows[is_loop]] = weights[is_loop]
            loops = self._of_loops(loops, aggregation.loop_weight)
            weights = np.where(is_loop, 0.0, weights)
        degrees = self._summed(np.bincount(rows, weights=weights, minlength=self.adjacency.num_rows).astype(np.float64))
        scale = inverse_square_root(degrees + loops if aggregation.self_loops else degrees)
        return OwnFactors(scale, scale, loops * scale**2 if aggregation.self_loops else None)

    @abstractmethod
    def _summed(self, partial: FloatArray) -> FloatArray:
        """Returns the sums over ranks of a number per row, (R,), for the own nodes, (N,)."""

    @abstractmethod
    def _is_loop(self, adjacency: Adjacency) -> NDArray[np.bool_]:
        """Returns which edges are loops, (E,)."""

    def _of_loops(self, here: FloatArray, loop_weight: float) -> FloatArray:
        """Returns the weights of the own nodes' loops, (N,), of those that have their edge here."""
        return here


@final
@dataclass(frozen=True, eq=False)
class BlockOperators(NormalisedOperators):
    """Makes operators on a block.

    Args:
        adjacency: the edges of the block, (R x C).
        num_own: N.
        weights: of each edge, in the adjacency's order, or None.
        columns, rows: how rows of others, and sums for others, travel.
        is_staged: block after block, so that only two are in memory.
    """

    adjacency: Adjacency
    num_own: int
    weights: FloatArray | None
    columns: PlacedAxis
    rows: LineAxis
    is_staged: bool = False

    def booked(self, adjacency: Adjacency, weights: FloatArray | None, ledger: Ledger) -> "BlockOperators":
        axes = (self.columns.booked(ledger), self.rows.booked(ledger))
        return BlockOperators(adjacency, adjacency.num_rows, weights, *axes)

    @cached_property
    def quarters(self) -> Quarters:
        """The edges in four, by whether their ends are in the own block."""
        return Quarters.of(self.adjacency, self.num_own)

    def of(self, aggregation: Linear) -> ShardedOperator:
        return self._cut(self.whole(aggregation))

    def whole(self, aggregation: Linear) -> LinearOperator:
        """Returns the matrix of all edges held here, (R x C), with the diagonal of the own rows."""
        own = self.own_factors(aggregation, self.num_own)
        return LinearOperator(
            self.adjacency,
            self.weights if aggregation.weighted else None,
            None if own.row_scale is None else _with_others(self.rows, own.row_scale),
            None if own.column_scale is None else _with_others(self.columns, own.column_scale),
            own.diagonal,
            skip_loops=own.diagonal is not None and aggregation.kind == "gcn",
        )

    def _summed(self, partial: FloatArray) -> FloatArray:
        numbers = torch.from_numpy(partial).unsqueeze(1)
        own = numbers[: self.num_own].clone()
        self.rows.add_folded(self.rows.start_fold(numbers[self.num_own :], 1).wait(), own)
        return own.squeeze(1).numpy()

    def _is_loop(self, adjacency: Adjacency) -> NDArray[np.bool_]:
        # A loop's row and column are the same node, so both are in the own block, where numbers are the same too.
        rows = adjacency.row_of_edge
        is_loop: NDArray[np.bool_] = (rows == adjacency.indices) & (rows < self.num_own)
        return is_loop

    def _cut(self, whole: LinearOperator) -> ShardedOperator:
        own, other, quarters = slice(0, self.num_own), slice(self.num_own, None), self.quarters

        def quarter(number: int, adjacency: Adjacency, rows: slice, columns: slice) -> LinearOperator:
            # A row's own features, and loops, are in the own block.
            is_own = number == 0
            values, row_scale, column_scale = whole.values, whole.row_scale, whole.column_scale
            return LinearOperator(
                adjacency,
                None if values is None else values[quarters.masks[number]],
                None if row_scale is None else row_scale[rows],
                None if column_scale is None else column_scale[columns],
                whole.diagonal if is_own else None,
                whole.skip_loops and is_own,
            )

        return ShardedOperator(
            quarter(0, quarters.own_own, own, own),
            quarter(1, quarters.own_other, own, other),
            quarter(2, quarters.other_own, other, own),
            quarter(3, quarters.other_other, other, other),
            columns=self.columns,
            rows=self.rows,
            is_staged=self.is_staged,
        )


def _with_others(axis: Axis, own: FloatArray) -> FloatArray:
    """Appends to one number per node of the own block those that other ranks have."""
    others = axis.start_expand(torch.from_numpy(own).unsqueeze(1), 1).wait()
    return np.concatenate([own, others.squeeze(1).numpy()])
