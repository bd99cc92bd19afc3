"""PlacedRows: the part of a rank among several, which have a placement each; what all of them check."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from torch import Tensor

from laconic.graph import Shard
from laconic.sharded.coding import Coding
from laconic.sharded.placement import Placement
from laconic.sharded.reach_choice import Costs, check_asked_reach, decide_reach
from laconic.sharded.trace import Traces
from laconic.sharded.trial import Trial
from laconic.strategies._checks import check_plain_model
from laconic.strategies.base import Placed


def _as_it_is(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedRows(Placed):
    """The rows that a rank owns, and the edges that it holds.

    Args:
        prepare: does to any rows of features what was done to those that are here.
    """

    placement: Placement
    prepare: Callable[[Tensor], Tensor] = _as_it_is

    @property
    def shard(self) -> Shard:
        return self.placement.shard

    @property
    def num_train(self) -> int:
        return self.placement.num_train

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, placement=replace(self.placement, shard=replace(self.shard, x=x)), prepare=prepare)

    def check(self) -> None:
        check_plain_model(self.run.model, self.shard)
        self.trial.check()

    @cached_property
    def trial(self) -> Trial:
        """The model on a tiny graph."""
        return Trial.of(self.run.model, self.shard)

    @cached_property
    def traces(self) -> Traces:
        """The traces of the model, on the placements that are looked at."""
        return Traces(self.run.model)


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedExchanging(PlacedRows):
    """The rows of a rank that gets its neighbours' rows in every step, or computes them.

    Args:
        coding: how messages are written; None: as they are.
        reach: over how many hops rows of other ranks are computed here; None: as many as make epochs the shortest.
        link_mbit: speed of a rank's link, by which the reach is chosen.
    """

    coding: Coding | None
    reach: int | None
    link_mbit: float

    def check(self) -> None:
        super().check()
        check_asked_reach(self.placement, self.reach, self.traces, self.trial)

    def _with_reach(self) -> Placement:
        """Returns the placement with the rows that are computed here; all ranks call it together."""
        costs = Costs(self.link_mbit, self.coding, self.traces, lambda: self.trial)
        return decide_reach(self.placement, self.reach, costs)
