"""Starts several ranks of a command on this machine, and stays until the last one has ended.

    exit_code = run_local_ranks([sys.executable, "-m", "laconic", "train", "store/cora"], 4)

Each rank finds torchrun's variables, as under torchrun itself. Rank 0 writes where this process does, as if it were
alone. What the others write is kept, and its end is shown if they fail. A message that ranks leave for their starter
(last_words.py) is told once.
"""

import logging
import os
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import final

from laconic.errors import ConfigError
from laconic.launching.last_words import last_words_variable, read_last_words, tell_once
from laconic.processes import GroupProcess, HeldSignals, Stream, WatchedProcesses, is_safe_to_fork, threads_per_rank
from laconic.processes.process import Work
from laconic.units import format_seconds

_log = logging.getLogger(__name__)
_ADDRESS = "127.0.0.1"
# Shown of each rank that failed.
_NUM_LINES = 40


def run_local_ranks(
    command: Sequence[str],
    num_ranks: int,
    *,
    loaded: Callable[[], object] | None = None,
    environment: Mapping[str, str] | None = None,
    grace_seconds: float = 30.0,
    show: Callable[[str], None] | None = None,
    tell: Callable[[str], None] | None = None,
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
        loaded: what the command does, where this process has imported all that it needs (`template.py`): the ranks are
            then copies of this process that call it, unless this process has threads, which copies would lack.
        environment: variables for all ranks, which win over those of this process.
        grace_seconds: see above.
        show: called with each line of ranks that failed, such as "rank 2 | ValueError"; writes to stderr by default.
        tell: called, at the end, with each message that ranks have left by `leave_last_words`; without it they are not
            asked to, and say themselves what they have to say.
    """
    variables = {**os.environ, **(environment or {})}
    _check(command, num_ranks, variables)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with HeldSignals() as signals, _folder_of_words() as folder:
        launch = _Launch(signals, num_ranks, grace_seconds, folder if tell is not None else None)
        launch.run(loaded if loaded is not None and is_safe_to_fork() else command, variables)
        launch.show_failures(show or _write_to_stderr)
        if tell is not None:
            for message in tell_once(launch.words()):
                tell(message)
        # These took their effect: the ranks have heard them, and the exit code tells.
        del signals.received[: launch.num_signals]
    return launch.exit_code


@contextmanager
def _folder_of_words() -> Iterator[Path]:
    # Not by TemporaryDirectory: a copy of this process would take the folder away when it ends.
    folder = mkdtemp(prefix="laconic-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@final
class _Launch:
    """What is going on while ranks run."""

    def __init__(self, signals: HeldSignals, num_ranks: int, grace_seconds: float, folder: Path | None) -> None:
        self._signals = signals
        self._folder = folder
        self._num_ranks = num_ranks
        self._grace_seconds = grace_seconds
        self._lines: list[deque[str]] = [deque(maxlen=_NUM_LINES) for _ in range(num_ranks)]
        self._ranks = WatchedProcesses(signals, grace_seconds=grace_seconds, on_failure=self._tell_failure)

    @property
    def num_signals(self) -> int:
        """How many signals were passed on."""
        return self._ranks.num_signals

    @property
    def exit_code(self) -> int:
        return next((rank.exit_code or 0 for rank in self._ranks.failed), 0)

    def run(self, work: Work, variables: Mapping[str, str]) -> None:
        """Starts the ranks, and returns when all of them have ended."""
        door = socket.create_server((_ADDRESS, 0), backlog=self._num_ranks + 16)
        with self._ranks, door as listening:
            port = listening.getsockname()[1]
            for rank in range(self._num_ranks):
                own, keep = _rank_variables(variables, rank, self._num_ranks, port), partial(self._keep_line, rank)
                if self._folder is not None:
                    own |= last_words_variable(self._folder, rank)
                self._ranks.start(rank, work, own, output="together" if rank else "inherited", on_line=keep)
            # The ranks knock at the door that is there already, and are let in when torch is loaded here too.
            store = _serve_store(listening, self._num_ranks)
            self._ranks.wait()
            del store

    def words(self) -> dict[int, str]:
        """Returns the messages that ranks have left."""
        return read_last_words(self._folder) if self._folder is not None else {}

    def show_failures(self, show: Callable[[str], None]) -> None:
        """Shows the last lines of ranks that failed, the first at the end, where a reader looks.

        Not of those that ended because a signal was passed on, nor of those with no more to say than rank 0.
        """
        words = self.words()
        expected = {128 + number for number in self._signals.received[: self.num_signals]}
        for rank in reversed(self._ranks.failed):
            if rank.was_ended and (rank.exit_code in expected or self.num_signals > 1):
                continue
            if rank.number in words and words[rank.number] == words.get(0):
                continue
            for line in self._lines[rank.number]:
                show(f"rank {rank.number} | {line}")

    def _keep_line(self, rank: int, stream: Stream, line: str) -> None:
        self._lines[rank].append(line)

    def _tell_failure(self, rank: GroupProcess) -> None:
        if rank.number in self.words():
            # It says why itself, and the others follow within a moment, or say what they wait for.
            return
        how = _describe_end(rank.exit_code or 0)
        after = format_seconds(self._ranks.ended_seconds[rank.number])
        if not self._ranks.running:
            _log.warning("Rank %d %s after %s.", rank.number, how, after)
            return
        grace = format_seconds(self._grace_seconds)
        _log.warning("Rank %d %s after %s. The others have %s to end by themselves.", rank.number, how, after, grace)


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
