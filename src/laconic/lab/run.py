"""One command on all hosts of a network, from its start to the end of its last process.

A single loop waits for whatever comes first: a line, the end of a process, a signal to the lab, or a time that was
set (a link to be lost, a grace period that is over).
"""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from laconic.lab.losses import LinkLoss
from laconic.lab.network import Network
from laconic.lab.results import HostResult, OnOutput, RunResult
from laconic.processes import Events, GroupProcess, HeldSignals, LineReader, Stream
from laconic.units import format_seconds

_log = logging.getLogger(__name__)
# Between SIGTERM and SIGKILL, for a process that had its grace period already.
_TERM_SECONDS = 10.0
# For lines that are still on their way when a process has ended, where something that it left holds the pipe open.
_DRAIN_SECONDS = 2.0


@final
class Run:
    """What is going on while a command runs in a lab."""

    def __init__(
        self, network: Network, signals: HeldSignals, *, on_output: OnOutput | None, capture: bool, grace_seconds: float
    ) -> None:
        self._network = network
        self._signals = signals
        self._on_output = on_output
        self._grace_seconds = grace_seconds
        hosts = range(network.num_hosts)
        self._captured: list[dict[Stream, list[str]]] | None = (
            [{"stdout": [], "stderr": []} for _ in hosts] if capture else None
        )
        self._processes: list[GroupProcess] = []
        self._ended_seconds: dict[int, float] = {}
        self._num_signals = 0
        self._cut: set[int] = set()
        self._events = Events(signals)
        self._readers: dict[int, LineReader] = {}
        self._started = 0.0

    def conduct(
        self, command: Sequence[str], environments: Sequence[dict[str, str]], losses: Sequence[LinkLoss]
    ) -> RunResult:
        """Runs the command to its end on all hosts, and tells how it ended."""
        before = self._network.traffic()
        with self._events:
            try:
                self._start(command, environments)
                for loss in losses:
                    self._events.later(loss.after_seconds, partial(self._lose_link, loss))
                self._loop_to_the_end()
            finally:
                for process in self._processes:
                    process.close()
                for host in self._cut:
                    self._network.mend(host)
        after = self._network.traffic()
        return RunResult(
            tuple(
                HostResult(
                    host=process.number,
                    exit_code=process.exit_code or 0,
                    seconds=self._ended_seconds[process.number],
                    was_ended=process.was_ended,
                    traffic=after[process.number] - before[process.number],
                    stdout=self._text(process.number, "stdout"),
                    stderr=self._text(process.number, "stderr"),
                )
                for process in self._processes
            )
        )

    def _start(self, command: Sequence[str], environments: Sequence[dict[str, str]]) -> None:
        self._started = time.monotonic()
        for host, environment in enumerate(environments):
            process = GroupProcess(host, command, environment, output="apart", inside=self._network.enter(host))
            self._processes.append(process)
            self._events.watch(process.descriptor, partial(self._note_end, process))
            for stream, pipe in process.pipes.items():
                self._readers[pipe] = LineReader(pipe, self._line_taker(host, stream))
                self._events.watch(pipe, partial(self._read, pipe))

    def _loop_to_the_end(self) -> None:
        try:
            self._loop()
        except BaseException:
            # A fault of ours or of whoever takes the output, who is not asked again.
            self._on_output = None
            self._end_running(signal.SIGTERM, _TERM_SECONDS)
            self._loop()
            raise

    def _loop(self) -> None:
        while self._running() or self._readers:
            self._events.wait()
            while self._num_signals < len(self._signals.received):
                self._pass_on(self._signals.received[self._num_signals])

    def _running(self) -> list[GroupProcess]:
        return [process for process in self._processes if process.exit_code is None]

    def _read(self, pipe: int) -> None:
        if not self._readers[pipe].read():
            self._forget(pipe)

    def _forget(self, pipe: int) -> None:
        self._events.forget(pipe)
        del self._readers[pipe]

    def _line_taker(self, host: int, stream: Stream) -> Callable[[str], None]:
        def take(line: str) -> None:
            if self._captured is not None:
                self._captured[host][stream].append(line)
            if self._on_output is not None:
                self._on_output(host, stream, line)

        return take

    def _text(self, host: int, stream: Stream) -> str | None:
        if self._captured is None:
            return None
        return "".join(f"{line}\n" for line in self._captured[host][stream])

    def _note_end(self, process: GroupProcess) -> None:
        self._events.forget(process.descriptor)
        process.collect()
        seconds = time.monotonic() - self._started
        is_first_failure = process.exit_code != 0 and not any(
            earlier.exit_code for earlier in self._processes if earlier is not process
        )
        self._ended_seconds[process.number] = seconds
        self._events.later(_DRAIN_SECONDS, partial(self._stop_reading, process))
        if is_first_failure and not process.was_ended and self._running():
            _log.warning(
                "Host %d failed with exit code %s after %s. The others have %s to end by themselves.",
                process.number,
                process.exit_code,
                format_seconds(seconds),
                format_seconds(self._grace_seconds),
            )
            self._events.later(self._grace_seconds, partial(self._end_running, signal.SIGTERM, _TERM_SECONDS))

    def _stop_reading(self, process: GroupProcess) -> None:
        for pipe in process.pipes.values():
            if pipe in self._readers:
                self._readers[pipe].finish()
                self._forget(pipe)

    def _pass_on(self, number: int) -> None:
        """Passes a signal to the lab on to the hosts; a second one ends them at once."""
        self._num_signals += 1
        if self._num_signals > 1:
            self._end_running(signal.SIGKILL, 0.0)
            return
        name = signal.Signals(number).name
        _log.warning(
            "%s: the hosts have %s to end; once more, and they are ended at once.",
            "Interrupted" if number == signal.SIGINT else f"Ended by {name}",
            format_seconds(self._grace_seconds),
        )
        self._end_running(number, self._grace_seconds)

    def _end_running(self, number: int, grace_seconds: float) -> None:
        for process in self._running():
            process.was_ended = True
            process.signal(number)
        if number != signal.SIGKILL:
            self._events.later(grace_seconds, partial(self._end_running, signal.SIGKILL, 0.0))

    def _lose_link(self, loss: LinkLoss) -> None:
        self._network.cut(loss.host)
        self._cut.add(loss.host)
        _log.info("Host %d lost its link after %s.", loss.host, format_seconds(loss.after_seconds))
