"""What ranks that are real processes hear when one of them fails, is killed, hangs or calls something else."""

import functools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.processes.rank_processes import Environment, Outcome, run_processes

from laconic.comm import Communicator, Ledger, connect
from laconic.comm.transport.torch import TorchTransport
from laconic.errors import RankFailedError

# Every wait of these tests would end here at the latest; what is tested is that it ends much sooner.
LONG = 30.0


def sum_once(transport: TorchTransport) -> float:
    return float(Communicator(transport, Ledger(transport.rank)).all_reduce(torch.ones(3)).sum())


def exchange_once(transport: TorchTransport) -> float:
    come, sizes = torch.zeros(transport.num_ranks, 2), [1] * transport.num_ranks
    transport.start_all_to_all(come, sizes, torch.ones(transport.num_ranks, 2), sizes).wait()
    return float(come.sum())


Operation = Callable[[TorchTransport], float]
# Gloo waits for what all ranks do together in one way, and for messages from one rank to another in another way.
operations = pytest.mark.parametrize(
    ("operate", "call"),
    [(sum_once, "the set-up: all_reduce, sum, of float32 (3,)"), (exchange_once, "all_to_all of float32 (3, 2)")],
    ids=["all_reduce", "all_to_all"],
)


def run_with(operate: Operation, num_ranks: int, function: Callable[[Environment, Operation], Any]) -> list[Outcome]:
    """Runs a function in one process per rank, which calls `operate` to talk to the other ranks."""
    return run_processes(num_ranks, functools.partial(function, operate=operate))


def raise_on_rank_1(environment: Environment, operate: Operation) -> None:
    with connect(environment, timeout=LONG) as transport:
        operate(transport)
        if transport.rank == 1:
            raise ValueError("the disk is full")
        operate(transport)


@operations
def test_a_rank_that_raises_is_named_with_its_message(operate: Operation, call: str):
    outcomes = run_with(operate, 3, raise_on_rank_1)
    assert outcomes[1].error == "ValueError: the disk is full"
    for rank in (0, 2):
        assert outcomes[rank].error == "RankFailedError: Rank 1 failed: ValueError: the disk is full"
        assert outcomes[rank].rank == 1
        assert outcomes[rank].seconds < 8


def raise_with_operations_under_way(environment: Environment) -> None:
    """Rank 0 keeps the store, and started operations keep gloo busy: neither may hold the others up."""
    with connect(environment, timeout=LONG) as transport:
        sum_once(transport)
        if transport.rank == 0:
            transport.start_all_to_all(torch.ones(2, 2), [1, 1], torch.ones(2, 2), [1, 1])
            transport.start_all_reduce(torch.ones(3), "sum")
            raise ValueError("the disk is full")
        exchange_once(transport)
        sum_once(transport)
        exchange_once(transport)


def test_rank_0_that_raises_with_operations_under_way_is_named_too():
    outcomes = run_processes(2, raise_with_operations_under_way)
    assert outcomes[0].error == "ValueError: the disk is full"
    assert outcomes[1].error == "RankFailedError: Rank 0 failed: ValueError: the disk is full"
    assert max(outcome.seconds for outcome in outcomes) < 8


def announce_and_stay(environment: Environment, operate: Operation) -> tuple[str, float]:
    """Rank 1 fails but does not leave, so that no connection breaks."""
    with connect(environment, timeout=2.4) as transport:
        operate(transport)
        begin = time.monotonic()
        try:
            if transport.rank == 1:
                transport.announce_failure(ValueError("the disk is full"))
                time.sleep(1.6)
            else:
                operate(transport)
        except RankFailedError as error:
            return str(error), time.monotonic() - begin
        return "", 0.0


@operations
def test_a_rank_that_waits_hears_of_a_failure_before_any_connection_breaks(operate: Operation, call: str):
    message, seconds = run_with(operate, 2, announce_and_stay)[0].value
    assert message == "Rank 1 failed: ValueError: the disk is full"
    assert seconds < 1.4


def kill_rank_1(environment: Environment, operate: Operation) -> None:
    with connect(environment, timeout=2.4) as transport:
        operate(transport)
        if transport.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        operate(transport)


