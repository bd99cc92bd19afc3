"""Splits: how many rows go from rank to rank."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Splits:
    """How many rows this rank sends to, and receives from, each rank; agreed on by all (`agree_on_splits`).

    Args:
        send: rows for each rank.
        receive: rows from each rank.
        largest: rows of the largest part between any two ranks, the same number on all of them.
    """

    send: tuple[int, ...]
    receive: tuple[int, ...]
    largest: int

    @property
    def reversed(self) -> "Splits":
        """The way back: what was received is sent."""
        return Splits(self.receive, self.send, self.largest)
