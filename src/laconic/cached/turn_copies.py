"""TurnCopies: the rows of a turn of tensors that never change, so that their copies still count as constant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class _Part:
    """Some rows of a constant, the room that they stand in, and how often all had been changed in place by then."""

    rows: Tensor
    room: Tensor
    whole: Tensor
    versions: tuple[int, int]

    @staticmethod
    def of(rows: Tensor, room: Tensor, whole: Tensor) -> "_Part":
        # Rows and the room that they are a view of count together.
        return _Part(rows, room, whole, (rows._version, whole._version))

    @property
    def is_intact(self) -> bool:
        return (self.rows._version, self.whole._version) == self.versions


@final
class TurnCopies:
    """Parts of a turn. When it is over, those of the next are written over them: wide features are copied once."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._spent: list[_Part] = []

    def end_turn(self) -> None:
        self._parts, self._spent = [], self._parts

    def whole_of(self, x: Tensor) -> Tensor:
        """Returns the constant that x is a part of; x itself if it is of none."""
        return next((part.whole for part in self._parts if part.rows is x and part.is_intact), x)

    def of(self, whole: Tensor, make: Callable[[Tensor | None], tuple[Tensor, Tensor]]) -> Tensor:
        """Returns the part of `whole`, made now or earlier in this turn.

        Args:
            make: returns the rows and the room that they stand in; gets the room of the turn before, if there is one.
        """
        for part in self._parts:
            if part.whole is whole and part.is_intact:
                return part.rows
        spent = next((part.room for part in self._spent if part.whole is whole and part.is_intact), None)
        part = _Part.of(*make(spent), whole)
        self._parts.append(part)
        return part.rows