@operations
def test_a_rank_that_is_killed_is_named(operate: Operation, call: str):
    outcomes = run_with(operate, 3, kill_rank_1)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].rank == 1
        assert f"RankFailedError: The connection broke at operation 1 ({call})" in outcomes[rank].error
        assert "rank 1 left without a message" in outcomes[rank].error
        assert outcomes[rank].seconds < 10


def kill_rank_0(environment: Environment, operate: Operation) -> None:
    with connect(environment, timeout=LONG) as transport:
        operate(transport)
        if transport.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        operate(transport)


@operations
def test_the_rank_that_keeps_the_store_is_named_when_it_is_killed(operate: Operation, call: str):
    outcomes = run_with(operate, 2, kill_rank_0)
    assert outcomes[0].exit_code == -signal.SIGKILL
    assert outcomes[1].rank == 0
    assert "rank 0 has ended" in outcomes[1].error
    assert outcomes[1].seconds < 10


def hang_on_rank_2(environment: Environment, operate: Operation) -> None:
    with connect(environment, timeout=1.2) as transport:
        operate(transport)
        if transport.rank == 2:
            time.sleep(2.8)
            return
        # Rank 1 comes late: it has waited less than the timeout when rank 0 gives up, and is not missing.
        time.sleep(0.5 * transport.rank)
        operate(transport)


@operations
def test_a_timeout_names_the_missing_rank_and_only_that(operate: Operation, call: str):
    outcomes = run_with(operate, 3, hang_on_rank_2)
    assert f"Timed out after 1.2 s at operation 1 ({call})" in outcomes[0].error
    assert "rank 1" not in outcomes[0].error
    for rank in (0, 1):
        assert outcomes[rank].error.startswith("CommunicationError: ")
        assert "waiting for rank 2 (rank 2 was not heard of)" in outcomes[rank].error


def come_late(environment: Environment, operate: Operation) -> list[float]:
    """Rank 1 comes after the others have waited for several moments, but in time."""
    with connect(environment, timeout=2.4) as transport:
        time.sleep(1.5 * (transport.rank == 1))
        return [operate(transport), operate(transport)]


@operations
def test_a_rank_that_comes_late_but_in_time_is_waited_for(operate: Operation, call: str):
    totals = [outcome.value for outcome in run_with(operate, 3, come_late)]
    assert totals == [[9.0, 9.0] if operate is sum_once else [6.0, 6.0]] * 3


def call_different_operations(environment: Environment) -> None:
    with connect(environment, timeout=1.0) as transport:
        if transport.rank == 0:
            transport.start_all_gather(torch.ones(2, 4), torch.ones(4)).wait()
        transport.start_all_reduce(torch.ones(3), "sum").wait()


def test_processes_that_do_not_agree_end_with_who_called_what():
    for outcome in run_processes(2, call_different_operations):
        assert "CommunicationError: Ranks disagree at operation 0" in outcome.error
        assert "rank 0: all_gather of float32 (4,)" in outcome.error
        assert "rank 1: all_reduce, sum, of float32 (3,)" in outcome.error


def call_different_exchanges(environment: Environment) -> None:
    with connect(environment, timeout=1.0) as transport:
        if transport.rank == 0:
            transport.start_all_gather(torch.ones(2, 4), torch.ones(4)).wait()
        exchange_once(transport)


def test_processes_of_which_one_exchanges_end_with_who_called_what():
    for outcome in run_processes(2, call_different_exchanges):
        assert "CommunicationError: Ranks disagree at operation 0" in outcome.error
        assert "rank 0: all_gather of float32 (4,)" in outcome.error
        assert "rank 1: all_to_all of float32 (2, 2)" in outcome.error


def call_sizes_that_do_not_fit(environment: Environment) -> None:
    """Gloo would abort both processes."""
    with connect(environment, timeout=1.0) as transport:
        transport.start_all_reduce(torch.ones(3 + transport.rank), "sum").wait()


def test_processes_whose_tensors_do_not_fit_are_told_and_live():
    for outcome in run_processes(2, call_sizes_that_do_not_fit):
        assert "rank 0: all_reduce, sum, of float32 (3,); rank 1: all_reduce, sum, of float32 (4,)" in outcome.error
        assert outcome.exit_code == 0


