"""budget: so many bytes for the whole run, and not one message more."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

from laconic.comm.schedules.base import Costs, Line, RateContext, Schedule, check_epochs, check_rate
from laconic.errors import ConfigError
from laconic.units import format_bytes


@final
@dataclass(frozen=True, slots=True)
class Budget(Schedule):
    """The cheapest rate as long as it has to be, then rate 1: late messages matter most, where gradients are small.

    The switch comes at the line at which what is left pays for all that follow at rate 1, so the run costs what it may,
    less than one line's messages of one epoch. Counted are forward and backward messages of all ranks.

    Args:
        num_bytes: for the whole run.
        most: the cheapest rate; 0 takes the one that the graph's cut suggests.
        epochs: of the whole run; later epochs go at `most`.
    """

    num_bytes: int = 0
    most: float = 0.0
    epochs: int = 200
    needs_costs: ClassVar[bool] = True
    is_falling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.most:
            check_rate("budget: most", self.most)
        check_epochs("budget", self.epochs, 1)
        if self.num_bytes < 0:
            raise ConfigError(f"schedule budget: num_bytes should be 0 or more; got {self.num_bytes}.")

    def check_costs(self, costs: Costs, first_rate: float) -> None:
        _switch(costs, self.most or first_rate, self.epochs, self.num_bytes)

    def rate(self, context: RateContext) -> float:
        assert context.costs is not None
        most = self.most or context.first_rate
        if context.epoch > self.epochs:
            return most
        epoch, index = _switch(context.costs, most, self.epochs, self.num_bytes)
        place = (context.epoch, _index(context.costs)[context.line])
        return 1.0 if place >= (epoch, index) else most

    @property
    def largest(self) -> float:
        return self.most

    @property
    def end(self) -> tuple[int, float] | None:
        return None


@lru_cache(maxsize=8)
def _index(costs: Costs) -> dict[Line, int]:
    return {line: number for number, line in enumerate(costs.lines)}


@lru_cache(maxsize=8)
def _switch(costs: Costs, most: float, epochs: int, num_bytes: int) -> tuple[int, int]:
    """Returns the epoch, and the line in it, from which on everything goes at rate 1."""
    cheap, full = costs.of_epoch(most), costs.of_epoch(1.0)
    passed = costs.first_epoch - 1
    epochs -= passed
    least, left = epochs * cheap, num_bytes - costs.spent
    if left < least:
        of_all = f"the {num_bytes} bytes of num_bytes" if not passed else f"the {left} that are left of {num_bytes}"
        raise ConfigError(
            f"schedule budget: {epochs} epochs cost {format_bytes(least)} at least ({least} bytes, at rate {most:g}; "
            f"{cheap} in the first), more than {of_all}. Give more, or a higher `most`."
        )
    left -= least
    if full <= cheap:
        return passed + 1, 0
    num_full = min(left // (full - cheap), epochs)
    left -= num_full * (full - cheap)
    epoch, index = epochs - num_full, len(costs.lines)
    # In the epoch before the first full one, the last lines as far as it goes.
    while epoch and index:
        line = costs.lines[index - 1]
        left -= costs.num_bytes(line, 1.0) - costs.num_bytes(line, most)
        if left < 0:
            break
        index -= 1
    epoch += passed
    return (epoch, index) if index < len(costs.lines) else (epoch + 1, 0)
