"""HaloAggregator: the aggregations of one rank's shard: what other ranks own comes from them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.attach.aggregator import Linear
from laconic.attach.remembered import REMEMBERED_BYTES_LIMIT
from laconic.comm.exchange import Route
from laconic.graph.operators.linear import FloatArray, LinearOperator
from laconic.sharded.coder import Coder
from laconic.sharded.operator import SplitAdjacency, SplitOperator, split_product
from laconic.sharded.placement import Placement
from laconic.sharded.projected import project_after, project_before
from laconic.sharded.shared_aggregator import SharedAggregator
from laconic.sharded.sources import with_halo


@final
class HaloAggregator(SharedAggregator):
    """Owned rows in, owned rows out; every method is called by all ranks together, in the same order.

    Args:
        placement: what this rank holds.
        coder: says how rows travel in training; by default, and always in evaluation, as they are.
        known_halo_features: returns features of the halo rows, (H, F), where they are here already, on all ranks.
    """

    def __init__(
        self,
        placement: Placement,
        coder: Coder | None = None,
        known_halo_features: Callable[[], Tensor | None] | None = None,
    ) -> None:
        super().__init__(placement, coder)
        self._placement = placement
        self._exchange = placement.exchange
        self._coder = coder
        self._split: SplitAdjacency | None = None
        self._whole: dict[Linear, LinearOperator] = {}
        self._operators: dict[Linear, SplitOperator] = {}
        self._known_halo_features = known_halo_features
        self.uses_halo_features = False
        """Whether halo rows of the features were asked for; the same on all ranks."""

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        if not self.is_remembered(x):
            return split_product(self._operator(aggregation), x, self._position)
        return self._remembered.recall(aggregation, x, lambda rows: self._multiply_once(aggregation, rows))

    def projected(
        self, aggregation: Linear, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None
    ) -> Tensor | None:
        if self.is_remembered(x):
            return None
        project = project_before if weight.shape[0] < weight.shape[1] else project_after
        return project(self._operator(aggregation), x, weight, bias, own, self._position)

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        operator = self._dropped(aggregation, self._whole_operator(aggregation), probability, keys)
        split = SplitOperator.of(operator, self._split_adjacency(), self._route())
        return split_product(split, x, self._position)

    def sources(self, x: Tensor) -> Tensor:
        if self._keeps_halo_of(x):
            return self._remembered.recall("sources", x, self._gather_once)
        return with_halo(self._route(), x, self._position)

    def gathers_first(self, x: Tensor, width_out: int) -> bool:
        return self._keeps_halo_of(x) or x.shape[1] <= width_out

    def _route(self) -> Route:
        """Returns the way of the next exchange."""
        if self._coder is None or self._position.phase != "forward":
            return self._exchange
        return self._coder.route(self._position.layer)

    def _keeps_halo_of(self, x: Tensor) -> bool:
        num_rows = self._placement.largest_num_rows + self._placement.largest_num_halo
        return self.is_remembered(x) and num_rows * x.shape[1] * x.element_size() <= REMEMBERED_BYTES_LIMIT

    def _multiply_once(self, aggregation: Linear, x: Tensor) -> Tensor:
        operator = self._exact_operator(aggregation)
        with self._setup():
            return operator.multiply(x, self._kept_halo(x))

    def _gather_once(self, x: Tensor) -> Tensor:
        halo = self._kept_halo(x)
        with self._setup():
            return torch.cat([x, self._exchange.start(x).wait() if halo is None else halo])

    def _kept_halo(self, x: Tensor) -> Tensor | None:
        """Returns the halo rows of x if they are here."""
        if x is not self._shard.x:
            return None
        self.uses_halo_features = True
        if self._placement.halo_x is None and self._known_halo_features is not None:
            return self._known_halo_features()
        return self._placement.halo_x

    def _operator(self, aggregation: Linear) -> SplitOperator:
        """Returns the operator for one product, here and now."""
        return replace(self._exact_operator(aggregation), exchange=self._route())

    def _exact_operator(self, aggregation: Linear) -> SplitOperator:
        if aggregation not in self._operators:
            whole = self._whole_operator(aggregation)
            self._operators[aggregation] = SplitOperator.of(whole, self._split_adjacency(), self._exchange)
        return self._operators[aggregation]

    def _whole_operator(self, aggregation: Linear) -> LinearOperator:
        """Returns the operator on (N x N + H): normalised by the whole graph's degrees."""
        if aggregation not in self._whole:
            self._whole[aggregation] = aggregation.on(self._shard, complete=self._with_halo_values)
        return self._whole[aggregation]

    def _with_halo_values(self, values: FloatArray) -> FloatArray:
        """Appends the values that other ranks have for the halo rows."""
        with self._setup():
            halo = self._exchange.start(torch.from_numpy(values)).wait()
        return np.concatenate([values, halo.numpy()])

    def _split_adjacency(self) -> SplitAdjacency:
        if self._split is None:
            self._split = SplitAdjacency.of(self._shard.adjacency)
        return self._split
