"""Starts several ranks of a command on this machine, and stays until the last one has ended.

    exit_code = run_local_ranks([sys.executable, "-m", "laconic", "train", "store/cora"], 4)

Each rank finds torchrun's variables, as under torchrun itself. Rank 0 writes where this process does, as if it were
alone. What the others write is kept, and its end is shown if they fail.
"""

import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

from laconic.errors import ConfigError
from laconic.processes import Events, GroupProcess, HeldSignals, LineReader, threads_per_rank
from laconic.units import format_seconds

_log = logging.getLogger(__name__)
_ADDRESS = "127.0.0.1"
# Shown of each rank that failed.
_NUM_LINES = 30
# Between SIGTERM and SIGKILL, for a rank that had its grace period already.
_TERM_SECONDS = 10.0
# For lines that are still on their way when a rank has ended, where something that it left holds the pipe open.
_DRAIN_SECONDS = 2.0


def run_local_ranks(
    command: Sequence[str],
    num_ranks: int,
    *,
    environment: Mapping[str, str] | None = None,
    grace_seconds: float = 30.0,
    show: Callable[[str], None] | None = None,
) -> int:
    """Runs a command as `num_ranks` ranks; returns the exit code of the first that failed, or 0.

    A rank that signal n ended has exit code 128 + n. When one fails, the others have `grace_seconds` to end by
    themselves; then they get SIGTERM, and at last SIGKILL. SIGINT, SIGTERM or SIGHUP to this process is passed on to
    all ranks once, and they have `grace_seconds`; a second one kills them. If this process is killed, so are they.

    The ranks meet in a store that this process keeps, so that what one of them said before it failed can be read by
    the others. Signals are passed on only if this is called in the main thread.

    Args:
        command: the program and its arguments; the program is looked up on PATH.
        num_ranks: how many.
        environment: variables for all ranks, which win over those of this process.
        grace_seconds: see above.
        show: called with each line of ranks that failed, such as "rank 2 | ValueError"; writes to stderr by default.
    """
    variables = {**os.environ, **(environment or {})}
    _check(command, num_ranks, variables)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with (
        HeldSignals() as signals,
        Events(signals) as events,
        socket.create_server((_ADDRESS, 0), backlog=num_ranks + 16) as listening,
    ):
        launch = _Launch(events, signals, num_ranks, grace_seconds)
        try:
            port = listening.getsockname()[1]
            launch.start(command, [_rank_variables(variables, rank, num_ranks, port) for rank in range(num_ranks)])
            # The ranks knock at the door that is there already, and are let in when torch is loaded here too.
            store = _serve_store(listening, num_ranks)
            launch.wait()
            del store
        finally:
            launch.close()
        launch.show_failures(show or _write_to_stderr)
        # These took their effect: the ranks have heard them, and the exit code tells.
        del signals.received[: launch.num_signals]
    return launch.exit_code


