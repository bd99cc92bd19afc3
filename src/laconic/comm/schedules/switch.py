"""switch: one rate, and from some epoch on another."""

from dataclasses import dataclass
from typing import ClassVar, final

from laconic.comm.schedules.base import RateContext, Schedule, check_rate
from laconic.errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class Switch(Schedule):
    """`first` until `at`, `then` from there on: for codecs that leave columns out, the best use of a number of bytes.

    Args:
        first: 0 takes the rate that the graph's cut suggests.
        then: 1 sends rows as they are.
        at: the first epoch of `then`.
    """

    first: float = 0.0
    then: float = 1.0
    at: int = 181
    is_falling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.first:
            check_rate("switch: first", self.first)
        check_rate("switch: then", self.then)
        if self.at < 2:
            raise ConfigError(f"schedule switch: at should be an epoch after the first, 2 or more; got {self.at}.")

    def rate(self, context: RateContext) -> float:
        return self.then if context.epoch >= self.at else self.first or context.first_rate

    @property
    def largest(self) -> float:
        return max(self.first, self.then)

    @property
    def end(self) -> tuple[int, float] | None:
        return self.at, self.then
