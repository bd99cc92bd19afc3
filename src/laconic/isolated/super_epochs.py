"""SuperEpochs: in which epochs super-epochs begin."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class SuperEpochs:
    """Super-epochs of `every` epochs; gradual ones have 1, 2, 4, ... epochs at first, while weights move fastest.

    The first epoch is 1, the first super-epoch 0.
    """

    every: int
    is_gradual: bool = False

    def number(self, epoch: int) -> int:
        """Returns the super-epoch that an epoch belongs to."""
        if epoch < self._first_whole:
            return epoch.bit_length() - 1
        return self._num_shorter + (epoch - self._first_whole) // self.every

    def first_epoch(self, number: int) -> int:
        """Returns the epoch with which a super-epoch begins."""
        if number < self._num_shorter:
            return 1 << number
        return self._first_whole + (number - self._num_shorter) * self.every

    def begins_with(self, epoch: int) -> bool:
        """Whether a super-epoch begins with an epoch."""
        return self.first_epoch(self.number(epoch)) == epoch

    @property
    def _num_shorter(self) -> int:
        return self.every.bit_length() if self.is_gradual else 0

    @property
    def _first_whole(self) -> int:
        """The epoch with which the first of `every` epochs begins."""
        return 1 << self._num_shorter
