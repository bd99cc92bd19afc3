"""HistoricalAggregator: rows of neighbours on other ranks are historical: they stand as at the last refresh.

For a layer with the fixed matrix A = [A_local, A_remote], (N x (N + H)), at step i after the refresh at step t:

    x'(i) = A_local x(i) + A_remote halo(t)       x: (N, F), halo: (H, F); gradients flow to x(i) only

A refresh is a forward pass in eval mode over the whole graph, in which each rank keeps the halo rows that it fetches:
halo(t), the inputs of each layer. It is exact, unless a coder rounds rows on their way. Between refreshes no row
travels. The graph's own features never change: they are fetched once.

A layer's *input* is kept, before its Linear: an output would have been multiplied by old weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch import Tensor

from laconic.attach.aggregator import Aggregator, Linear
from laconic.attach.remembered import RememberedInputs
from laconic.cached.refresh_coder import RowCoder
from laconic.graph import Shard
from laconic.graph.operators.linear import FloatArray
from laconic.sharded.operator import ShardedOperator
from laconic.sharded.placement import Placement

# Shapes: N owned rows, H halo rows


class HistoricalAggregator(Aggregator):
    """Owned rows in, owned rows out. Only inside `refreshing` do ranks talk; then all call together, in one order.

    Args:
        coder: the ways of the rows that change; without one, all rows go as they are.
    """

    def __init__(self, placement: Placement, coder: RowCoder | None = None) -> None:
        super().__init__(placement.shard)
        self._coder = coder
        self._placement = placement
        self._exchange = placement.halo_route
        self._operators: dict[Linear, ShardedOperator] = {}
        self._constants = RememberedInputs(placement.shard.x, num_rows=placement.largest_num_rows)
        # With the constant itself: the id of one that is gone may be another's.
        self._of_constants: dict[int, tuple[Tensor, Tensor]] = {}
        self._kept: list[Tensor] = []
        self._kept_products: dict[int, Tensor] = {}
        self._is_refreshing = False
        self._next = 0
        self._layer = -1

    @property
    def trained_on(self) -> Shard:
        """The rows that a refresh runs on: the rank's own."""
        return self._shard

    def take_turn(self, epoch: int) -> Shard:
        """Returns the rows that the steps of an epoch run on."""
        return self.trained_on

    @property
    def needs_refresh(self) -> bool:
        """Whether a refresh would bring anything new."""
        return True

    def halo_scale(self, aggregation: Linear) -> FloatArray | None:
        """Returns the column scales of the halo rows, (H,), where the aggregation has some."""
        return self._operator(aggregation).own_other.column_scale

    def kept(self, number: int) -> Tensor:
        """Returns the halo rows that a pass reads in its call `number`, (H, F)."""
        return self._kept[number]

    @property
    def halo_features(self) -> Tensor:
        """The graph's own features of the halo rows, (H, F); there since the first refresh that asked for them."""
        with self._placement.communicator.ledger.phase("repartition"):
            return self._fetch_once(self._shard.x)

    @property
    def known_halo_features(self) -> Tensor | None:
        """The same if they have come, which is so on all ranks or on none; else None."""
        _, halo = self._of_constants.get(id(self._shard.x), (None, None))
        return halo

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Inside, a forward pass fetches the rows that it needs, and they are kept in place of those before."""
        self._is_refreshing, self._kept, self._kept_products = True, [], {}
        try:
            yield
        finally:
            self._is_refreshing = False

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def counts_calls(self) -> bool:
        return True

    @property
    def num_nodes(self) -> int:
        return self._placement.num_nodes if self._is_refreshing else self._shard.num_rows

    def total(self, x: Tensor) -> Tensor:
        """Returns the sum over ranks in a refresh, which is exact; in training a rank goes by its own rows."""
        if not self._is_refreshing:
            return x
        with self._booked():
            return self._placement.communicator.all_reduce(x)

    def begin(self, *, is_training: bool) -> None:
        self._next, self._layer = 0, -1
        if self._coder is not None:
            self._coder.begin(is_training=is_training)

    def enter_layer(self, number: int) -> None:
        self._layer = number

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        operator = self._operator(aggregation)
        number, halo = self._halo_of(x)
        if self.is_remembered(x):
            return self._constants.recall(
                aggregation, x, lambda rows: operator.own_own.multiply(rows).add_(operator.own_other.multiply(halo))
            )
        if number not in self._kept_products:
            self._kept_products[number] = operator.own_other.multiply(halo.to(x.dtype))
        # In place: a product just made has no other user.
        return (operator.own_own @ x).add_(self._kept_products[number])

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        whole, ids = self._operator(aggregation), (self._placement.row_ids, self._placement.column_ids)
        operator = self._dropped(
            aggregation, whole, probability, keys, lambda left, key: left.dropped(probability, key, *ids)
        )
        _, halo = self._halo_of(x)
        return (operator.own_own @ x).add_(operator.own_other.multiply(halo.to(x.dtype)))

    def is_remembered(self, x: Tensor) -> bool:
        return self._constants.covers(x)

    def sources(self, x: Tensor) -> Tensor:
        _, halo = self._halo_of(x)
        if self.is_remembered(x):
            return self._constants.recall("sources", x, lambda rows: torch.cat([rows, halo]))
        return torch.cat([x, halo.to(x.dtype)])

    def gathers_first(self, x: Tensor, width_out: int) -> bool:
        return True

    def aggregates_first(self, x: Tensor, width_out: int) -> bool:
        return True

    def _halo_of(self, x: Tensor) -> tuple[int, Tensor]:
        """Returns the number of this call in the pass, and the historical halo rows that it reads."""
        number, self._next = self._next, self._next + 1
        if self._is_refreshing:
            assert number == len(self._kept)
            self._kept.append(self._fetch(x))
        assert number < len(self._kept), "a pass asks for more rows than the refresh before it kept"
        halo = self._kept[number]
        assert halo.shape[1:] == x.shape[1:], f"rows of {tuple(halo.shape[1:])} were kept, {tuple(x.shape[1:])} asked"
        return number, halo

    def _fetch(self, x: Tensor) -> Tensor:
        if not self.is_remembered(x) and x is not self._shard.x:
            return self._fetch_now(x)
        # Constant: the features, and their powers (SGConv). They come once.
        with self._booked():
            return self._fetch_once(x)

    def _fetch_now(self, rows: Tensor) -> Tensor:
        """Returns the halo's rows of what changes, (H, F), from their owners; they get ours."""
        with self._booked():
            way = self._exchange if self._coder is None else self._coder.route(self._layer)
            return way.start(rows).wait()

    def _fetch_once(self, constant: Tensor) -> Tensor:
        if id(constant) not in self._of_constants:
            self._of_constants[id(constant)] = (constant, self._exchange.start(constant).wait())
        return self._of_constants[id(constant)][1]

    def _operator(self, aggregation: Linear) -> ShardedOperator:
        if aggregation not in self._operators:
            # In a pass that refreshes, which comes first: the degrees of halo rows are asked from their owners.
            assert self._is_refreshing, "operators are made in the first refresh"
            with self._booked():
                self._operators[aggregation] = self._placement.block.of(aggregation)
        return self._operators[aggregation]

    def _booked(self) -> AbstractContextManager[None]:
        return self._placement.communicator.ledger.phase("repartition", layer=self._layer)
