"""Rows gathered along an axis of the grid (expand), and sums scattered along it (fold): each is the other's adjoint.

    others = axis.start_expand(x, widest).wait()         # the rows that the other ranks of the line own
    back = axis.start_fold(partial, widest).wait()       # what they have summed up for ours
    axis.add_folded(back, into)

The lists of rows are fixed at the start: all rows of a block, or only those that some edge needs. A line of a grid is a
subset of the ranks; its steps are all-to-alls of all ranks with nothing between lines. That works over every transport,
books what a line moves and no more, and fails like every other operation; a group of its own for each line would need
sockets, timeouts and failure notices of its own, to save empty messages that carry no payload.
"""

from abc import ABC, abstractmethod
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.communicator import Communicator, PendingRows
from laconic.comm.exchange import RowExchange
from laconic.comm.grid import Axis as AxisName
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.splits import Splits
from laconic.comm.traffic import all_to_all_traffic

# Shapes: N rows of the own block, M rows of the others, W features


class Arrival(Protocol):
    """Rows that are on their way."""

    def wait(self) -> Tensor:
        """Returns the rows when they are there."""


class Axis(ABC):
    """One axis, as one rank sees it."""

    @property
    @abstractmethod
    def num_others(self) -> int:
        """M: rows that come from other ranks."""

    @abstractmethod
    def start_expand(self, x: Tensor, widest: int) -> Arrival:
        """Sends the rows x of the own block, (N, W), to whoever needs them; what is waited for is (M, W).

        Args:
            widest: the largest W of any rank; all ranks cut messages alike by it.
        """

    @abstractmethod
    def start_fold(self, partial: Tensor, widest: int) -> Arrival:
        """Sends rows, one for each that `start_expand` brings, (M, W), to their owners."""

    @abstractmethod
    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        """Adds what a fold brought to the rows of the own block, (N, W), in place."""

    @abstractmethod
    def booked(self, ledger: Ledger) -> "Axis":
        """Returns an axis that brings nothing and books in `ledger` what this one would move."""


class LineAxis(Axis):
    """An axis whose ranks are one line: what a fold brings need not be summed."""

    splits: Splits
    """How many rows this rank sends to, and receives from, each rank when it expands; folding is the way back."""

    @abstractmethod
    def keep_largest(self, arrived: Tensor, into: Tensor) -> None:
        """Keeps the larger of each number of the own block, (N, W), and what a fold brought for it, in place."""

    def booked(self, ledger: Ledger) -> "LineAxis":
        return BookedAxis(self.splits, ledger)


