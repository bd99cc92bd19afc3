"""What a schedule is: the rate of every message, as a plain function of things that all ranks know alike.

    rate = schedule.rate(RateContext(epoch=7, layer=1, sender=0, receiver=2))

Both ends of a message ask for its rate and must get the same, so a schedule draws nothing, counts nothing and looks at
no clock: what it goes by is in the context, and that is equal on all ranks. Gradients come back at the rate of the rows
they belong to. Rate 1 sends rows as they are. A new one is a frozen dataclass in a file here and a line in the table of
`schedules/__init__.py`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

from laconic.comm.codecs.base import PAPER_RATE
from laconic.errors import ConfigError


class Line(NamedTuple):
    """A layer's messages from one rank to another, and the gradients that come back."""

    layer: int
    sender: int
    receiver: int


@final
@dataclass(frozen=True)
class Costs:
    """What the lines of an epoch cost.

    Args:
        lines: all lines between all ranks that carry something, in the order in which a run comes to them.
        num_bytes: bytes of a line in one epoch at a rate, both ways.
        first_epoch: from which on this holds: later than the first where the graph has changed.
        spent: bytes of all lines before it.
    """

    lines: tuple[Line, ...]
    num_bytes: Callable[[Line, float], int]
    first_epoch: int = 1
    spent: int = 0

    def of_epoch(self, rate: float) -> int:
        """Returns the bytes of all lines in one epoch at one rate."""
        return sum(self.num_bytes(line, rate) for line in self.lines)


class LineMeasure(NamedTuple):
    """What an epoch showed of a line: its rate, the squared error of decoded rows, and the square of those rows."""

    rate: float
    lost: float
    sent: float


@final
@dataclass(frozen=True, eq=False)
class Measured:
    """What a finished epoch showed; the same on all ranks.

    Args:
        loss: the training loss.
        gradient_norm: of the gradient that the optimizer got.
        gradient_change: squared distance of that gradient from the one of the epoch before.
        num_bytes: of the coded messages of this epoch.
        lines: of each line.
    """

    loss: float
    gradient_norm: float
    gradient_change: float
    num_bytes: int
    lines: dict[Line, LineMeasure]

    @property
    def lost(self) -> float:
        """The squared error of all lines."""
        return sum(line.lost for line in self.lines.values())

    @property
    def sent(self) -> float:
        """The square of all rows."""
        return sum(line.sent for line in self.lines.values())


@final
@dataclass(frozen=True)
class RateContext:
    """What a schedule may go by; equal on all ranks.

    Args:
        epoch: the first is 1.
        layer, sender, receiver: the line.
        costs: of all lines; None where no schedule asks.
        measured: of each epoch before this one; empty where no schedule asks.
        first_rate: the rate to begin with where a schedule is not told one.
    """

    epoch: int
    layer: int = 0
    sender: int = 0
    receiver: int = 1
    costs: Costs | None = None
    measured: tuple[Measured, ...] = ()
    first_rate: float = PAPER_RATE

    @property
    def line(self) -> Line:
        return Line(self.layer, self.sender, self.receiver)


class Schedule(ABC):
    """Rates over a run. The fields of a member are its whole configuration."""

    needs_costs: ClassVar[bool] = False
    """Whether it asks for `RateContext.costs`."""
    needs_measured: ClassVar[bool] = False
    """Whether it asks for `RateContext.measured`, which costs a little traffic in every epoch."""
    is_falling: ClassVar[bool] = True
    """Whether rates never rise: what the paper's convergence asks for."""

    @abstractmethod
    def rate(self, context: RateContext) -> float:
        """Returns the rate of a line in an epoch, 1 or more."""

    @property
    @abstractmethod
    def end(self) -> tuple[int, float] | None:
        """The epoch from which the rate does not change any more, and that rate; None where the run decides."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The highest rate that it was told; 0 where the graph decides."""

    def check_costs(self, costs: Costs, first_rate: float) -> None:  # noqa: B027
        """Raises ConfigError, before the first epoch, if what it was told to keep to cannot be kept to.

        Args:
            costs, first_rate: as in `RateContext`.
        """


def check_rate(name: str, value: float) -> None:
    """Raises ConfigError unless a rate is 1 or more."""
    if not (math.isfinite(value) and value >= 1):
        raise ConfigError(
            f"schedule {name} should be a rate of 1 or more (1 sends rows as they are, 4 a quarter of their bytes); "
            f"got {value}."
        )


def check_range(name: str, most: float, least: float, epochs: int) -> None:
    """Raises ConfigError unless a schedule can go from `most` (0: chosen by the graph) down to `least` in `epochs`."""
    check_rate(f"{name}: least", least)
    if most:
        check_rate(f"{name}: most", most)
    if most and most < least:
        raise ConfigError(f"schedule {name} goes from most to least, but most is {most:g} and least is {least:g}.")
    check_epochs(name, epochs)


def check_epochs(name: str, epochs: int, fewest: int = 3) -> None:
    """Raises ConfigError unless `epochs` leaves room for a schedule."""
    if epochs < fewest:
        raise ConfigError(
            f"schedule {name}: epochs should be those of the whole run, {fewest} or more, as in "
            f"training.epochs; got {epochs}."
        )
