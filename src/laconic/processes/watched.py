"""WatchedProcesses: started one by one, watched by a single loop, and all ended when the block is left.

with HeldSignals() as signals, WatchedProcesses(signals, grace_seconds=30.0) as processes:
    for rank in range(4):
        processes.start(rank, command, variables, output="apart", on_line=show)
    processes.wait()

The loop waits for whatever comes first: a line, the end of a process, a signal, or a time that was set.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import final

from laconic.processes.events import Events
from laconic.processes.fork import Output
from laconic.processes.lines import LineReader
from laconic.processes.process import GroupProcess, Stream, Work
from laconic.processes.signals import HeldSignals

# Between SIGTERM and SIGKILL, for a process that had its grace period already.
_TERM_SECONDS = 10.0
# For lines that are still on their way when a process has ended, where something that it left holds the pipe open.
_DRAIN_SECONDS = 2.0


@final
class WatchedProcesses:
    """Processes that belong together: when one fails, or a signal comes, all of them end.

    When one fails, the others have `grace_seconds` to end by themselves; then they get SIGTERM, and at last SIGKILL. A
    signal to this process is passed on to all of them once, and they have `grace_seconds`; a second one kills them.

    Args:
        signals: those that are passed on, for as long as a process runs.
        grace_seconds: see above.
        on_failure: called with the first process that failed by itself, while others may still run.
        on_signal: called with the number of the first signal before it is passed on.
    """

    def __init__(
        self,
        signals: HeldSignals,
        *,
        grace_seconds: float,
        on_failure: Callable[[GroupProcess], None],
        on_signal: Callable[[int], None] | None = None,
    ) -> None:
        self.all: list[GroupProcess] = []
        self.ended_seconds: dict[int, float] = {}
        """When each of those that have ended did, by its number and in this order; counted from the first start."""
        self.num_signals = 0
        """How many signals were passed on."""
        self._signals = signals
        self._grace_seconds = grace_seconds
        self._on_failure = on_failure
        self._on_signal = on_signal
        self._events = Events(signals)
        self._readers: dict[int, LineReader] = {}
        self._is_heard = True
        self._started = 0.0
        self._open = ExitStack()

    def __enter__(self) -> "WatchedProcesses":
        self._open.enter_context(self._events)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def running(self) -> list[GroupProcess]:
        """Those that have not ended yet."""
        return [process for process in self.all if process.exit_code is None]

    @property
    def failed(self) -> list[GroupProcess]:
        """Those that ended with another code than 0, in this order; but one that was told to end is not the first."""
        by_number = {process.number: process for process in self.all}
        ended = [by_number[number] for number in self.ended_seconds]
        return sorted((process for process in ended if process.exit_code), key=lambda process: process.was_ended)

    def start(
        self,
        number: int,
        work: Work,
        environment: Mapping[str, str],
        *,
        output: Output,
        inside: Sequence[str] = (),
        on_line: Callable[[Stream, str], object] | None = None,
    ) -> None:
        """Starts one more; the arguments are those of GroupProcess.

        Args:
            on_line: called with each line that comes through a pipe, and by which.
        """
        self._started = self._started or time.monotonic()
        process = GroupProcess(number, work, environment, output=output, inside=inside)
        self.all.append(process)
        self._open.callback(process.close)
        self._events.watch(process.descriptor, partial(self._note_end, process))
        for stream, pipe in process.pipes.items():
            self._readers[pipe] = LineReader(pipe, partial(self._hand_on, on_line, stream))
            self._events.watch(pipe, partial(self._read, pipe))

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Has `action` called once, then, if that is before the last end."""
        self._events.later(seconds, action)

    def wait(self) -> None:
        """Returns when all have ended and their last line was handed on."""
        try:
            self._loop()
        except BaseException:
            # A fault of ours or of whoever takes the lines, who is not asked again.
            self._is_heard = False
            self._end_running(signal.SIGTERM, _TERM_SECONDS)
            self._loop()
            raise

    def _loop(self) -> None:
        while self.running or self._readers:
            self._events.wait()
            while self.num_signals < len(self._signals.received) and self.running:
                self._pass_on(self._signals.received[self.num_signals])

    def _hand_on(self, on_line: Callable[[Stream, str], object] | None, stream: Stream, line: str) -> None:
        if on_line is not None and self._is_heard:
            on_line(stream, line)

    def _read(self, pipe: int) -> None:
        if not self._readers[pipe].read():
            self._forget(pipe)

    def _forget(self, pipe: int) -> None:
        self._events.forget(pipe)
        del self._readers[pipe]

    def _note_end(self, process: GroupProcess) -> None:
        self._events.forget(process.descriptor)
        process.collect()
        self.ended_seconds[process.number] = time.monotonic() - self._started
        self._events.later(_DRAIN_SECONDS, partial(self._stop_reading, process))
        if self.failed != [process] or process.was_ended:
            return
        self._on_failure(process)
        self._events.later(self._grace_seconds, partial(self._end_running, signal.SIGTERM, _TERM_SECONDS))

    def _stop_reading(self, process: GroupProcess) -> None:
        for pipe in process.pipes.values():
            if pipe in self._readers:
                self._readers[pipe].finish()
                self._forget(pipe)

    def _pass_on(self, number: int) -> None:
        self.num_signals += 1
        if self.num_signals > 1:
            self._end_running(signal.SIGKILL, 0.0)
            return
        if self._on_signal is not None:
            self._on_signal(number)
        self._end_running(number, self._grace_seconds)

    def _end_running(self, number: int, grace_seconds: float) -> None:
        for process in self.running:
            process.was_ended = True
            process.signal(number)
        if number != signal.SIGKILL:
            self._events.later(grace_seconds, partial(self._end_running, signal.SIGKILL, 0.0))
