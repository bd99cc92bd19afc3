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
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.comm.grid import Axis as AxisName
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.comm.traffic import all_to_all_traffic

# Shapes: N rows of the own block, M rows of the others, W features


class Stage(NamedTuple):
    """One rank of a line sends, and one receives.

    Args:
        to: who gets rows of this rank.
        of: whose rows come.
        rows: where they stand among the rows of the others.
    """

    to: int
    of: int
    rows: slice


class Axis(ABC):
    """One axis, as one rank sees it."""

    @property
    @abstractmethod
    def num_others(self) -> int:
        """M: rows that come from other ranks."""

    @abstractmethod
    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        """Sends the rows x of the own block, (N, W), to whoever needs them; what is waited for is (M, W).

        Args:
            widest: the largest W of any rank; all ranks cut messages alike by it.
        """

    @abstractmethod
    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        """Sends rows, one for each that `start_expand` brings, (M, W), to their owners."""

    @abstractmethod
    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        """Adds what a fold brought to the rows of the own block, (N, W), in place."""


class PlacedAxis(Axis):
    """An axis of a placement, the same in every product."""

    @abstractmethod
    def booked(self, ledger: Ledger) -> "PlacedAxis":
        """Returns an axis that brings nothing and books in `ledger` what this one would move."""


class LineAxis(PlacedAxis):
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
    """An axis along which rows really travel.

    Args:
        lists: who sends which rows to whom.
        line: the ranks of the line, in order; where it is told, rows may travel in stages, from rank to rank.
    """

    def __init__(self, lists: RowExchange, line: Sequence[int] = ()) -> None:
        self.lists = lists
        self.splits = lists.splits
        self._line = tuple(line)

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
        splits = Splits(send, receive, largest)
        return AxisExchange.of_blocks(communicator, splits, block_sizes[rank], grid.line(rank, axis))

    @staticmethod
    def of_blocks(communicator: Communicator, splits: Splits, num_own: int, line: Sequence[int] = ()) -> "AxisExchange":
        """All rows of the own block go to every rank that `splits` has something for."""
        send_rows = torch.arange(num_own).repeat(sum(1 for size in splits.send if size))
        return AxisExchange(RowExchange(communicator, send_rows, splits, num_own), line)

    @staticmethod
    def sparse(
        communicator: Communicator, wanted: list[Tensor], num_own: int, line: Sequence[int] = ()
    ) -> "AxisExchange":
        """Only rows that are wanted travel; `wanted` has for each rank the numbers it gives to the rows needed here."""
        return AxisExchange(RowExchange.agree(communicator, wanted, num_own), line)

    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        assert x.shape[0] == self.lists.num_owned, f"{x.shape[0]} rows, not the {self.lists.num_owned} of the block"
        return self._start(x.detach().index_select(0, self.lists.send_rows), self.splits, widest)

    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        assert partial.shape[0] == self.num_others, f"{partial.shape[0]} rows, not the {self.num_others} of the others"
        return self._start(partial.detach(), self.splits.reversed, widest)

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        self.lists.add_back(arrived, into)

    def keep_largest(self, arrived: Tensor, into: Tensor) -> None:
        into.scatter_reduce_(0, self.lists.send_rows.unsqueeze(1).expand_as(arrived), arrived, "amax")

    @property
    def stages(self) -> list[Stage]:
        """Who sends to this rank, and to whom it sends, one after the other; as many on all ranks of a line."""
        at, size = self._line.index(self.lists.communicator.rank), len(self._line)
        starts = np.append(0, np.cumsum(self.splits.receive))
        return [
            Stage(to=self._line[(at + step) % size], of=of, rows=slice(int(starts[of]), int(starts[of + 1])))
            for step in range(1, size)
            for of in [self._line[(at - step) % size]]
        ]

    def expanded(self, x: Tensor, widest: int) -> Iterator[tuple[Stage, Tensor]]:
        """Yields the rows of the others stage by stage; while those of one are worked with, the next are under way.

        Whoever takes them lets go of one stage's rows before asking for the next: two are there at most.
        """
        stages = self.stages
        coming = self._start_stage(x, stages[0], widest) if stages else None
        for number, stage in enumerate(stages):
            assert coming is not None
            arrived = coming
            coming = self._start_stage(x, stages[number + 1], widest) if number + 1 < len(stages) else None
            rows = [arrived.wait()]
            del arrived
            yield stage, rows.pop()

    def _start_stage(self, x: Tensor, stage: Stage, widest: int) -> Pending[Tensor]:
        send_rows = self._sent_to(stage.to)
        splits = self._only(self.splits, stage.to, stage.of)
        return self._start(x.detach().index_select(0, send_rows), splits, widest)

    def start_fold_stage(self, partial: Tensor, stage: Stage, widest: int) -> Pending[Tensor]:
        """Sends the sums for the rows that a stage brings to their owner."""
        return self._start(partial.detach(), self._only(self.splits.reversed, stage.of, stage.to), widest)

    def add_folded_stage(self, arrived: Tensor, stage: Stage, into: Tensor) -> None:
        """Adds what a stage of a fold brought to the rows of the own block, in place."""
        into.index_add_(0, self._sent_to(stage.to), arrived)

    def _sent_to(self, rank: int) -> Tensor:
        first = sum(self.splits.send[:rank])
        return self.lists.send_rows[first : first + self.splits.send[rank]]

    def _only(self, splits: Splits, to: int, of: int) -> Splits:
        return Splits(
            tuple(size if rank == to else 0 for rank, size in enumerate(splits.send)),
            tuple(size if rank == of else 0 for rank, size in enumerate(splits.receive)),
            splits.largest,
        )

    def _start(self, rows: Tensor, splits: Splits, widest: int) -> Pending[Tensor]:
        # As single words: slices of features differ in width from line to line, and one operation has one width.
        words = self.lists.communicator.start_all_to_all(rows.reshape(-1), _in_words(splits, rows.shape[1], widest))
        return words.then(lambda flat: flat.view(-1, rows.shape[1]))


class BookedAxis(LineAxis):
    """Books what an axis with these splits moves, and brings nothing."""

    def __init__(self, splits: Splits, ledger: Ledger) -> None:
        self.splits = splits
        self._ledger = ledger

    @property
    def num_others(self) -> int:
        return 0

    def start_expand(self, x: Tensor, widest: int = 0) -> Pending[Tensor]:
        return self._book(x, is_back=False)

    def start_fold(self, partial: Tensor, widest: int = 0) -> Pending[Tensor]:
        return self._book(partial, is_back=True)

    # As a route of rows.
    start = start_expand
    start_back = start_fold

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def keep_largest(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def _book(self, rows: Tensor, *, is_back: bool) -> Pending[Tensor]:
        splits = self.splits.reversed if is_back else self.splits
        book(self._ledger, splits, rows.shape[1:].numel() * rows.itemsize)
        return Pending.done(rows.new_empty(0, *rows.shape[1:]))


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
