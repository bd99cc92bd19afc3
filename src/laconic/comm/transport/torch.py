"""TorchTransport: ranks are processes, on one machine or many, and talk by torch.distributed: gloo on CPU, NCCL on GPU.

    with connect(os.environ) as transport:      # under torchrun, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set
        ...

A process group that exists is used and left alone. On CPU, every operation is made of messages whose tags say what they
are for (_messages.py): ranks that do different things never mix their data.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from laconic.comm.pending import Pending
from laconic.comm.transport import _nccl as nccl
from laconic.comm.transport._combine import combine_into
from laconic.comm.transport._differences import Asked
from laconic.comm.transport._messages import Messages, Waiter, post_messages
from laconic.comm.transport._notes import Notes, StoreGoneError
from laconic.comm.transport._process_group import make_group
from laconic.comm.transport._rendezvous import join_existing, meet
from laconic.comm.transport._sums import part_buffers, shares, then_sum
from laconic.comm.transport._watch import Watch
from laconic.comm.transport.base import (
    DEFAULT_TIMEOUT_SECONDS,
    Reduction,
    Transport,
    check_all_gather,
    check_all_to_all,
    check_reduce_scatter,
    describe,
    describe_failure,
)
from laconic.ranks import RankAddress, read_rank_address

# Up to this size, every rank gets an all_reduce whole from every other: one round is sooner over than two.
_ONE_ROUND_BYTES = 4096
# How long the process that keeps the store stays for the others to read it.
_LINGER_SECONDS = 2.0

# Starts an operation, given its number and what was asked.
Launch = Callable[[int, Asked], Any]


def connect(environment: Mapping[str, str], *, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> "TorchTransport":
    """Joins the other ranks, in the process group that exists, or in one made from torchrun's variables.

    Args:
        environment: `os.environ`, as a rule.
        timeout: seconds, for the ranks to come together and then for every wait.
    """
    if dist.is_initialized():
        return TorchTransport(join_existing(), timeout, place=None)
    place = read_rank_address(environment)
    deadline = time.monotonic() + timeout
    store = meet(place, deadline)
    make_group(PrefixStore("group", store), place, environment, timeout)
    return TorchTransport(store, timeout, place=place)


@final
class TorchTransport(Transport):
    """One process of a process group; `connect` makes it.

    Args:
        store: where ranks leave notes.
        timeout: seconds, for every wait.
        place: where the process group was made by us; None for one that was there, and will stay.
    """

    def __init__(self, store: Store, timeout: float, *, place: RankAddress | None) -> None:
        on_gpu = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        super().__init__(dist.get_rank(), dist.get_world_size(), device)
        # A connection of their own: the backend may be waiting for an answer on the other.
        notes = Notes(store.clone(), self.rank, self.num_ranks)  # type: ignore[attr-defined]
        self._watch = Watch(notes, place.keeper if place is not None else "the maker of the process group", timeout)
        self._waiter = Waiter()
        self._timeout = timeout
        self._store = store
        self._place = place
        self._next_number = 0
        # A rank that fails leaves operations that it never waits for. They stay until the end: a message that is
        # dropped on its way stops its connection, and the others with it.
        self._under_way: dict[int, Launch] = {}
        # By their number: of these the second round was not started yet.
        self._in_first_round: dict[int, Pending[Pending[None]]] = {}
        self._is_open = True

    def start_all_to_all(
        self, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
    ) -> Pending[None]:
        check_all_to_all(self, out, out_sizes, data, sizes)
        return self._start_exchange("all_to_all", out, out_sizes, data, sizes)

    def start_all_reduce(self, tensor: Tensor, op: Reduction) -> Pending[None]:
        operation = f"all_reduce, {op},"
        if tensor.is_cuda:
            return self._start(self._asked(operation, tensor), tensor, lambda *_: nccl.all_reduce(tensor, op))
        if self.num_ranks <= 2 or tensor.nbytes <= _ONE_ROUND_BYTES:
            whole = part_buffers(tensor, self.rank, self.num_ranks)
            return then_sum(self._start_gather(operation, whole, tensor), whole, tensor, op)
        # Rank r adds up the r-th part, and sends the sum to all.
        shared = tensor.view(-1).split_with_sizes(shares(tensor.numel(), self.num_ranks))
        own = shared[self.rank]
        parts = part_buffers(own, self.rank, self.num_ranks)
        first_number = self._next_number
        asked = self._asked(operation, tensor)
        first = self._start(asked, tensor, self._posting(parts, shared))
        second_number = self._take_number()

        def start_second(_: None) -> Pending[None]:
            combine_into(own, parts, op)
            return self._launch(second_number, asked, tensor, self._posting(shared, [own] * self.num_ranks))

        self._in_first_round[first_number] = second = first.then(start_second)
        return second.then(lambda round_: round_.wait())

    def start_all_gather(self, out: Tensor, data: Tensor) -> Pending[None]:
        check_all_gather(self, out, data)
        return self._start_gather("all_gather", out.unbind(), data)

    def start_reduce_scatter(self, out: Tensor, data: Tensor, sizes: Sequence[int]) -> Pending[None]:
        # Gloo's own moves every word twice; NCCL's has the same words as this, but no fixed order.
        check_reduce_scatter(self, out, data, sizes)
        parts = out.new_empty((self.num_ranks, *out.shape))
        came = [out.shape[0]] * self.num_ranks
        exchange = self._start_exchange("reduce_scatter", parts.flatten(0, 1), came, data, sizes)
        return then_sum(exchange, parts.unbind(), out, "sum")

    def start_broadcast(self, tensor: Tensor, root: int) -> Pending[None]:
        asked = self._asked(f"broadcast from rank {root}", tensor)
        if tensor.is_cuda:
            return self._start(asked, tensor, lambda *_: nccl.broadcast(tensor, root))
        nothing, is_root, ranks = tensor.new_empty(0), self.rank == root, range(self.num_ranks)
        sources = [tensor if is_root and rank != root else nothing for rank in ranks]
        targets = [tensor if rank == root and not is_root else nothing for rank in ranks]
        return self._start(asked, tensor, self._posting(targets, sources))

    def barrier(self) -> None:
        # Not torch's: it guesses which GPU is ours.
        token = torch.zeros(1, dtype=torch.uint8, device=self.device)
        self._start_gather("barrier", token.new_empty((self.num_ranks, 1)).unbind(), token).wait()

    def announce_failure(self, error: BaseException) -> None:
        if self._is_open:
            with suppress(StoreGoneError):
                self._watch.notes.announce_failure(describe_failure(error))

    def close(self) -> None:
        """Leaves; the process group too, if it was made here. Whoever keeps the store stays a moment for the others."""
        if not self._is_open:
            return
        self._is_open = False
        with suppress(StoreGoneError):
            self._watch.notes.close(None if self._watch.had_trouble else self._next_number)
        self._waiter.close(break_connections=self._place is not None)
        if self._place is not None:
            if dist.is_initialized():
                dist.destroy_process_group()
            self._under_way.clear()
            self._in_first_round.clear()
            deadline = time.monotonic() + _LINGER_SECONDS
            with suppress(StoreGoneError):
                while self._place.keeps_store and self._watch.notes.num_closed() < self.num_ranks:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.02)
        # The last references to the store, and with them to its connections and to the thread that serves it: while
        # the interpreter ends it would be too late.
        del self._store, self._watch

    def _start_exchange(
        self, operation: str, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
    ) -> Pending[None]:
        # How many rows a rank sends is its own affair.
        alike = f"{operation} {data.dtype} {tuple(data.shape[1:])}"
        asked = Asked(describe(operation, data), self.purpose, alike)
        if data.is_cuda:
            return self._start(asked, data, lambda *_: nccl.all_to_all(out, out_sizes, data, sizes))
        targets, sources = out.split_with_sizes(list(out_sizes)), data.split_with_sizes(list(sizes))
        return self._start(asked, data, self._posting(targets, sources))

    def _start_gather(self, operation: str, targets: Sequence[Tensor], data: Tensor) -> Pending[None]:
        asked = self._asked(operation, data)
        if data.is_cuda:
            return self._start(asked, data, lambda *_: nccl.all_gather(targets, data))
        return self._start(asked, data, self._posting(targets, [data] * self.num_ranks))

    def _asked(self, operation: str, tensor: Tensor) -> Asked:
        words = describe(operation, tensor)
        return Asked(words, self.purpose, words)

    def _posting(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Launch:
        def post(number: int, asked: Asked) -> Messages:
            return post_messages(self.rank, targets, sources, number, asked, waiter=self._waiter, timeout=self._timeout)

        return post

    def _take_number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _start(self, asked: Asked, tensor: Tensor, launch: Launch) -> Pending[None]:
        return self._launch(self._take_number(), asked, tensor, launch)

    def _launch(self, number: int, asked: Asked, tensor: Tensor, launch: Launch) -> Pending[None]:
        assert self._is_open, "the transport was closed"
        self._watch.remember(number, asked)
        try:
            work = launch(number, asked)
        except RuntimeError as error:
            raise self._watch.explain(number, asked, error, timed_out=False) from error

        def wait() -> None:
            self._begin_second_rounds(number)
            if tensor.is_cuda:
                # The stream waits, not the process; torch's watchdog ends a process whose NCCL operation hangs.
                work.wait()
            else:
                self._watch.wait(work, number, asked)
            del self._under_way[number]

        # `launch` holds the tensors that the backend reads and writes, until the operation is over.
        self._under_way[number] = launch
        return Pending(wait)

    def _begin_second_rounds(self, before: int) -> None:
        """Starts the second rounds of earlier operations: another rank may wait for them, and come here only then."""
        for number in [number for number in self._in_first_round if number < before]:
            self._in_first_round.pop(number).wait()
