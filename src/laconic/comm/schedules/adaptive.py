"""adaptive: as few bytes as the measured error allows, line by line.

An error in the rows is harmless as long as it moves the gradient by less than its own length (the norm test): so the
error that is allowed falls with the gradient, as the paper's guarantee asks. How far rows move the gradient is measured
on the way: now and then an epoch goes at rate 1, and its gradient is compared with the one before.
"""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

from laconic.comm.schedules.base import Costs, Line, Measured, RateContext, Schedule, check_range
from laconic.errors import ConfigError
from laconic.units import format_bytes

# Of a calibration, so many of the last count.
_CALIBRATIONS = 3
# Doubling a rate is thought to make four times the error, as one bit less does, halving it to leave half.
_MORE, _LESS = 4.0, 0.5


@final
@dataclass(frozen=True, slots=True)
class Adaptive(Schedule):
    """Halves rates where most is lost per byte while the error is above its target, doubles them far below.

    The target is theta squared times the squared length of the gradient, over the sensitivity: how much the squared
    gradient is off for each unit of squared error in the rows. Until that has been calibrated, the error may be theta
    squared of the rows, while the gradient is as long as it was at its longest. A loss that has not fallen by 1% in
    `patience` epochs, or a gradient whose length has changed by half, halves all rates. The last epochs go at rate 1,
    so the run ends in training without loss. A budget, if given, keeps every epoch to its share of what is left.

    Args:
        theta: how far off the gradient may be, relative to its length.
        most, least: rates stay between them; most=0 takes the rate that the graph's cut suggests.
        epochs: of the whole run.
        tail: share of the epochs, at the end, that go at rate 1.
        calibrate: every so many epochs one goes at rate 1, to measure the sensitivity; 0 never.
        patience: epochs without progress before rates fall, and before a line tries a rate again; 0 never, and at once.
        monotone: rates never rise, so nothing is calibrated.
        num_bytes: a budget for the whole run, forward and backward, of all ranks; 0 for none.
    """

    theta: float = 0.5
    most: float = 0.0
    least: float = 1.0
    epochs: int = 200
    tail: float = 0.05
    calibrate: int = 25
    patience: int = 20
    monotone: bool = False
    num_bytes: int = 0
    needs_costs: ClassVar[bool] = True
    needs_measured: ClassVar[bool] = True
    is_falling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_range("adaptive", self.most, self.least, self.epochs)
        if not self.theta > 0:
            raise ConfigError(f"schedule adaptive: theta should be above 0, such as 0.5; got {self.theta:g}.")
        if not 0 <= self.tail <= 1:
            raise ConfigError(f"schedule adaptive: tail should be a share between 0 and 1; got {self.tail:g}.")
        if self.patience < 0 or self.num_bytes < 0:
            raise ConfigError("schedule adaptive: patience and num_bytes should be 0 or more.")
        if self.calibrate < 0 or self.calibrate in (1, 2):
            raise ConfigError(
                f"schedule adaptive: calibrate should be 3 epochs or more, since the two before are compared, or 0 for "
                f"never; got {self.calibrate}."
            )

    @property
    def first_exact_epoch(self) -> int:
        """Where the tail begins; beyond the run if there is none."""
        return self.epochs - round(self.tail * self.epochs) + 1

    def is_calibration(self, epoch: int) -> bool:
        """Whether an epoch goes at rate 1 to measure the sensitivity."""
        return bool(self.calibrate) and not self.monotone and epoch % self.calibrate == 0

    def rate(self, context: RateContext) -> float:
        if (self.tail and context.epoch >= self.first_exact_epoch) or self.is_calibration(context.epoch):
            return 1.0
        assert context.costs is not None
        most = self._most(context.first_rate)
        rate = _decide(self, context.measured, context.costs, most).get(context.line, most)
        return max(rate, self._affordable(context, context.costs, most)) if self.num_bytes else rate

    @property
    def end(self) -> tuple[int, float] | None:
        return (self.first_exact_epoch, 1.0) if round(self.tail * self.epochs) else None

    @property
    def largest(self) -> float:
        return max(self.most, self.least)

    def check_costs(self, costs: Costs, first_rate: float) -> None:
        most = self._most(first_rate)
        num_exact, num_epochs = self._num_exact(costs.first_epoch), self.epochs - costs.first_epoch + 1
        least = (num_epochs - num_exact) * costs.of_epoch(most) + num_exact * costs.of_epoch(1.0)
        if self.num_bytes and self.num_bytes - costs.spent < least:
            raise ConfigError(
                f"schedule adaptive: {num_epochs} epochs cost {format_bytes(least)} at least ({least} bytes: "
                f"{num_exact} epochs at rate 1, the others at {most:g}), more than the {self.num_bytes - costs.spent} "
                f"bytes that num_bytes leaves. Give more, a higher `most`, or less `tail` and a rarer `calibrate`."
            )

    def target(self, measured: tuple[Measured, ...]) -> float:
        """Returns the squared error of all rows that is allowed after these epochs."""
        last = self._held(measured)
        sensitivities = [
            max(one.gradient_change - before.gradient_change, 0.0) / before.lost
            for epoch, (before, one) in enumerate(itertools.pairwise(measured), start=2)
            if self.is_calibration(epoch) and before.lost > 0
        ][-_CALIBRATIONS:]
        if sensitivities:
            worst = max(sensitivities)
            return self.theta**2 * last.gradient_norm**2 / worst if worst else math.inf
        longest = max(one.gradient_norm for one in measured)
        return self.theta**2 * last.sent * (last.gradient_norm / longest) ** 2 if longest else 0.0

    def _held(self, measured: tuple[Measured, ...]) -> Measured:
        """Returns the last epoch whose rates go on."""
        is_calibration = len(measured) > 1 and self.is_calibration(len(measured))
        return measured[-2] if is_calibration else measured[-1]

    def _most(self, first_rate: float) -> float:
        return self.most or max(first_rate, self.least)

    def _lowers_all(self, measured: tuple[Measured, ...]) -> bool:
        # Asked once per `patience` epochs, so that one plateau does not take all rates down at once.
        if not self.patience or len(measured) % self.patience or len(measured) < 2 * self.patience:
            return False
        recent, earlier = measured[-self.patience :], measured[-2 * self.patience : -self.patience]
        is_stuck = min(one.loss for one in recent) > 0.99 * min(one.loss for one in measured[: -self.patience])
        now, then = (sum(one.gradient_norm for one in some) for some in (recent, earlier))
        return is_stuck or abs(now - then) > 0.5 * then

    def _num_exact(self, epoch: int) -> int:
        """Returns how many epochs from this one on go at rate 1 in any case."""
        first = self.first_exact_epoch if self.tail else self.epochs + 1
        return self.epochs + 1 - first + sum(self.is_calibration(one) for one in range(epoch, first))

    def _affordable(self, context: RateContext, costs: Costs, most: float) -> float:
        """Returns the lowest rate at which the budget pays for all epochs to come."""
        num_exact = self._num_exact(context.epoch)
        num_coded = max(self.epochs - context.epoch + 1 - num_exact, 1)
        spent = costs.spent + sum(one.num_bytes for one in context.measured[costs.first_epoch - 1 :])
        left = self.num_bytes - spent - num_exact * costs.of_epoch(1.0)
        rate = 1.0
        while rate < most and num_coded * costs.of_epoch(rate) > left:
            rate *= 2
        return min(rate, most)