def wait_in_orders_of_their_own(environment: Environment) -> list[float]:
    """Of large sums, the second round begins when a rank waits; whoever waits for another operation begins it too."""
    with connect(environment, timeout=LONG) as transport:
        tensors = [torch.full((5000,), float(number)) for number in range(3)]
        pending = [transport.start_all_reduce(tensor, "sum") for tensor in tensors]
        come, sizes = torch.zeros(transport.num_ranks, 2), [1] * transport.num_ranks
        pending.append(transport.start_all_to_all(come, sizes, torch.ones(transport.num_ranks, 2), sizes))
        for place in range(4):
            pending[(place + transport.rank) % 4].wait()
        return [float(tensor.mean()) for tensor in tensors]


def test_ranks_may_wait_for_what_is_under_way_each_in_its_own_order():
    for outcome in run_processes(3, wait_in_orders_of_their_own):
        assert outcome.value == [0.0, 3.0, 6.0], outcome.error


def exchange_beside_messages_of_others(environment: Environment) -> tuple[float, list[float]]:
    """Whoever made the process group has messages of its own under way, from first tags on."""
    os.environ.update(environment)
    dist.init_process_group("gloo")
    peer = 1 - dist.get_rank()
    theirs = [torch.zeros(2) for _ in range(3)]
    works = [dist.irecv(theirs[tag], peer, tag=tag) for tag in range(3)]
    with connect({}, timeout=LONG) as transport:
        ours = [exchange_once(transport) for _ in range(3)]
    works += [dist.isend(torch.full((2,), 10.0 + tag), peer, tag=tag) for tag in range(3)]
    for work in works:
        work.wait()
    dist.destroy_process_group()
    return ours[0], [float(tensor[0]) for tensor in theirs]


def test_messages_are_not_mixed_with_those_of_whoever_made_the_group():
    for outcome in run_processes(2, exchange_beside_messages_of_others):
        assert outcome.value == (4.0, [10.0, 11.0, 12.0]), outcome.error


def use_a_group_that_exists(environment: Environment) -> tuple[float, float, bool]:
    os.environ.update(environment)
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    with connect({}, timeout=LONG) as transport:
        first = sum_once(transport) + exchange_once(transport)
    with connect({}, timeout=LONG) as transport:
        second = sum_once(transport) + exchange_once(transport)
    still_there = dist.is_initialized() and dist.group.WORLD is group
    dist.barrier()
    dist.destroy_process_group()
    return first, second, still_there


def test_a_process_group_that_exists_is_used_and_left_alone():
    for outcome in run_processes(2, use_a_group_that_exists):
        assert outcome.value == (10.0, 10.0, True), outcome.error


def close_twice(environment: Environment) -> bool:
    transport = connect(environment, timeout=LONG)
    sum_once(transport)
    transport.close()
    transport.close()
    return dist.is_initialized()


def test_closing_takes_the_group_that_was_made_along():
    for outcome in run_processes(2, close_twice):
        assert outcome.value is False, outcome.error
        assert outcome.exit_code == 0


def join_again_and_again(environment: Environment) -> list[float]:
    sums = []
    for _ in range(5):
        with connect(environment, timeout=LONG) as transport:
            sums.append(sum_once(transport))
    return sums


def test_ranks_that_part_meet_again_at_the_same_place():
    for outcome in run_processes(2, join_again_and_again):
        assert outcome.value == [6.0] * 5, outcome.error


def say_the_wrong_number_of_ranks(environment: Environment) -> None:
    if environment["RANK"] == "1":
        environment["WORLD_SIZE"] = "3"
    connect(environment, timeout=1.5)


def test_ranks_that_were_started_with_different_numbers_of_ranks_are_told():
    outcomes = run_processes(2, say_the_wrong_number_of_ranks)
    assert "different WORLD_SIZE, in rank order: [2, 3]" in outcomes[0].error
    assert "CommunicationError" in outcomes[1].error


def be_rank_0_or_1(environment: Environment) -> None:
    environment["RANK"] = str(min(int(environment["RANK"]), 1))
    connect(environment, timeout=1.5)


def test_two_processes_with_the_same_rank_are_told():
    errors = [outcome.error for outcome in run_processes(3, be_rank_0_or_1)]
    assert any("Two processes were started as rank 1" in error for error in errors)
