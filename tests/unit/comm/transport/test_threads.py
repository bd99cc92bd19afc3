import threading
import time

import pytest
import torch

from laconic.comm import Transport, run_ranks
from laconic.comm.transport._meeting import Call, MeetingPlace
from laconic.errors import CommunicationError, RankFailedError


def collect_errors(num_ranks, function, *, timeout=10.0):
    """Each rank's error beside what `run_ranks` raised."""
    errors: dict[int, BaseException] = {}

    def work(transport: Transport) -> None:
        try:
            function(transport)
        except BaseException as error:
            errors[transport.rank] = error
            raise

    with pytest.raises(BaseException) as raised:
        run_ranks(num_ranks, work, timeout=timeout)
    return raised.value, errors


def test_results_come_in_rank_order():
    assert run_ranks(4, lambda transport: (transport.rank, transport.num_ranks)) == [(r, 4) for r in range(4)]


def test_when_a_rank_raises_the_others_end_at_once_and_its_own_exception_comes_out():
    original = ValueError("the disk is full")

    def work(transport):
        if transport.rank == 1:
            time.sleep(0.05)
            raise original
        transport.barrier()

    begin = time.monotonic()
    raised, errors = collect_errors(3, work, timeout=60.0)
    assert time.monotonic() - begin < 5
    assert raised is original
    for rank in (0, 2):
        assert isinstance(errors[rank], RankFailedError)
        assert errors[rank].rank == 1
        assert str(errors[rank]) == "Rank 1 failed: ValueError: the disk is full"


def test_a_rank_that_waits_after_another_has_failed_ends_too():
    failed = threading.Event()

    def work(transport):
        if transport.rank == 0:
            failed.set()
            raise KeyError("x")
        failed.wait()
        time.sleep(0.05)
        transport.start_all_reduce(torch.ones(2), "sum").wait()

    _, errors = collect_errors(2, work)
    assert isinstance(errors[1], RankFailedError)
    assert errors[1].rank == 0


def test_a_timeout_names_the_missing_ranks_and_the_operation():
    leave = threading.Event()

    def work(transport):
        if transport.rank in (1, 3):
            leave.wait(5)
        else:
            transport.start_all_reduce(torch.ones(2, 3), "sum").wait()

    raised, _ = collect_errors(4, work, timeout=0.2)
    leave.set()
    assert isinstance(raised, CommunicationError)
    assert "ranks 1, 3" in str(raised)
    assert "operation 0 (all_reduce of float32 (2, 3), sum)" in str(raised)
    assert "0.2 s" in str(raised)


def test_a_rank_that_ends_early_is_not_waited_for():
    def work(transport):
        if transport.rank == 0:
            transport.barrier()

    begin = time.monotonic()
    raised, _ = collect_errors(2, work, timeout=60.0)
    assert time.monotonic() - begin < 5
    assert str(raised).startswith("Rank 1 has left, while this rank is at operation 0 (barrier): the training loop")


def call_different_operations(transport):
    if transport.rank == 0:
        transport.start_all_reduce(torch.ones(2), "sum").wait()
    else:
        transport.barrier()


def call_different_reductions(transport):
    transport.start_all_reduce(torch.ones(2), "max" if transport.rank else "sum").wait()


def call_different_shapes(transport):
    transport.start_all_reduce(torch.ones(2 + transport.rank), "sum").wait()


def call_different_dtypes(transport):
    transport.start_broadcast(torch.ones(2, dtype=torch.int64 if transport.rank else torch.float32), 0).wait()


def call_different_roots(transport):
    transport.start_broadcast(torch.ones(2), transport.rank).wait()


def call_sizes_that_do_not_fit(transport):
    sizes = [1, 2] if transport.rank == 0 else [1, 1]
    out_sizes = [1, 1]
    transport.start_all_to_all(torch.empty(2), out_sizes, torch.ones(sum(sizes)), sizes).wait()


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (call_different_operations, ["rank 0: all_reduce of float32 (2,), sum", "rank 1: barrier"]),
        (
            call_different_reductions,
            ["rank 0: all_reduce of float32 (2,), sum;", "float32 (2,), max"],
        ),
        (call_different_shapes, ["rank 0: all_reduce of float32 (2,)", "rank 1: all_reduce of float32 (3,)"]),
        (call_different_dtypes, ["rank 0: broadcast of float32 (2,)", "rank 1: broadcast of int64 (2,)"]),
        (call_different_roots, ["from rank 0", "from rank 1"]),
        (call_sizes_that_do_not_fit, ["rank 0: all_to_all", "rows to send [1, 2], to receive [1, 1]"]),
    ],
)
def test_ranks_that_do_not_agree_all_hear_who_called_what(work, words):
    def then_work(transport):
        transport.barrier()
        work(transport)

    _, errors = collect_errors(2, then_work)
    for rank in range(2):
        assert type(errors[rank]) is CommunicationError
        assert str(errors[rank]).startswith("Ranks disagree at operation 1: ")
        for word in words:
            assert word in str(errors[rank])


def test_a_sender_may_use_its_buffer_again_once_its_own_wait_is_over():
    late = threading.Event()

    def work(transport):
        buffer = torch.full((2,), float(transport.rank))
        out = torch.empty(2)
        pending = transport.start_all_to_all(out, [1, 1], buffer, [1, 1])
        if transport.rank == 0:
            pending.wait()
            buffer.fill_(99.0)
            late.set()
        else:
            late.wait(5)
            pending.wait()
        return out.tolist()

    assert run_ranks(2, work) == [[0.0, 1.0], [0.0, 1.0]]


def test_a_failure_announced_through_the_transport_reaches_the_others():
    def work(transport):
        with transport:
            if transport.rank == 1:
                raise RuntimeError("no more memory")
            transport.barrier()

    raised, errors = collect_errors(2, work)
    assert str(raised) == "no more memory"
    assert isinstance(errors[0], RankFailedError)


def test_arguments_of_one_rank_that_do_not_fit_together_are_our_own_mistake():
    def work(transport):
        transport.start_all_to_all(torch.empty(3), [1, 1], torch.ones(2), [1, 1])

    raised, _ = collect_errors(2, work)
    assert isinstance(raised, AssertionError)


def test_a_rank_that_wakes_up_late_at_a_meeting_of_all_goes_on_whoever_failed_since():
    """What the other found, it will find itself; told of a failure instead, ranks would raise different errors."""
    place = MeetingPlace(2, timeout=1.0)
    for rank in (0, 1):
        place.come(rank, 0, Call("barrier"))
    assert len(place.wait(1, 0)) == 2
    place.end(1, ValueError("found after the meeting"))
    assert len(place.wait(0, 0)) == 2
    place.come(0, 1, Call("barrier"))
    with pytest.raises(RankFailedError, match="Rank 1 failed: ValueError: found after the meeting"):
        place.wait(0, 1)