@lru_cache(maxsize=8)
def _decide(schedule: Adaptive, measured: tuple[Measured, ...], costs: Costs, most: float) -> dict[Line, float]:
    """Returns the rate of every line in the epoch after `measured`; the same on all ranks."""
    if not measured:
        return {}
    last = schedule._held(measured)
    rates = {line: last.lines[line].rate if line in last.lines else most for line in costs.lines}
    lost = {line: last.lines[line].lost if line in last.lines else 0.0 for line in costs.lines}
    target, total = schedule.target(measured), last.lost
    if schedule._lowers_all(measured):
        return {line: max(rate / 2, schedule.least) for line, rate in rates.items()}
    if total > target:
        lowered = {line: max(rate / 2, schedule.least) for line, rate in rates.items()}
        # Where a byte more takes away most.
        for line in sorted(_changed(costs, rates, lowered), key=lambda line: -_per_byte(costs, line, rates, lost)):
            if total <= target:
                break
            rates[line], total = lowered[line], total - lost[line] * (1 - _LESS)
    elif total < target / 2 and not schedule.monotone:
        raised = {line: min(2 * rate, most) for line, rate in rates.items()}
        tried = measured[-schedule.patience :] if schedule.patience else ()
        for line in sorted(_changed(costs, rates, raised), key=lambda line: _per_byte(costs, line, rates, lost)):
            was_tried = any(line in one.lines and one.lines[line].rate >= raised[line] for one in tried)
            if not was_tried and total + lost[line] * (_MORE - 1) <= target:
                rates[line], total = raised[line], total + lost[line] * (_MORE - 1)
    return rates


def _changed(costs: Costs, rates: dict[Line, float], others: dict[Line, float]) -> list[Line]:
    """Returns the lines for which another rate is another number of bytes."""
    return [line for line in rates if costs.num_bytes(line, rates[line]) != costs.num_bytes(line, others[line])]


def _per_byte(costs: Costs, line: Line, rates: dict[Line, float], lost: dict[Line, float]) -> float:
    return lost[line] / max(costs.num_bytes(line, rates[line]), 1)
