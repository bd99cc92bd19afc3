"""Sums of messages: an all_reduce in one round or in two, a reduce_scatter.

In one round every rank gets the whole tensor of every other. In two, rank r gets the r-th part of each, adds them up,
and sends the sum to all: 2 (P - 1) / P times the tensor, the least there is, and two messages one after the other on
any number of ranks. Sums are in rank order, so that they are the same bit by bit on all ranks and in every run.
"""

from collections.abc import Callable, Sequence
from typing import final

from torch import Tensor

from laconic.comm.transport._combine import combine_into
from laconic.comm.transport.base import Pending, Reduction


@final
class PendingSum(Pending):
    """Tensors from each rank, then their sum.

    Args:
        exchange: brings them.
        parts: where they come, in rank order; used up.
        out: becomes their sum; may be one of the parts.
    """

    def __init__(self, exchange: Pending, parts: Sequence[Tensor], out: Tensor, op: Reduction) -> None:
        self._exchange = exchange
        self._parts: Sequence[Tensor] | None = parts
        self._out = out
        self._op = op

    def wait(self) -> None:
        if self._parts is not None:
            self._exchange.wait()
            combine_into(self._out, self._parts, self._op)
            self._parts = None


@final
class TwoRounds(Pending):
    """An operation whose second round begins when the first is over.

    Args:
        first: the first round.
        start_second: starts the other.
    """

    def __init__(self, first: Pending, start_second: Callable[[], Pending]) -> None:
        self._first = first
        self._start_second = start_second
        self._second: Pending | None = None

    def begin_second(self) -> None:
        """Waits for the first round, and starts the second; again at no cost."""
        if self._second is None:
            self._first.wait()
            self._second = self._start_second()

    def wait(self) -> None:
        self.begin_second()
        assert self._second is not None
        self._second.wait()


def part_buffers(own: Tensor, rank: int, num_ranks: int) -> list[Tensor]:
    """Returns a tensor like `own` for the part of each rank; this rank's is `own` itself."""
    others = own.new_empty((num_ranks - 1, *own.shape)).unbind()
    return [*others[:rank], own, *others[rank:]]


def shares(num_rows: int, num_ranks: int) -> list[int]:
    """Returns how many of `num_rows` each rank adds up, as even as can be."""
    return [num_rows // num_ranks + (rank < num_rows % num_ranks) for rank in range(num_ranks)]
