"""Intervals: in which epochs the cache is refreshed; for Grappa, in which epochs super-epochs begin."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Intervals:
    """Intervals of `every` epochs; gradual ones have 1, 2, 4, ... epochs at first, while weights move fastest.

    The first epoch is 1, the first interval 0.
    """

    every: int
    is_gradual: bool = False

    def number(self, epoch: int) -> int:
        """Returns the interval that an epoch belongs to."""
        if epoch < self._first_whole:
            return epoch.bit_length() - 1
        return self._num_shorter + (epoch - self._first_whole) // self.every

    def first_epoch(self, number: int) -> int:
        """Returns the epoch with which an interval begins."""
        if number < self._num_shorter:
            return 1 << number
        return self._first_whole + (number - self._num_shorter) * self.every

    def begins_with(self, epoch: int) -> bool:
        """Whether an interval begins with an epoch."""
        return self.first_epoch(self.number(epoch)) == epoch

    def is_last(self, number: int, num_epochs: int | None) -> bool:
        """Whether a run of `num_epochs` ends in an interval; not where their number is unknown."""
        return num_epochs is not None and self.first_epoch(number + 1) > num_epochs

    @property
    def _num_shorter(self) -> int:
        return self.every.bit_length() if self.is_gradual else 0

    @property
    def _first_whole(self) -> int:
        """The epoch with which the first interval of `every` epochs begins."""
        return 1 << self._num_shorter
