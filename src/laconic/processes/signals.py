"""Signals that would end this process while others depend on it: held back, and acted on afterwards.

Python lets only the main thread set handlers. In another thread nothing is held, and the host program decides.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, final

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
class HeldSignals:
    """While entered, notes SIGINT, SIGTERM and SIGHUP instead of acting on them; acts on the first one afterwards.

    So nothing is left half built or half taken down, and processes get their time to end.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        """Numbers of the signals that came, in order; what is taken out of it is not acted on."""
        self.on_signal: Callable[[], None] | None = None
        """Called when one came, from the handler: it should do no more than wake the main thread."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "HeldSignals":
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                # One that is ignored, as Ctrl-C is for a shell's background jobs, stays ignored.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self.received:
            signal.raise_signal(self.received[0])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self.on_signal is not None:
            self.on_signal()
