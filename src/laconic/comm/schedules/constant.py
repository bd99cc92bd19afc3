"""constant: one rate for all messages of a run."""

from dataclasses import dataclass
from typing import final

from laconic.comm.schedules.base import RateContext, Schedule, check_rate


@final
@dataclass(frozen=True, slots=True)
class Constant(Schedule):
    """The same rate always."""

    value: float = 4.0

    def __post_init__(self) -> None:
        check_rate("constant: value", self.value)

    def rate(self, context: RateContext) -> float:
        return self.value

    @property
    def largest(self) -> float:
        return self.value

    @property
    def end(self) -> tuple[int, float] | None:
        return 1, self.value
