"""TorchTransport: ranks are processes, on one machine or many, and talk by torch.distributed: gloo on CPU, NCCL on GPU.

    with connect(os.environ) as transport:      # under torchrun, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set
        ...

A process group that exists is used and left alone. The GPU branch follows torch's documentation; it was never run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from laconic.comm.transport._combine import combine
from laconic.comm.transport._messages import post_messages
from laconic.comm.transport._notes import Notes, StoreGoneError
from laconic.comm.transport._process_group import make_group
from laconic.comm.transport._rendezvous import join_existing, meet
from laconic.comm.transport._watch import Watch
from laconic.comm.transport.base import (
    DEFAULT_TIMEOUT_SECONDS,
    Pending,
    Reduction,
    Transport,
    check_all_gather,
    check_all_to_all,
    check_reduce_scatter,
    describe,
    describe_failure,
)
from laconic.ranks import Place, read_place

# How long the process that keeps the store stays for the others to read it.
_LINGER_SECONDS = 2.0

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# Torch 2.13 renamed it, and warns about the old name.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def connect(environment: Mapping[str, str], *, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> "TorchTransport":
    """Joins the other ranks, in the process group that exists, or in one made from torchrun's variables.

    Args:
        environment: `os.environ`, as a rule.
        timeout: seconds, for the ranks to come together and then for every wait.
    """
    if dist.is_initialized():
        return TorchTransport(join_existing(), timeout, place=None)
    place = read_place(environment)
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

    def __init__(self, store: Store, timeout: float, *, place: Place | None) -> None:
        on_gpu = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        super().__init__(dist.get_rank(), dist.get_world_size(), device)
        # A connection of their own: the backend may be waiting for an answer on the other.
        notes = Notes(store.clone(), self.rank, self.num_ranks)  # type: ignore[attr-defined]
        self._watch = Watch(notes, place.keeper if place is not None else "the maker of the process group", timeout)
        self._timeout = timeout
        self._store = store
        self._place = place
        self._next_number = 0
        # A rank that fails leaves operations that it never waits for. They stay until the end: a message that is
        # dropped on its way stops its connection, and the others with it.
        self._under_way: dict[int, Pending] = {}
        self._is_open = True

    def start_all_to_all(self, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]) -> Pending:
        check_all_to_all(self, out, out_sizes, data, sizes)
        row_bytes = data.shape[1:].numel() * data.itemsize
        source, to = _as_bytes(data), [size * row_bytes for size in sizes]
        target, come = _as_bytes(out), [size * row_bytes for size in out_sizes]

        def launch(number: int) -> Any:
            if data.is_cuda:
                return dist.all_to_all_single(target, source, come, to, async_op=True)
            parts = target.split_with_sizes(come), source.split_with_sizes(to)
            return post_messages(self.rank, *parts, number, self._timeout)

        return self._start("all_to_all", data, launch)

    def start_all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        travels, travels_by = tensor, op
        if tensor.dtype == torch.bool:
            travels = tensor.view(torch.uint8)
            # As numbers, 256 ranks that say yes would add up to no.
            travels_by = "max" if op == "sum" else op
        return self._start(
            f"all_reduce, {op},", tensor, lambda _: dist.all_reduce(travels, _REDUCTIONS[travels_by], async_op=True)
        )

    def start_all_gather(self, out: Tensor, data: Tensor) -> Pending:
        check_all_gather(self, out, data)
        target, source = _as_bytes(out), _as_bytes(data)
        return self._start("all_gather", data, lambda _: _all_gather(target, source, async_op=True))

    def start_reduce_scatter(self, out: Tensor, data: Tensor, sizes: Sequence[int]) -> Pending:
        # Gloo's own moves every word twice; NCCL's has the same words as this, but no fixed order.
        check_reduce_scatter(self, out, data, sizes)
        parts = out.new_empty((self.num_ranks, *out.shape))
        exchange = self.start_all_to_all(parts.flatten(0, 1), [out.shape[0]] * self.num_ranks, data, sizes)
        return _PendingSum(exchange, parts, out)

    def start_broadcast(self, tensor: Tensor, root: int) -> Pending:
        travels, call = _as_bytes(tensor), f"broadcast from rank {root}"
        return self._start(call, tensor, lambda _: dist.broadcast(travels, root, async_op=True))

    def barrier(self) -> None:
        # Not torch's: it guesses which GPU is ours.
        token = torch.zeros(1, device=self.device)
        self._start("barrier", token, lambda _: dist.all_reduce(token, async_op=True)).wait()

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
            self._watch.notes.close()
        if self._place is None:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        self._under_way.clear()
        deadline = time.monotonic() + _LINGER_SECONDS
        with suppress(StoreGoneError):
            while self._place.keeps_store and self._watch.notes.num_closed() < self.num_ranks:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
        # The last reference to the store, and with it to the thread that serves it.
        del self._store, self._watch

    def _start(self, operation: str, tensor: Tensor, launch: Callable[[int], Any]) -> Pending:
        assert self._is_open, "the transport was closed"
        number = self._next_number
        self._next_number += 1
        try:
            work = launch(number)
        except RuntimeError as error:
            raise self._watch.explain(number, describe(operation, tensor), error, timed_out=False) from error

        def wait() -> None:
            if tensor.is_cuda:
                # The stream waits, not the process; torch's watchdog ends a process whose NCCL operation hangs.
                work.wait()
            else:
                self._watch.wait(work, number, lambda: describe(operation, tensor))
            del self._under_way[number]

        # `launch` holds the tensors that the backend reads and writes, until the operation is over.
        self._under_way[number] = pending = _TorchPending(wait, launch)
        return pending


@final
class _TorchPending(Pending):
    """An operation of torch.distributed.

    Args:
        wait: waits for it.
        holds: what it reads and writes, until it is over.
    """

    def __init__(self, wait: Callable[[], None], holds: object) -> None:
        self._wait: Callable[[], None] | None = wait
        self._holds = holds

    def wait(self) -> None:
        if self._wait is not None:
            self._wait()
            self._wait = self._holds = None


@final
class _PendingSum(Pending):
    """A reduce_scatter: rows from each rank, then their sum."""

    def __init__(self, exchange: Pending, parts: Tensor, out: Tensor) -> None:
        self._exchange = exchange
        self._parts: Tensor | None = parts
        self._out = out

    def wait(self) -> None:
        if self._parts is not None:
            self._exchange.wait()
            self._out.copy_(combine(self._parts.unbind(), "sum"))
            self._parts = None


def _as_bytes(tensor: Tensor) -> Tensor:
    """Returns a flat view; gloo knows a handful of dtypes only, and what is merely moved needs none."""
    return tensor.view(-1).view(torch.uint8)
