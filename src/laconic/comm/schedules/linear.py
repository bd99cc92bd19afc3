"""linear: the rate falls along a line (VARCO, arXiv 2406.17611)."""

from dataclasses import dataclass
from typing import final

from laconic.comm.schedules.base import RateContext, Schedule, check_range
from laconic.errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class Linear(Schedule):
    """Falls from `most` to `least`, `slope` times as fast as it would take the whole run, and stays there.

    max(most - slope k (most - least) / (epochs - 2), least) in epoch k + 1: with slope 5 it has arrived after a fifth
    of the run, so four fifths of the messages go at `least`.

    Args:
        slope: the paper tries 2 to 7.
        most, least: the first and the last rate; most=0 takes the one that the graph's cut suggests.
        epochs: of the whole run.
    """

    slope: float = 5.0
    most: float = 0.0
    least: float = 1.0
    epochs: int = 200

    def __post_init__(self) -> None:
        check_range("linear", self.most, self.least, self.epochs)
        if not self.slope > 0:
            raise ConfigError(f"schedule linear: slope should be above 0, such as 5; got {self.slope:g}.")

    def rate(self, context: RateContext) -> float:
        most = self.most or max(context.first_rate, self.least)
        share = self.slope * (context.epoch - 1) / (self.epochs - 2)
        # Sums round: exactly `least` at the end.
        return self.least if share >= 1 else most - share * (most - self.least)

    @property
    def largest(self) -> float:
        return max(self.most, self.least)

    @property
    def end(self) -> tuple[int, float] | None:
        # Rounded up: the first epoch at which the line has been left.
        return 1 + -int(-(self.epochs - 2) // self.slope), self.least
