"""Training loops, as users write them, in which ranks do different things: all ranks hear what, on both sides.

Each loop runs on ranks that are threads and on ranks that are processes.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.equivalence.halo_runs import make_graph
from tests.processes.rank_processes import Environment, environments, free_port, run_processes
from torch_geometric.nn import GCN

import laconic
from laconic.comm import Communicator, Ledger
from laconic.comm.transport import Transport, connect, run_ranks
from laconic.errors import CommunicationError
from laconic.session import Session

# Every wait would end here at the latest; what is tested is that it ends much sooner.
LONG = 60.0
ADVICE = "All ranks have to call the model, session.loss, backward and session.evaluate together"


def begin(session: Session) -> Callable[[], None]:
    """Returns what trains a step."""
    graph = session.data
    model = session.attach(GCN(graph.num_features, 8, 2, graph.num_classes).double())
    shard = session.shard
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def only_rank_0_evaluates(session: Session) -> None:
    step = begin(session)
    for epoch, _ in session.epochs(4):
        step()
        if epoch == 2 and session.rank == 0:
            session.evaluate()


def rank_1_evaluates_twice(session: Session) -> None:
    step = begin(session)
    for _ in session.epochs(2):
        step()
        session.evaluate()
        if session.rank == 1:
            session.evaluate()


def rank_1_trains_a_step_more(session: Session) -> None:
    step = begin(session)
    for _ in range(2 + session.rank):
        step()
    session.evaluate()


def rank_1_skips_an_epoch(session: Session) -> None:
    """The same operations in the same order, for different epochs: wrong, and nothing else would show it."""
    step = begin(session)
    for epoch, _ in session.epochs(4):
        if epoch == 2 and session.rank == 1:
            continue
        step()


def rank_1_breaks_out(session: Session) -> None:
    step = begin(session)
    for epoch, _ in session.epochs(4):
        step()
        if epoch == 2 and session.rank == 1:
            break


# The loop, and what rank 0 and rank 1 hear of it.
DIFFERENT = "Ranks do different things at operation"
LOOPS: dict[Callable[[Session], None], list[str]] = {
    only_rank_0_evaluates: [
        DIFFERENT,
        "rank 0 is at an evaluation, layer 1, epoch 2 (all_to_all of",
        "rank 1 is at the forward pass of a training step, layer 1, epoch 3 (all_to_all of",
    ],
    rank_1_evaluates_twice: [DIFFERENT, "rank 0 is at the forward pass", "rank 1 is at an evaluation"],
    rank_1_trains_a_step_more: [DIFFERENT, "rank 0 is at an evaluation", "rank 1 is at the forward pass"],
    rank_1_skips_an_epoch: [DIFFERENT, "rank 0 is at the forward pass of a training step, layer 1, epoch 2", "epoch 3"],
    rank_1_breaks_out: [
        "Rank 1 has left, while this rank is at operation",
        "the forward pass of a training step, layer 1, epoch 3",
    ],
}


def run_loop(transport: Transport, loop: Callable[[Session], None]) -> tuple[str, float]:
    """Returns what a rank heard, and how long its loop took."""
    torch.set_num_threads(1)
    communicator = Communicator(transport, Ledger(transport.rank))
    since = time.monotonic()
    with laconic.join(make_graph(60), strategy="exchange(reach=0)", communicator=communicator) as session:
        # The one who breaks out does not wait for those who do not.
        try:
            loop(session)
        except CommunicationError as error:
            return str(error), time.monotonic() - since
    return "", time.monotonic() - since


def check(loop: Callable[[Session], None], told: list[str]) -> None:
    if loop is rank_1_breaks_out:
        assert told.pop(1) == ""
    for message in told:
        for words in [*LOOPS[loop], ADVICE]:
            assert words in message
    assert len(set(told)) == 1


@pytest.mark.parametrize("loop", LOOPS)
def test_threads_are_told(loop: Callable[[Session], None]) -> None:
    check(loop, [message for message, _ in run_ranks(2, functools.partial(run_loop, loop=loop), timeout=LONG)])


def run_all_loops(environment: Environment, ports: list[int]) -> list[tuple[str, float]]:
    """One after the other in the same processes, which take seconds to start."""
    found = []
    for loop, port in zip(LOOPS, ports, strict=True):
        with connect({**environment, "MASTER_PORT": str(port)}, timeout=LONG) as transport:
            found.append(run_loop(transport, loop))
    return found


def test_processes_are_told_within_seconds_and_not_at_the_timeout() -> None:
    outcomes = run_processes(2, functools.partial(run_all_loops, ports=[free_port() for _ in LOOPS]), seconds=150)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    for number, loop in enumerate(LOOPS):
        check(loop, [outcome.value[number][0] for outcome in outcomes])
        assert max(outcome.value[number][1] for outcome in outcomes) < LONG / 2


PART_IN_THE_MIDDLE = """
import atexit, sys, torch
from laconic.comm import Splits
from laconic.launching.join import join_ranks
communicator = join_ranks(timeout=60)
atexit.register(communicator.transport.close)
with communicator.ledger.phase("evaluation" if communicator.rank else "forward", layer=1):
    communicator.all_to_all(torch.ones(2, 3), Splits((1, 1), (1, 1), 1))
"""


def run_interpreters(program: str) -> list[str]:
    """Runs a program as two ranks, of which both fail, and returns what each said."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
        )
        for environment in environments(2)
    ]
    told = [process.communicate(timeout=90)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], told
    return told


def test_processes_that_part_end_as_after_any_error_and_are_not_aborted() -> None:
    """Messages are still under way when the interpreter ends."""
    for told in run_interpreters(PART_IN_THE_MIDDLE):
        assert DIFFERENT in told
        assert "terminate called" not in told


FAIL_IN_A_PLAIN_LOOP = """
import laconic
session = laconic.join("sbm(nodes=60)", strategy="exchange(reach=0)")
if session.rank == 1:
    raise ValueError("a mistake of rank 1")
session.communicator.barrier()
"""


def test_a_loop_without_with_tells_the_others_the_exception_that_ended_it() -> None:
    assert "Rank 1 failed: ValueError: a mistake of rank 1" in run_interpreters(FAIL_IN_A_PLAIN_LOOP)[0]
