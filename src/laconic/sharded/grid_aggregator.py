"""GridAggregator: the aggregations of one rank of a grid, exact. Own rows in full width in, own rows out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.attach.aggregator import Attention, Linear
from laconic.attach.remembered import REMEMBERED_BYTES_LIMIT
from laconic.sharded.attention import SplitAttention
from laconic.sharded.axis import Axis
from laconic.sharded.coded import ProductCoder
from laconic.sharded.grid_operator import GridOperator
from laconic.sharded.grid_placement import GridPlacement
from laconic.sharded.product import GridMatrix, grid_product
from laconic.sharded.shared_aggregator import SharedAggregator
from laconic.sharded.steps import expand, join, split
from laconic.sharded.swap import widest_slice


@final
class GridAggregator(SharedAggregator):
    """Every method is called by all ranks together, in the same order.

    Args:
        placement: what this rank holds.
        coder: says how rows and sums travel in training; by default, and always in evaluation, as they are.
    """

    def __init__(self, placement: GridPlacement, coder: ProductCoder | None = None) -> None:
        super().__init__(placement, coder)
        self._placement = placement
        self._coder = coder
        self._ledger = placement.communicator.ledger
        self._operators: dict[Linear, GridMatrix] = {}
        self._dropped_last: tuple[object, GridMatrix | None] = (None, None)

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        if not self.is_remembered(x):
            return self._product(self._operator(aggregation), x)
        return self._remembered.recall(aggregation, x, lambda rows: self._multiply_once(aggregation, rows))

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        # Each propagation drops from what the one before has left: go on from there.
        before, left = self._dropped_last
        ids = (self._placement.row_ids, self._placement.column_ids)
        if left is None or before != (aggregation, probability, tuple(keys[:-1])):
            left = self._operator(aggregation)
            for key in keys[:-1]:
                left = left.dropped(probability, key, *ids)
        left = left.dropped(probability, keys[-1], *ids)
        self._dropped_last = ((aggregation, probability, tuple(keys)), left)
        return self._product(left, x)

    def sources(self, x: Tensor) -> Tensor:
        assert self._placement.grid.pj == 1, "where features are sliced, no rank has whole rows of its columns"
        if self._keeps_sources_of(x):
            return self._remembered.recall("sources", x, self._gather_once)
        columns = self._placement.columns if not self._is_coded else self._next_axes()[0]
        return expand(columns, x, self._ledger, self._position)

    def gathers_first(self, x: Tensor, width_out: int) -> bool:
        return self._keeps_sources_of(x) or x.shape[1] <= width_out

    def gat(self, sources: Tensor, from_source: Tensor, from_destination: Tensor, settings: Attention) -> Tensor:
        if self._placement.grid.pk == 1:
            return super().gat(sources, from_source, from_destination, settings)
        return self._attention(settings).gat(sources, from_source, from_destination)

    def gatv2(self, sources: Tensor, destinations: Tensor, att: Tensor, settings: Attention) -> Tensor:
        if self._placement.grid.pk == 1:
            return super().gatv2(sources, destinations, att, settings)
        return self._attention(settings).gatv2(sources, destinations, att)

    def _attention(self, settings: Attention) -> SplitAttention:
        return SplitAttention(self._placement, settings, self._ledger, self._position)

    def _product(self, operator: GridMatrix, x: Tensor) -> Tensor:
        swap, width, pj = self._placement.swap, x.shape[1], self._placement.grid.pj
        at = (self._ledger, self._position)
        if self._is_coded:
            assert isinstance(operator, GridOperator), "the strategy codes blocks alone"
            columns, rows = self._next_axes()
            operator = replace(operator, columns=columns, rows=rows)
        if pj == 1:
            return grid_product(operator, x, width, *at)
        return join(swap, grid_product(operator, split(swap, x, *at), widest_slice(width, pj), *at), width, *at)

    @property
    def _is_coded(self) -> bool:
        return self._coder is not None and self._position.phase == "forward"

    def _next_axes(self) -> tuple[Axis, Axis]:
        assert self._coder is not None
        return self._coder.axes(self._position.layer)

    def _keeps_sources_of(self, x: Tensor) -> bool:
        num_bytes = self._placement.largest_num_columns * x.shape[1] * x.element_size()
        return self.is_remembered(x) and num_bytes <= REMEMBERED_BYTES_LIMIT

    def _multiply_once(self, aggregation: Linear, x: Tensor) -> Tensor:
        operator, swap = self._operator(aggregation), self._placement.swap
        with self._setup():
            rows = operator.multiply(swap.split(x), widest_slice(x.shape[1], self._placement.grid.pj))
            return swap.join(rows, x.shape[1])

    def _gather_once(self, x: Tensor) -> Tensor:
        with self._setup():
            return torch.cat([x, self._placement.columns.start_expand(x, x.shape[1]).wait()])

    def _operator(self, aggregation: Linear) -> GridMatrix:
        if aggregation not in self._operators:
            with self._setup():
                self._operators[aggregation] = self._placement.operators.of(aggregation)
        return self._operators[aggregation]
