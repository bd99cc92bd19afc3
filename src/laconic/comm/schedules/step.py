"""step: rates that hold from one epoch to another."""

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar, final

from laconic.comm.schedules.base import RateContext, Schedule, check_rate
from laconic.errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class Step(Schedule):
    """Each of `rates` holds until the next begins, at the epochs in `at`.

    step(rates=(1.0, 16.0, 1.0), at=(2, 191)) sends the first epoch as it is, then a sixteenth, and from epoch 191 on
    all again.

    Args:
        rates: one more than there are changes.
        at: the epochs at which the second and later rates begin, rising.
    """

    rates: tuple[float, ...] = (32.0, 8.0, 1.0)
    at: tuple[int, ...] = (67, 134)
    is_falling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for rate in self.rates:
            check_rate("step: each of rates", rate)
        is_rising = all(before < after for before, after in itertools.pairwise((1, *self.at)))
        if len(self.rates) != len(self.at) + 1 or not is_rising:
            raise ConfigError(
                f"schedule step needs one more rate than epochs at which they change, and these rising from 2, such as "
                f"step(rates=(16.0, 4.0, 1.0), at=(50, 100)); got rates={self.rates}, at={self.at}."
            )

    def rate(self, context: RateContext) -> float:
        return float(self.rates[bisect_right(self.at, context.epoch)])

    @property
    def largest(self) -> float:
        return float(max(self.rates))

    @property
    def end(self) -> tuple[int, float] | None:
        return (self.at or (1,))[-1], float(self.rates[-1])
