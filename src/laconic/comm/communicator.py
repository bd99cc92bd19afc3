"""Communicator: what the rest of Laconic talks to other ranks with. Every operation is counted and none is unbounded.

    splits = communicator.agree_on_splits([len(rows) for rows in wanted])
    pending = communicator.start_all_to_all(rows, splits)
    ...                                          # work that needs no neighbour; leave rows alone
    received = pending.wait()

All ranks call the same operations in the same order. Arguments are any tensors, contiguous or not, and are never
changed: what comes back is a new tensor, outside of autograd. Large messages go in pieces; neither results nor counts
depend on the cutting. One rank alone gets its own data back, and books nothing.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from laconic.comm import _pieces as pieces
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.comm.traffic import (
    all_gather_traffic,
    all_reduce_traffic,
    all_to_all_traffic,
    broadcast_traffic,
    reduce_scatter_traffic,
)
from laconic.comm.transport import Reduction, Transport

__all__ = ["PIECE_BYTES", "Communicator", "Splits"]

PIECE_BYTES = pieces.PIECE_BYTES


@final
class Communicator:
    """How this rank talks to the others.

    Args:
        transport: moves the tensors.
        ledger: counts them.
        piece_bytes: most bytes that go from one rank to another in one piece.
    """

    def __init__(self, transport: Transport, ledger: Ledger, *, piece_bytes: int = PIECE_BYTES) -> None:
        assert ledger.rank == transport.rank
        assert piece_bytes > 0
        self.transport = transport
        self.ledger = ledger
        self._piece_bytes = piece_bytes

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.transport.rank

    @property
    def num_ranks(self) -> int:
        """P: how many ranks there are."""
        return self.transport.num_ranks

    def agree_on_splits(self, send_counts: Sequence[int]) -> Splits:
        """Tells all ranks how many rows go to each, and learns how many come.

        Traffic: an all_gather of 8 P bytes.
        """
        assert len(send_counts) == self.num_ranks
        counts_PP = self.all_gather(torch.tensor(send_counts, dtype=torch.int64, device=self.transport.device)).cpu()
        receive = counts_PP[:, self.rank].tolist()
        largest = int(counts_PP.fill_diagonal_(0).max())
        return Splits(tuple(send_counts), tuple(receive), largest)

    def all_to_all(self, rows: Tensor, splits: Splits) -> Tensor:
        """Sends `splits.send[r]` rows to each rank r, in rank order; returns what came, in rank order.

        Traffic: the rows for, and from, other ranks.
        """
        return self.start_all_to_all(rows, splits).wait()

    def start_all_to_all(self, rows: Tensor, splits: Splits) -> Pending[Tensor]:
        """Starts `all_to_all`. Where no rank has a row for another, nothing is sent at all."""
        rows = rows.detach().contiguous()
        assert rows.shape[0] == sum(splits.send), f"{rows.shape[0]} rows, splits for {sum(splits.send)}"
        out = rows.new_empty((sum(splits.receive), *rows.shape[1:]))
        width = pieces.row_bytes(rows)
        sent, received = [size * width for size in splits.send], [size * width for size in splits.receive]
        self._book("all_to_all", *all_to_all_traffic(self.rank, sent, received))
        pending = pieces.start_all_to_all(self.transport, out, rows, splits, self._piece_bytes)
        # What is being sent must stay until it has gone.
        return pending.then(lambda _, held=rows: out)  # type: ignore[misc]

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Returns the sum, maximum or minimum over ranks, bit by bit the same on all of them.

        Traffic: 2 (P - 1) times the tensor, for all ranks together, is booked: the least there is. A few kilobytes go
        in one round, in which each rank gets (P - 1) times the tensor.
        """
        return self.start_all_reduce(tensor, op).wait()

    def start_all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Pending[Tensor]:
        """Starts `all_reduce`."""
        total = _copy(tensor)
        self._book("all_reduce", *all_reduce_traffic(self.num_ranks, self.rank, total.nbytes))
        return pieces.start_all_reduce(self.transport, total, op, self._piece_bytes).then(lambda _: total)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Returns the tensors of all ranks, (P, *tensor.shape); they are of equal shape.

        Traffic: the tensor to, and one from, each other rank.
        """
        tensor = tensor.detach().contiguous()
        out = tensor.new_empty((self.num_ranks, *tensor.shape))
        self._book("all_gather", *all_gather_traffic(self.num_ranks, tensor.nbytes))
        pieces.start_all_gather(self.transport, out, tensor, self._piece_bytes).wait()
        return out

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Returns the sum over ranks of this rank's part of `rows`, in rank order.

        Traffic: the parts for other ranks, and from each of them one of this rank's size.

        Args:
            rows: a part for each rank, in rank order.
            sizes: rows of each part; the same on all ranks.
        """
        rows = rows.detach().contiguous()
        assert rows.shape[0] == sum(sizes), f"{rows.shape[0]} rows, sizes for {sum(sizes)}"
        out = rows.new_empty((sizes[self.rank], *rows.shape[1:]))
        width = pieces.row_bytes(rows)
        self._book("reduce_scatter", *reduce_scatter_traffic(self.rank, [size * width for size in sizes]))
        pieces.start_reduce_scatter(self.transport, out, rows, sizes, self._piece_bytes).wait()
        return out

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Returns the tensor of rank `root`; the others give one of its shape and dtype.

        Traffic: the tensor, from the root to each other rank.
        """
        result = _copy(tensor)
        self._book("broadcast", *broadcast_traffic(self.num_ranks, self.rank, root, result.nbytes))
        pieces.start_broadcast(self.transport, result, root, self._piece_bytes).wait()
        return result

    def barrier(self) -> None:
        """Returns when all ranks have come here. Traffic: none that counts."""
        self.transport.purpose = self.ledger.purpose
        self.transport.barrier()

    def _book(self, operation: str, *traffic: int) -> None:
        """Counts an operation, and tells the transport what it is for: ranks that do different things are found out."""
        self.transport.purpose = self.ledger.purpose
        self.ledger.count(operation, *traffic)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
