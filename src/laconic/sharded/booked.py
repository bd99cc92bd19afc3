"""BookedCoder: books the messages of products, coded as planned, and notes them; it moves nothing."""

from typing import Literal, final

import numpy as np
from torch import Tensor

from laconic.comm.codecs.identity import Identity
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.schedules import Measured
from laconic.sharded.axis import Axis
from laconic.sharded.cut import Cut, Way
from laconic.sharded.rates import Exchanged, RatePlan


@final
class BookedCoder:
    """Books what a training step would move.

    Args:
        cut: how many rows and sums travel.
        plan: the rates; None books rows as they are.
        epoch: whose rates.
        measured: what schedules go by.
    """

    def __init__(
        self, cut: Cut, ledger: Ledger, plan: RatePlan | None, epoch: int = 1, measured: tuple[Measured, ...] = ()
    ) -> None:
        self._cut = cut
        self._ledger = ledger
        self._plan = plan
        self._epoch = epoch
        self._measured = measured
        self.exchanges: list[Exchanged] = []
        """Those of the last training step, in order; a way without rows has none."""

    def begin(self, *, is_training: bool) -> None:
        if is_training:
            self.exchanges = []

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        return _Booked(self, layer, "fetch"), _Booked(self, layer, "fold")

    def book(self, one: Exchanged) -> None:
        """Counts one exchange, and notes it."""
        counts, plan = self._cut.of_way(one.way), self._plan
        if not counts.any():
            return
        self.exchanges.append(one)
        if plan is None:
            one.count(self._ledger, Identity(), counts, np.ones(counts.shape))
            return
        rates = plan.rates(self._epoch, one.layer, self._measured)
        one.count(self._ledger, plan.codec, counts, rates, plan.new if one.way == "fetch" else None)


@final
class _Booked(Axis):
    def __init__(self, coder: BookedCoder, layer: int, way: Way) -> None:
        self._coder = coder
        self._layer = layer
        self._way: Way = way

    @property
    def num_others(self) -> int:
        return 0

    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        return self._book(x, "forward" if self._way == "fetch" else "backward")

    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        return self._book(partial, "backward" if self._way == "fetch" else "forward")

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def _book(self, rows: Tensor, direction: Literal["forward", "backward"]) -> Pending[Tensor]:
        self._coder.book(Exchanged(self._layer, direction, rows.shape[1], rows.dtype, self._way))
        return Pending.done(rows.new_empty(0, rows.shape[1]))
