"""What a transport is: tensors go from rank to rank. This docstring is the contract.

Every operation is collective: all ranks call the same operations in the same order, with sizes that fit. An operation
is started, then waited for, and several may be under way:

    pending = transport.start_all_to_all(out, out_sizes, data, sizes)
    ...                                     # leave out and data alone until
    pending.wait()                          # now out holds what came

What is promised, and tested for every member (tests/contracts/test_transport_contract.py): equal results; every wait
ends, at the latest after the timeout with an error that names who is missing; when one rank fails, the others that
wait end with RankFailedError; ranks that do different things at the same operation (another call, or the same one for
another `purpose`) never mix their data, and end with an error that names both sides. All tensors handed over are
contiguous; `Communicator` is what the rest of Laconic uses. A transport is used by one thread at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self, final

import torch
from torch import Tensor

from laconic.comm.pending import Pending
from laconic.errors import CommunicationError

Reduction = Literal["sum", "max", "min"]

DEFAULT_TIMEOUT_SECONDS = 300.0


class Transport(ABC):
    """How tensors go from rank to rank.

    Args:
        rank: number of this rank, 0 to num_ranks - 1.
        num_ranks: how many there are.
        device: where small tensors that are to be sent should be made.
    """

    def __init__(self, rank: int, num_ranks: int, device: torch.device) -> None:
        assert 0 <= rank < num_ranks
        self.rank = rank
        self.num_ranks = num_ranks
        self.device = device
        self.purpose = ""
        """What the next operations are for, in words; `Communicator` says it before each. The same on all ranks."""

    @abstractmethod
    def start_all_to_all(
        self, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
    ) -> Pending[None]:
        """Sends `sizes[r]` rows of `data` to each rank r, and fills `out` with `out_sizes[r]` rows from each."""

    @abstractmethod
    def start_all_reduce(self, tensor: Tensor, op: Reduction) -> Pending[None]:
        """Replaces `tensor` by the sum, maximum or minimum over ranks, bit by bit the same on all of them."""

    @abstractmethod
    def start_all_gather(self, out: Tensor, data: Tensor) -> Pending[None]:
        """Fills `out`, (P, *data.shape), with the `data` of every rank; they are of equal shape."""

    @abstractmethod
    def start_reduce_scatter(self, out: Tensor, data: Tensor, sizes: Sequence[int]) -> Pending[None]:
        """Cuts `data` into `sizes[r]` rows for each rank r, and fills `out` with the sum of its part, in rank order."""

    @abstractmethod
    def start_broadcast(self, tensor: Tensor, root: int) -> Pending[None]:
        """Replaces `tensor` by the one of rank `root`."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns when all ranks have come here."""

    @abstractmethod
    def announce_failure(self, error: BaseException) -> None:
        """Tells the other ranks that this one cannot go on, so that none waits for it in vain. Never raises."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what the transport itself made. Again at no cost."""

    @final
    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What went wrong between ranks is known to the others, or they find it out alike.
        if error is not None and not isinstance(error, CommunicationError):
            self.announce_failure(error)
        self.close()


def describe(operation: str, tensor: Tensor | None) -> str:
    """Returns a call in words, such as "all_reduce of float32 (3, 4)"."""
    if tensor is None:
        return operation
    return f"{operation} of {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def describe_failure(error: BaseException) -> str:
    """Returns what a rank says of its end: the kind of error and its first words."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text[:2000]}" if text else type(error).__name__


def check_all_to_all(
    transport: Transport, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
) -> None:
    """Asserts that the arguments of one rank fit together."""
    assert len(sizes) == len(out_sizes) == transport.num_ranks
    assert data.shape[0] == sum(sizes)
    assert out.shape[0] == sum(out_sizes)
    assert sizes[transport.rank] == out_sizes[transport.rank]
    assert out.shape[1:] == data.shape[1:]
    assert out.dtype == data.dtype
    assert out.is_contiguous()
    assert data.is_contiguous()


def check_all_gather(transport: Transport, out: Tensor, data: Tensor) -> None:
    """Asserts that the arguments of one rank fit together."""
    assert out.shape == (transport.num_ranks, *data.shape)
    assert out.dtype == data.dtype
    assert out.is_contiguous()
    assert data.is_contiguous()


def check_reduce_scatter(transport: Transport, out: Tensor, data: Tensor, sizes: Sequence[int]) -> None:
    """Asserts that the arguments of one rank fit together."""
    assert len(sizes) == transport.num_ranks
    assert data.shape[0] == sum(sizes)
    assert out.shape == (sizes[transport.rank], *data.shape[1:])
    assert out.dtype == data.dtype
    assert out.is_contiguous()
    assert data.is_contiguous()
