"""ThreadTransport: ranks as threads of one process, for tests and for trying things out.

    def greet(transport):
        names = torch.empty(transport.num_ranks, 1)
        transport.start_all_gather(names, torch.tensor([float(transport.rank)])).wait()
        return names

    run_ranks(3, greet)

Data is copied when an operation starts, and sums are in rank order: results are the same bit by bit on every rank and
in every run. Torch's random generator is shared by threads; Laconic does not use it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, final

import torch
from torch import Tensor

from laconic.comm.pending import Pending
from laconic.comm.transport._combine import combine
from laconic.comm.transport._meeting import Call, MeetingPlace
from laconic.comm.transport.base import (
    Reduction,
    Transport,
    check_all_gather,
    check_all_to_all,
    check_reduce_scatter,
)

Result = TypeVar("Result")

# How long a failed run waits for its other threads, which end at their next operation, before it leaves them behind.
_GRACE_SECONDS = 1.0


def run_ranks(num_ranks: int, function: Callable[[Transport], Result], *, timeout: float = 60.0) -> list[Result]:
    """Runs `function` on ranks that are threads, and returns what it returned, in rank order.

    When a rank raises, the others end at their next wait, and its own exception is raised here.

    Args:
        num_ranks: how many threads.
        function: called with the transport of each rank.
        timeout: seconds that a rank waits for the others in one operation.
    """
    place = MeetingPlace(num_ranks, timeout)
    results: dict[int, Result] = {}

    def run(rank: int) -> None:
        error: BaseException | None = None
        try:
            results[rank] = function(ThreadTransport(rank, place))
        except BaseException as raised:
            error = raised
        place.end(rank, error)

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(num_ranks)
    ]
    for thread in threads:
        thread.start()
    try:
        failure = place.wait_for_end()
    except BaseException as interruption:
        for rank in range(num_ranks):
            place.end(rank, interruption)
        raise
    deadline = time.monotonic() + _GRACE_SECONDS
    for thread in threads:
        thread.join(None if failure is None else max(0.0, deadline - time.monotonic()))
    if failure is not None:
        raise failure
    return [results[rank] for rank in range(num_ranks)]


@final
class ThreadTransport(Transport):
    """One rank of `run_ranks`."""

    def __init__(self, rank: int, place: MeetingPlace) -> None:
        super().__init__(rank, place.num_ranks, torch.device("cpu"))
        self._place = place
        # All ranks call alike, so the same number means the same operation.
        self._next_number = 0

    def start_all_to_all(
        self, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
    ) -> Pending[None]:
        check_all_to_all(self, out, out_sizes, data, sizes)

        def finish(calls: list[Call]) -> None:
            for target, call in zip(out.split_with_sizes(list(out_sizes)), calls, strict=True):
                target.copy_(_data(call).split_with_sizes(call.sizes)[self.rank])

        call = Call("all_to_all", (data.dtype, data.shape[1:]), data.clone(), tuple(sizes), tuple(out_sizes))
        return self._start(call, finish)

    def start_all_reduce(self, tensor: Tensor, op: Reduction) -> Pending[None]:
        def finish(calls: list[Call]) -> None:
            tensor.copy_(combine([_data(call) for call in calls], op))

        return self._start(Call("all_reduce", (op, tensor.dtype, tensor.shape), tensor.clone()), finish)

    def start_all_gather(self, out: Tensor, data: Tensor) -> Pending[None]:
        check_all_gather(self, out, data)

        def finish(calls: list[Call]) -> None:
            torch.stack([_data(call) for call in calls], out=out)

        return self._start(Call("all_gather", (data.dtype, data.shape), data.clone()), finish)

    def start_reduce_scatter(self, out: Tensor, data: Tensor, sizes: Sequence[int]) -> Pending[None]:
        check_reduce_scatter(self, out, data, sizes)

        def finish(calls: list[Call]) -> None:
            out.copy_(combine([_data(call).split_with_sizes(list(sizes))[self.rank] for call in calls], "sum"))

        setting = (f"rows for each {list(sizes)}", data.dtype, data.shape)
        return self._start(Call("reduce_scatter", setting, data.clone()), finish)

    def start_broadcast(self, tensor: Tensor, root: int) -> Pending[None]:
        def finish(calls: list[Call]) -> None:
            tensor.copy_(_data(calls[root]))

        setting = (f"from rank {root}", tensor.dtype, tensor.shape)
        return self._start(Call("broadcast", setting, tensor.clone()), finish)

    def barrier(self) -> None:
        self._start(Call("barrier"), lambda calls: None).wait()

    def announce_failure(self, error: BaseException) -> None:
        self._place.end(self.rank, error)

    def close(self) -> None:
        pass

    def _start(self, call: Call, finish: Callable[[list[Call]], None]) -> Pending[None]:
        number = self._next_number
        self._next_number += 1
        self._place.come(self.rank, number, replace(call, purpose=self.purpose))
        return Pending(lambda: finish(self._place.wait(self.rank, number)))


def _data(call: Call) -> Tensor:
    assert call.data is not None
    return call.data
