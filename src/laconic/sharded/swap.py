"""Full-width rows become slices of features, and back: what the j-axis of the grid is for.

x_slice = swap.split(x)          # (own rows, F) -> (rows of the line's block, F / pj)
x = swap.join(x_slice, F)        # the way back, which is also the adjoint

Columns b_j = floor(F j / pj) to b_(j+1) are slice j. Of the pj ranks of a line, with N_i own rows each:

    split    rank j receives X_i[:, b_j : b_(j+1)] from each rank i of its line      N_i (b_(j+1) - b_j) words
    join     rank j receives Z_i[rows of j, :] from each rank i, its slice           N_j (b_(i+1) - b_i) words
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.splits import Splits
from laconic.errors import UnsupportedModelError
from laconic.sharded.axis import book

# Shapes: N own rows, B rows of the line's block, F features, W = about F / pj


def slice_bounds(width: int, pj: int) -> list[int]:
    """Returns where each of pj slices of `width` features begins, and where the last one ends."""
    return [width * j // pj for j in range(pj + 1)]


def widest_slice(width: int, pj: int) -> int:
    """Returns the width of the widest slice."""
    return -(-width // pj)


def swap_splits(grid: Grid, rank: int, sizes: list[int], width: int) -> Splits:
    """Returns how many words `split` moves; `join` moves them back.

    Args:
        sizes: own rows of each rank.
    """
    bounds, mine = slice_bounds(width, grid.pj), grid.coordinates_of(rank).j
    send, receive = [0] * grid.num_ranks, [0] * grid.num_ranks
    for j, peer in enumerate(grid.line(rank, "j")):
        send[peer] = sizes[rank] * (bounds[j + 1] - bounds[j])
        receive[peer] = sizes[peer] * (bounds[mine + 1] - bounds[mine])
    return Splits(tuple(send), tuple(receive), max(sizes) * widest_slice(width, grid.pj))


def check_width(width: int, pj: int) -> None:
    """Raises UnsupportedModelError where there are fewer features than ranks to slice them for."""
    if width < pj:
        raise UnsupportedModelError(
            f"A layer aggregates rows of {width} features, which the grid slices for pj={pj} ranks: some would have "
            f"none. Use a grid with a pj of at most {width}, such as 1d or 2d, or wider layers."
        )


class Swap(ABC):
    """The j-axis, as one rank sees it."""

    @abstractmethod
    def split(self, x: Tensor) -> Tensor:
        """Returns this rank's slice of the features, (B, W), for all rows of its line; x is (N, F)."""

    @abstractmethod
    def join(self, rows: Tensor, width: int) -> Tensor:
        """Returns the own rows in full width, (N, F), of slices (B, W)."""

    @abstractmethod
    def booked(self, ledger: Ledger) -> "Swap":
        """Returns a swap that moves nothing and books in `ledger` what this one would move."""


@final
class NoSwap(Swap):
    """Features are not sliced."""

    def split(self, x: Tensor) -> Tensor:
        return x

    def join(self, rows: Tensor, width: int) -> Tensor:
        return rows

    def booked(self, ledger: Ledger) -> "NoSwap":
        return self


@final
class SwapExchange(Swap):
    """A j-axis along which slices really travel.

    Args:
        sizes: own rows of each rank.
    """

    def __init__(self, communicator: Communicator, grid: Grid, sizes: list[int]) -> None:
        self._communicator = communicator
        self._grid = grid
        self._sizes = sizes

    def split(self, x: Tensor) -> Tensor:
        rank, pj, width = self._communicator.rank, self._grid.pj, x.shape[1]
        check_width(width, pj)
        bounds, mine = slice_bounds(width, pj), self._grid.coordinates_of(rank).j
        words = torch.cat([x[:, bounds[j] : bounds[j + 1]].reshape(-1) for j in range(pj)])
        splits = swap_splits(self._grid, rank, self._sizes, width)
        return self._communicator.all_to_all(words, splits).view(-1, bounds[mine + 1] - bounds[mine])

    def join(self, rows: Tensor, width: int) -> Tensor:
        rank = self._communicator.rank
        splits = swap_splits(self._grid, rank, self._sizes, width).reversed
        words = self._communicator.all_to_all(rows.reshape(-1), splits)
        pieces = words.split_with_sizes([splits.receive[peer] for peer in self._grid.line(rank, "j")])
        bounds, num_own = slice_bounds(width, self._grid.pj), self._sizes[rank]
        return torch.cat(
            [piece.view(num_own, end - first) for piece, first, end in zip(pieces, bounds, bounds[1:], strict=False)],
            dim=1,
        )

    def booked(self, ledger: Ledger) -> "BookedSwap":
        return BookedSwap(self._grid, self._sizes, ledger)


@final
class BookedSwap(Swap):
    """Books what a swap moves, and takes the own rows' slice for that of all."""

    def __init__(self, grid: Grid, sizes: list[int], ledger: Ledger) -> None:
        self._grid = grid
        self._sizes = sizes
        self._ledger = ledger

    def split(self, x: Tensor) -> Tensor:
        check_width(x.shape[1], self._grid.pj)
        book(self._ledger, self._splits(x.shape[1]), x.itemsize)
        bounds, mine = slice_bounds(x.shape[1], self._grid.pj), self._grid.coordinates_of(self._ledger.rank).j
        return x[:, bounds[mine] : bounds[mine + 1]].contiguous()

    def join(self, rows: Tensor, width: int) -> Tensor:
        book(self._ledger, self._splits(width).reversed, rows.itemsize)
        return rows.new_ones(len(rows), width)

    def booked(self, ledger: Ledger) -> "BookedSwap":
        return BookedSwap(self._grid, self._sizes, ledger)

    def _splits(self, width: int) -> Splits:
        return swap_splits(self._grid, self._ledger.rank, self._sizes, width)
