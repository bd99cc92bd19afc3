"""RowExchange: every rank gets rows that it lacks from the ranks that own them, and gives what it made of them back.

This is the expand step along one axis of a process grid, restricted to the rows that are needed, and its adjoint:

    halo = exchange.start(x).wait()               # forward: the rows that others own, grouped by owner
    back = exchange.start_back(grad_halo).wait()  # backward: what others made of ours, grouped by who needed it
    exchange.add_back(back, grad_x)

The lists are agreed on once; after that no index travels.
"""

from collections.abc import Sequence
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from laconic.comm.communicator import Communicator, Splits
from laconic.comm.pending import Pending
from laconic.kernels.balance import balanced_rows
from laconic.kernels.compile import use_threads
from laconic.kernels.compress import compress_edges
from laconic.kernels.product import PREFETCH_DISTANCE, no_factor, sparse_product

# Shapes: N owned rows, S rows sent, H rows received


@runtime_checkable
class Route(Protocol):
    """How rows go to those who need them, and what was made of them back: as they are (RowExchange), or coded."""

    def start(self, x: Tensor) -> Pending[Tensor]: ...

    def start_back(self, halo: Tensor) -> Pending[Tensor]: ...


@final
class RowExchange:
    """Who sends which rows to whom, fixed at the start.

    Args:
        communicator: how ranks talk.
        send_rows: the owned rows that go out, grouped by receiving rank, int64 (S,); a row may be in several groups.
        splits: how many of them go to, and how many rows come from, each rank.
        num_owned: N.
        version: of the lists; those of a graph that has changed have another.
    """

    def __init__(
        self, communicator: Communicator, send_rows: Tensor, splits: Splits, num_owned: int, *, version: int = 0
    ) -> None:
        assert len(send_rows) == sum(splits.send)
        self.communicator = communicator
        self.send_rows = send_rows
        self.splits = splits
        self.num_owned = num_owned
        self.version = version
        # The sum of what comes back, row by row, is a sparse product: entry (row, position in the message) is 1.
        positions = np.arange(len(send_rows))
        self._back_indptr, self._back_indices, _ = compress_edges(
            positions, send_rows.numpy(), num_owned, max(len(send_rows), 1)
        )

    @staticmethod
    def agree(communicator: Communicator, wanted: Sequence[Tensor], num_owned: int) -> "RowExchange":
        """Tells each rank which of its rows are wanted here, and learns which of ours are wanted there.

        Args:
            wanted: for each rank, the numbers that it gives to the rows we need of it, int64; none of our own.
            num_owned: how many rows we own.
        """
        asked = communicator.agree_on_splits([len(rows) for rows in wanted])
        send_rows = communicator.all_to_all(torch.cat(list(wanted)), asked)
        assert not len(send_rows) or 0 <= int(send_rows.min()) <= int(send_rows.max()) < num_owned
        return RowExchange(communicator, send_rows, asked.reversed, num_owned)

    @staticmethod
    def of_nothing(communicator: Communicator, num_owned: int) -> "RowExchange":
        """Returns an exchange in which no row travels."""
        nothing = (0,) * communicator.num_ranks
        return RowExchange(communicator, torch.empty(0, dtype=torch.int64), Splits(nothing, nothing, 0), num_owned)

    @property
    def num_received(self) -> int:
        """H: rows that come from other ranks."""
        return sum(self.splits.receive)

    def start(self, x: Tensor) -> Pending[Tensor]:
        """Sends the rows of x, (N, ...), that others need; what is waited for are the rows needed here, (H, ...)."""
        assert x.shape[0] == self.num_owned, f"{x.shape[0]} rows, not the {self.num_owned} that are owned"
        return self.communicator.start_all_to_all(x.detach().index_select(0, self.send_rows), self.splits)

    def start_back(self, halo: Tensor) -> Pending[Tensor]:
        """Sends rows, one for each received, (H, ...), to their owners; what is waited for is (S, ...)."""
        assert halo.shape[0] == self.num_received, f"{halo.shape[0]} rows, not the {self.num_received} that came"
        return self.communicator.start_all_to_all(halo.detach(), self.splits.reversed)

    def add_back(self, back: Tensor, into: Tensor) -> None:
        """Adds rows that came back, (S, F), to the owned rows they belong to, in place."""
        if not len(back):
            return
        if back.device.type != "cpu" or back.dtype not in (torch.float32, torch.float64) or back.dim() != 2:
            into.index_add_(0, self.send_rows, back)
            return
        none = no_factor(np.dtype(back.numpy().dtype))
        sparse_product(
            balanced_rows(self._back_indptr, use_threads(torch.get_num_threads(), back.numel())),
            self._back_indptr,
            self._back_indices,
            none,
            none,
            none,
            none,
            False,
            back.contiguous().numpy(),
            into.detach().numpy(),
            True,
            PREFETCH_DISTANCE,
        )
