"""ShardedAggregator: the aggregations of a rank that shares the graph with others: their rows and sums are exchanged.

    out_v = sum over edges u -> v of a_vu h_u, for the owned rows v; h_u may be owned by another rank

Fixed operators are products of `laconic.sharded.operator`; attention and maximum get the rows of all their sources.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.attach.aggregator import Aggregator, Attention, Linear
from laconic.attach.remembered import REMEMBERED_BYTES_LIMIT, RememberedInputs
from laconic.graph import Shard
from laconic.sharded.attention import SplitAttention
from laconic.sharded.axis import Axis, PlacedAxis
from laconic.sharded.coder import ProductCoder
from laconic.sharded.hops import HopMatrix
from laconic.sharded.operator import ShardedOperator
from laconic.sharded.placement import Placement
from laconic.sharded.position import Position
from laconic.sharded.product import ShardedMatrix, sharded_product
from laconic.sharded.projected import Exchanging, project_after, project_before
from laconic.sharded.steps import expand, join, split
from laconic.sharded.swap import widest_slice
from laconic.sharded.total import sum_over_ranks


@final
class ShardedAggregator(Aggregator):
    """Every method is called by all ranks together, in the same order.

    Args:
        placement: what this rank holds.
        coder: says how rows and sums travel in training; by default, and always in evaluation, as they are.
        known_halo_features: returns features of the halo rows, (H, F), where they are here already, on all ranks.
        shard: the placement's shard with the rows of its hops behind the owned ones.
    """

    def __init__(
        self,
        placement: Placement,
        coder: ProductCoder | None = None,
        known_halo_features: Callable[[], Tensor | None] | None = None,
        shard: Shard | None = None,
    ) -> None:
        super().__init__(shard or placement.shard)
        self._placement = placement
        self._coder = coder
        self._remembered = RememberedInputs(self._shard.x, num_rows=placement.largest_num_rows)
        self._position = Position("evaluation", -1)
        self._ledger = placement.communicator.ledger
        self._operators: dict[Linear, ShardedMatrix] = {}
        self._hop_matrices: dict[tuple[int, Linear], HopMatrix] = {}
        self._known_halo_features = known_halo_features
        self.uses_halo_features = False
        """Whether halo rows of the features were asked for; the same on all ranks."""
        self.changes: list[bool] = []
        """Of each sum over neighbours in the last pass, whether its rows change from step to step."""

    @property
    def num_nodes(self) -> int:
        return self._placement.num_nodes

    @property
    def is_shared(self) -> bool:
        return True

    def begin(self, *, is_training: bool) -> None:
        self._position, self.changes = Position("forward" if is_training else "evaluation", -1), []
        if self._coder is not None:
            self._coder.begin(is_training=is_training)

    def enter_layer(self, number: int) -> None:
        self._position = Position(self._position.phase, number)

    def is_remembered(self, x: Tensor) -> bool:
        return self._remembered.covers(x)

    @property
    def keeps_inputs_intact(self) -> bool:
        """Whether no layer has written into the aggregations that are kept; otherwise they are made again."""
        return self._remembered.are_intact

    def total(self, x: Tensor) -> Tensor:
        return sum_over_ranks(self._placement.communicator, x, self._position)

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        self.changes.append(not self.is_remembered(x))
        if not self.changes[-1]:
            return self._remembered.recall(aggregation, x, lambda rows: self._multiply_once(aggregation, rows))
        hop = self._hop_of(x)
        if hop:
            return self._hop_matrix(hop, aggregation) @ x
        return self._product(self._operator(aggregation), x)

    def projected(
        self, aggregation: Linear, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None
    ) -> Tensor | None:
        operator = None if self.is_remembered(x) or self._hop_of(x) else self._operator(aggregation)
        if not isinstance(operator, ShardedOperator) or operator.is_staged or self._placement.grid.pj > 1:
            return None
        self.changes.append(True)
        project = project_before if weight.shape[0] < weight.shape[1] else project_after
        return project(Exchanging(self._on_its_way(operator), self._ledger, self._position), x, weight, bias, own)

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        self.changes.append(True)
        hop = self._hop_of(x)
        if hop:
            return self._drop_in_hop(hop, aggregation, probability, keys) @ x
        ids = (self._placement.row_ids, self._placement.column_ids)
        left = self._dropped(
            aggregation,
            self._operator(aggregation),
            probability,
            keys,
            lambda left, key: left.dropped(probability, key, *ids),
        )
        return self._product(left, x)

    def owned(self, x: Tensor) -> Tensor:
        return x[: self._placement.shard.num_rows] if self._placement.hops else x

    def sources(self, x: Tensor) -> Tensor:
        self.changes.append(not self._keeps_sources_of(x))
        if not self.changes[-1]:
            return self._remembered.recall("sources", x, self._gather_once)
        sources = self._sources if not self._is_coded else self._next_axes()[0]
        return expand(sources, x, self._ledger, self._position)

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

    def _product(self, operator: ShardedMatrix, x: Tensor) -> Tensor:
        swap, width, pj = self._placement.swap, x.shape[1], self._placement.grid.pj
        at = (self._ledger, self._position)
        if isinstance(operator, ShardedOperator):
            operator = self._on_its_way(operator)
        if pj == 1:
            return sharded_product(operator, x, width, *at)
        return join(swap, sharded_product(operator, split(swap, x, *at), widest_slice(width, pj), *at), width, *at)

    def _on_its_way(self, operator: ShardedOperator) -> ShardedOperator:
        """Returns the operator with the way that rows and sums have in the next product: in training, coded."""
        if not self._is_coded:
            return operator
        columns, rows = self._next_axes()
        return replace(operator, columns=columns, rows=rows)

    @property
    def _sources(self) -> PlacedAxis:
        assert self._placement.sources is not None, "where features are sliced, no rank has whole rows of its columns"
        return self._placement.sources

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
        if self._placement.hops:
            return self._multiply_in_hops(aggregation, x)
        operator, swap, halo = self._operator(aggregation), self._placement.swap, self._kept_halo(x)
        with self._setup():
            if halo is not None and isinstance(operator, ShardedOperator):
                return operator.multiply_while(x, x.shape[1], fetched=halo)
            rows = operator.multiply(swap.split(x), widest_slice(x.shape[1], self._placement.grid.pj))
            return swap.join(rows, x.shape[1])

    def _multiply_in_hops(self, aggregation: Linear, x: Tensor) -> Tensor:
        """Returns sums of constant rows: of owned rows from the rows that are here, of others from their owners."""
        rows = self._hop_matrix(1, aggregation) @ x[: self._shard.rows_within[0]]
        with self._setup():
            for hop in self._placement.hops:
                rows = hop.with_rows(rows)
        return rows

    def _hop_of(self, x: Tensor) -> int:
        """Returns how many hops of rows x has beside the owned ones."""
        return (self._shard.hop_of(len(x)) or 0) if self._placement.hops else 0

    def _hop_matrix(self, hop: int, aggregation: Linear) -> HopMatrix:
        if (hop, aggregation) not in self._hop_matrices:
            # Out of inference mode: a tensor made in it could not be trained on later.
            with self._setup(), torch.inference_mode(False):
                matrix = HopMatrix(self._placement.hops[hop - 1].block.whole(aggregation))
            self._hop_matrices[hop, aggregation] = matrix
        return self._hop_matrices[hop, aggregation]

    def _drop_in_hop(self, hop: int, aggregation: Linear, probability: float, keys: Sequence[np.uint64]) -> HopMatrix:
        """Returns the matrix of a hop with entries dropped once per key: each propagation has a hop of its own."""
        matrix, ids = self._hop_matrix(hop, aggregation), self._shard.node_ids[: self._shard.rows_within[hop - 1]]
        for key in keys:
            matrix = matrix.dropped(probability, key, ids)
        return matrix

    def _gather_once(self, x: Tensor) -> Tensor:
        halo = self._kept_halo(x)
        with self._setup():
            return torch.cat([x, self._sources.start_expand(x, x.shape[1]).wait() if halo is None else halo])

    def _kept_halo(self, x: Tensor) -> Tensor | None:
        """Returns the halo rows of x if they are here."""
        if x is not self._shard.x or self._placement.is_covered:
            return None
        self.uses_halo_features = True
        if self._placement.halo_x is None and self._known_halo_features is not None:
            return self._known_halo_features()
        return self._placement.halo_x

    def _operator(self, aggregation: Linear) -> ShardedMatrix:
        if aggregation not in self._operators:
            with self._setup():
                self._operators[aggregation] = self._placement.operators.of(aggregation)
        return self._operators[aggregation]

    def _setup(self) -> AbstractContextManager[None]:
        """Inside, traffic is booked as set-up: it comes once."""
        return Position("setup", self._position.layer).booked(self._ledger)