@final
class AxisExchange(LineAxis):
    """An axis along which rows really travel."""

    def __init__(self, lists: RowExchange) -> None:
        self._lists = lists
        self.splits = lists.splits

    @property
    def num_others(self) -> int:
        return sum(self.splits.receive)

    @staticmethod
    def dense(communicator: Communicator, grid: Grid, axis: AxisName, block_sizes: list[int]) -> "AxisExchange":
        """All rows of every block travel; nothing has to be agreed on.

        Args:
            block_sizes: rows of the block of each rank.
        """
        rank = communicator.rank
        peers = [peer for peer in grid.line(rank, axis) if peer != rank]
        send = tuple(block_sizes[rank] if peer in peers else 0 for peer in range(grid.num_ranks))
        receive = tuple(block_sizes[peer] if peer in peers else 0 for peer in range(grid.num_ranks))
        # Every rank stands on a line as long as this one.
        largest = max(block_sizes) if peers else 0
        return AxisExchange.of_blocks(communicator, Splits(send, receive, largest), block_sizes[rank])

    @staticmethod
    def of_blocks(communicator: Communicator, splits: Splits, num_own: int) -> "AxisExchange":
        """All rows of the own block go to every rank that `splits` has something for."""
        send_rows = torch.arange(num_own).repeat(sum(1 for size in splits.send if size))
        return AxisExchange(RowExchange(communicator, send_rows, splits, num_own))

    @staticmethod
    def sparse(communicator: Communicator, wanted: list[Tensor], num_own: int) -> "AxisExchange":
        """Only rows that are wanted travel; `wanted` has for each rank the numbers it gives to the rows needed here."""
        return AxisExchange(RowExchange.agree(communicator, wanted, num_own))

    def start_expand(self, x: Tensor, widest: int) -> Arrival:
        assert x.shape[0] == self._lists.num_owned, f"{x.shape[0]} rows, not the {self._lists.num_owned} of the block"
        return self._start(x.detach().index_select(0, self._lists.send_rows), self.splits, widest)

    def start_fold(self, partial: Tensor, widest: int) -> Arrival:
        assert partial.shape[0] == self.num_others, f"{partial.shape[0]} rows, not the {self.num_others} of the others"
        return self._start(partial.detach(), self.splits.reversed, widest)

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        self._lists.add_back(arrived, into)

    def keep_largest(self, arrived: Tensor, into: Tensor) -> None:
        into.scatter_reduce_(0, self._lists.send_rows.unsqueeze(1).expand_as(arrived), arrived, "amax")

    def _start(self, rows: Tensor, splits: Splits, widest: int) -> Arrival:
        # As single words: slices of features differ in width from line to line, and one operation has one width.
        words = self._lists.communicator.start_all_to_all(rows.reshape(-1), _in_words(splits, rows.shape[1], widest))
        return _Rows(words, rows.shape[1])


@final
class BookedAxis(LineAxis):
    """Books what an axis with these splits moves, and brings nothing."""

    def __init__(self, splits: Splits, ledger: Ledger) -> None:
        self.splits = splits
        self._ledger = ledger

    @property
    def num_others(self) -> int:
        return 0

    def start_expand(self, x: Tensor, widest: int) -> Arrival:
        return self._book(x, self.splits)

    def start_fold(self, partial: Tensor, widest: int) -> Arrival:
        return self._book(partial, self.splits.reversed)

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def keep_largest(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def _book(self, rows: Tensor, splits: Splits) -> Arrival:
        book(self._ledger, splits, rows.shape[1] * rows.itemsize)
        return Arrived(rows.new_empty(0, rows.shape[1]))


@final
class Arrived:
    """Rows that are there."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def wait(self) -> Tensor:
        return self._rows


def book(ledger: Ledger, splits: Splits, num_bytes: int) -> None:
    """Counts an all_to_all by these splits, of `num_bytes` for each of what they count."""
    sent, received = ([size * num_bytes for size in sizes] for sizes in (splits.send, splits.receive))
    ledger.count("all_to_all", *all_to_all_traffic(ledger.rank, sent, received))


def wanted_of_line(grid: Grid, rank: int, axis: AxisName, places: np.ndarray, starts: np.ndarray) -> list[Tensor]:
    """Returns for each rank the numbers within its block of those `places` that lie in it; for ranks of one line only.

    Args:
        places: sorted, none of them in the own block.
        starts: where the block of each rank of the line begins, and where it ends, (P, 2).
    """
    wanted = [torch.empty(0, dtype=torch.int64) for _ in range(grid.num_ranks)]
    for peer in grid.line(rank, axis):
        first, end = np.searchsorted(places, starts[peer])
        if peer != rank:
            wanted[peer] = torch.from_numpy(places[first:end] - starts[peer, 0])
    return wanted


def _in_words(splits: Splits, width: int, widest: int) -> Splits:
    send, receive = (tuple(size * width for size in sizes) for sizes in (splits.send, splits.receive))
    return Splits(send, receive, splits.largest * widest)


@final
class _Rows:
    def __init__(self, words: PendingRows, width: int) -> None:
        self._words = words
        self._width = width

    def wait(self) -> Tensor:
        return self._words.wait().view(-1, self._width)