@final
class _Launch:
    """What is going on while ranks run."""

    def __init__(self, events: Events, signals: HeldSignals, num_ranks: int, grace_seconds: float) -> None:
        self.num_signals = 0
        """How many signals were passed on."""
        self._events = events
        self._signals = signals
        self._grace_seconds = grace_seconds
        self._ranks: list[GroupProcess] = []
        self._failed: list[GroupProcess] = []
        self._lines: list[deque[str]] = [deque(maxlen=_NUM_LINES) for _ in range(num_ranks)]
        self._readers: dict[int, LineReader] = {}
        self._started = time.monotonic()

    @property
    def exit_code(self) -> int:
        return next((rank.exit_code or 0 for rank in self._in_order_of_failure()), 0)

    def start(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        for number, environment in enumerate(environments):
            rank = GroupProcess(number, command, environment, output="inherited" if number == 0 else "together")
            self._ranks.append(rank)
            self._events.watch(rank.descriptor, partial(self._note_end, rank))
            for pipe in rank.pipes.values():
                self._readers[pipe] = LineReader(pipe, self._lines[number].append)
                self._events.watch(pipe, partial(self._read, pipe))

    def wait(self) -> None:
        """Returns when all ranks have ended."""
        while self._running() or self._readers:
            self._events.wait()
            while self.num_signals < len(self._signals.received) and self._running():
                self._pass_on(self._signals.received[self.num_signals])

    def close(self) -> None:
        """Ends what still runs."""
        for rank in self._ranks:
            rank.close()

    def show_failures(self, show: Callable[[str], None]) -> None:
        """Shows the last lines of ranks that failed, the first at the end, where a reader looks.

        Not of those that ended because a signal was passed on.
        """
        expected = {128 + number for number in self._signals.received[: self.num_signals]}
        for rank in reversed(self._in_order_of_failure()):
            if rank.was_ended and (rank.exit_code in expected or self.num_signals > 1):
                continue
            for line in self._lines[rank.number]:
                show(f"rank {rank.number} | {line}")

    def _in_order_of_failure(self) -> list[GroupProcess]:
        # One that was told to end is not the one that failed.
        return sorted(self._failed, key=lambda rank: rank.was_ended)

    def _running(self) -> list[GroupProcess]:
        return [rank for rank in self._ranks if rank.exit_code is None]

    def _read(self, pipe: int) -> None:
        if not self._readers[pipe].read():
            self._forget(pipe)

    def _forget(self, pipe: int) -> None:
        self._events.forget(pipe)
        del self._readers[pipe]

    def _note_end(self, rank: GroupProcess) -> None:
        self._events.forget(rank.descriptor)
        rank.collect()
        self._events.later(_DRAIN_SECONDS, partial(self._stop_reading, rank))
        if not rank.exit_code:
            return
        self._failed.append(rank)
        if len(self._failed) > 1 or rank.was_ended:
            return
        how = _describe_end(rank.exit_code)
        after = format_seconds(time.monotonic() - self._started)
        if not self._running():
            _log.warning("Rank %d %s after %s.", rank.number, how, after)
            return
        grace = format_seconds(self._grace_seconds)
        _log.warning("Rank %d %s after %s. The others have %s to end by themselves.", rank.number, how, after, grace)
        self._events.later(self._grace_seconds, partial(self._end_running, signal.SIGTERM, _TERM_SECONDS))

    def _stop_reading(self, rank: GroupProcess) -> None:
        for pipe in rank.pipes.values():
            if pipe in self._readers:
                self._readers[pipe].finish()
                self._forget(pipe)

    def _pass_on(self, number: int) -> None:
        self.num_signals += 1
        if self.num_signals > 1:
            self._end_running(signal.SIGKILL, 0.0)
        else:
            self._end_running(number, self._grace_seconds)

    def _end_running(self, number: int, grace_seconds: float) -> None:
        for rank in self._running():
            rank.was_ended = True
            rank.signal(number)
        if number != signal.SIGKILL:
            self._events.later(grace_seconds, partial(self._end_running, signal.SIGKILL, 0.0))


def _check(command: Sequence[str], num_ranks: int, environment: Mapping[str, str]) -> None:
    if num_ranks < 1:
        raise ConfigError(f"There must be at least 1 rank, not {num_ranks}.")
    if not command:
        raise ConfigError("There is no command to run as ranks.")
    if shutil.which(command[0], path=environment.get("PATH", os.defpath)) is None:
        raise ConfigError(f"There is no command {command[0]!r} on PATH. Name one that is, or its path.")
    if not hasattr(os, "pidfd_open"):
        raise ConfigError(f"Starting ranks needs Linux, this is {sys.platform}. Start them with torchrun.")


def _rank_variables(environment: Mapping[str, str], rank: int, num_ranks: int, port: int) -> dict[str, str]:
    # Where this process itself runs under torchrun, its store is not the one of these ranks.
    inherited = {key: value for key, value in environment.items() if not key.startswith("TORCHELASTIC_")}
    if rank > 0:
        # What a rank said before it was killed should not be lost in its buffer.
        inherited.setdefault("PYTHONUNBUFFERED", "1")
    return {
        **inherited,
        "OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS") or str(threads_per_rank(num_ranks, inherited)),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(port),
        # By these, torch's own rendezvous too finds the store here and not in rank 0.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _serve_store(listening: socket.socket, num_ranks: int) -> object:
    """Returns the store in which the ranks meet; it is there as long as somebody holds it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = listening.getsockname()[1]
    return TCPStore(_ADDRESS, port, num_ranks, True, wait_for_workers=False, master_listen_fd=listening.detach())


def _describe_end(exit_code: int) -> str:
    if exit_code == 128 + signal.SIGKILL:
        return "was killed, as the system does when memory runs out,"
    if exit_code > 128 and exit_code - 128 in set(signal.Signals):
        return f"was ended by {signal.Signals(exit_code - 128).name}"
    return f"failed with exit code {exit_code}"


def _write_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
