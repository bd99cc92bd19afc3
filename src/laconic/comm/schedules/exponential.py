"""exponential: the rate falls by the same share in every epoch."""

from dataclasses import dataclass
from typing import final

from laconic.comm.schedules.base import RateContext, Schedule, check_range


@final
@dataclass(frozen=True, slots=True)
class Exponential(Schedule):
    """Falls from `most` to `least` over the whole run: most (least / most) ** (k / (epochs - 2)) in epoch k + 1.

    Args:
        most, least: the first and the last rate; most=0 takes the one that the graph's cut suggests.
        epochs: of the whole run.
    """

    most: float = 0.0
    least: float = 1.0
    epochs: int = 200

    def __post_init__(self) -> None:
        check_range("exponential", self.most, self.least, self.epochs)

    def rate(self, context: RateContext) -> float:
        most = self.most or max(context.first_rate, self.least)
        share = min((context.epoch - 1) / (self.epochs - 2), 1.0)
        # Powers round: exactly `least` at the end.
        return self.least if share == 1.0 else max(most * (self.least / most) ** share, self.least)

    @property
    def largest(self) -> float:
        return max(self.most, self.least)

    @property
    def end(self) -> tuple[int, float] | None:
        return self.epochs - 1, self.least
