"""Real processes as ranks, for tests: `run_processes(3, function)` calls `function(environment)` in each.

They are forked from a server that has loaded all they need once and run nothing, so they start in milliseconds and with
no threads of the test run in them. Every one of them has ended when `run_processes` returns.
"""

import contextlib
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# The processes import the test files by name; `python -m pytest` has their root on its path, `pytest` has not.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["pytest", "torch_geometric.nn", "laconic.session", "laconic.strategies", "laconic.trainer"]
)

Environment = dict[str, str]


@dataclass
class Outcome:
    """How one process ended."""

    value: Any = None
    error: str = ""
    """Kind and message of the exception that it raised."""
    rank: int | None = None
    """The rank that a RankFailedError named."""
    exit_code: int | None = None
    seconds: float = 0.0


def free_port() -> int:
    """A port of the loopback interface that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environments(num_ranks: int) -> list[Environment]:
    """The variables of each rank, for ranks that meet at a free port of the loopback interface."""
    port = free_port()
    return [
        {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for rank in range(num_ranks)
    ]


def run_processes(
    num_ranks: int, function: Callable[[Environment], Any], *, seconds: float = 25.0, only: Sequence[int] | None = None
) -> list[Outcome]:
    """Runs a module-level function in one process per rank; returns how each ended, in rank order.

    Args:
        num_ranks: how many ranks there are said to be.
        function: called with the variables of its rank.
        seconds: after which processes that are left are killed.
        only: the ranks that are started at all; all of them by default.
    """
    chosen = environments(num_ranks)
    started = []
    for rank in range(num_ranks) if only is None else only:
        ours, theirs = _context.Pipe(duplex=False)
        process = _context.Process(target=_work, args=(function, chosen[rank], theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    deadline = time.monotonic() + seconds
    outcomes = []
    for process, ours in started:
        outcome = Outcome(error="killed by the test, too late")
        if ours.poll(max(0.0, deadline - time.monotonic())):
            # A process that was killed leaves an end of file.
            outcome = Outcome(error="no word")
            with contextlib.suppress(EOFError):
                outcome = ours.recv()
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        outcome.exit_code = process.exitcode
        ours.close()
        process.close()
        outcomes.append(outcome)
    return outcomes


def _work(function: Callable[[Environment], Any], environment: Environment, theirs: Connection) -> None:
    begin = time.monotonic()
    try:
        outcome = Outcome(value=function(environment))
    except BaseException as error:
        outcome = Outcome(error=f"{type(error).__name__}: {error}", rank=getattr(error, "rank", None))
    outcome.seconds = time.monotonic() - begin
    theirs.send(outcome)
    theirs.close()
