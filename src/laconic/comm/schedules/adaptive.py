"""adaptive: as few bytes as the measured error allows, layer by layer.

An error in the rows is harmless as long as it moves the gradient less than its own length (the norm test): so the error
that is allowed falls with the gradient, as the paper's guarantee asks.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from laconic.comm.schedules.base import Measured, RateContext, Schedule, check_range
from laconic.errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class Adaptive(Schedule):
    """Halves the rate of a layer whose error is above the target, doubles it where it is far below.

    The target is theta squared times the squared length of the gradient, over that of the longest gradient so far. A
    loss that has not fallen by 1% in `patience` epochs halves all rates. The last epochs go at rate 1, so the run ends
    in training without loss. A budget, if given, keeps every epoch to its share of what is left.

    Args:
        theta: error of the rows, relative to their length, that is allowed while the gradient is long.
        most, least: rates stay between them; most=0 takes the rate that the graph's cut suggests.
        epochs: of the whole run.
        tail: share of the epochs, at the end, that go at rate 1.
        patience: epochs without progress before rates fall; 0 never.
        monotone: rates never rise.
        num_bytes: a budget for the whole run, forward and backward, of all ranks; 0 for none. It is kept only as far as
            `most` allows.
    """

    theta: float = 0.5
    most: float = 0.0
    least: float = 1.0
    epochs: int = 200
    tail: float = 0.05
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

    @property
    def first_exact_epoch(self) -> int:
        """Where the tail begins; beyond the run if there is none."""
        return self.epochs - round(self.tail * self.epochs) + 1

    def rate(self, context: RateContext) -> float:
        most = self.most or max(context.first_rate, self.least)
        if context.epoch >= self.first_exact_epoch and self.tail > 0:
            return 1.0
        wanted = self._wanted(context, most)
        return max(wanted, self._affordable(context, most)) if self.num_bytes else wanted

    @property
    def end(self) -> tuple[int, float] | None:
        return (self.first_exact_epoch, 1.0) if round(self.tail * self.epochs) else None

    def _wanted(self, context: RateContext, most: float) -> float:
        if not context.measured:
            return most
        last = context.measured[-1]
        before = last.rates.get(context.layer, most)
        longest = max(one.gradient_norm for one in context.measured)
        target = self.theta**2 * (last.gradient_norm / longest) ** 2 if longest > 0 else 0.0
        error = last.errors.get(context.layer, 0.0)
        rate = before
        if error > target or self._is_stuck(context.measured):
            rate = before / 2
        elif error < target / 8 and not self.monotone:
            rate = before * 2
        return min(max(rate, self.least), most)

    def _is_stuck(self, measured: tuple[Measured, ...]) -> bool:
        # Asked once per `patience` epochs, so that one plateau does not take all rates down at once.
        if not self.patience or len(measured) % self.patience or len(measured) < 2 * self.patience:
            return False
        recent = min(one.loss for one in measured[-self.patience :])
        return recent > 0.99 * min(one.loss for one in measured[: -self.patience])

    def _affordable(self, context: RateContext, most: float) -> float:
        """Returns the lowest rate whose epochs, up to the tail, the budget pays for."""
        assert context.costs is not None
        num_coded = max(self.first_exact_epoch - context.epoch, 1)
        num_exact = self.epochs - context.epoch + 1 - num_coded
        left = self.num_bytes - sum(one.num_bytes for one in context.measured)
        left -= num_exact * context.costs.of_epoch(1.0)
        rate = 1.0
        while rate < most and num_coded * context.costs.of_epoch(rate) > left:
            rate *= 2
        return min(rate, most)
