"""Events: one thread that waits for whatever comes first: a line, the end of a process, a signal, or a time.

with HeldSignals() as signals, Events(signals) as events:
    events.watch(process.descriptor, note_end)
    events.later(30.0, end_all)
    while ...:
        events.wait()                       # then look at signals.received
"""

import heapq
import itertools
import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import final

from laconic.processes.signals import HeldSignals

# A signal is delivered to the main thread and wakes it; this is for the day when it is not.
_LONGEST_WAIT_SECONDS = 1.0


@final
class Events:
    """What to do when something comes.

    Args:
        signals: wake a wait.
    """

    def __init__(self, signals: HeldSignals) -> None:
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._wake, self._noted = os.pipe()
        os.set_blocking(self._noted, False)
        self.watch(self._wake, lambda: os.read(self._wake, 1))

    def __enter__(self) -> "Events":
        self._signals.on_signal = self._note
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.on_signal = None
        self._selector.close()
        os.close(self._wake)
        os.close(self._noted)

    def watch(self, descriptor: int, action: Callable[[], object]) -> None:
        """Has `action` called whenever the descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def forget(self, descriptor: int) -> None:
        """Ends a watch."""
        self._selector.unregister(descriptor)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Has `action` called once, then."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))

    def wait(self) -> None:
        """Waits for what comes first, and calls what is due; returns at the latest after a second."""
        wait = _LONGEST_WAIT_SECONDS
        if self._due:
            wait = min(wait, max(0.0, self._due[0][0] - time.monotonic()))
        for key, _ in self._selector.select(wait):
            # An earlier event of the same round may have ended the watch.
            if key.fd in self._selector.get_map():
                key.data()
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def _note(self) -> None:
        with suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._noted, b"!")
