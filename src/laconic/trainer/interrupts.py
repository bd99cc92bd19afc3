"""Ctrl-C and SIGTERM as a wish: the loop finishes its step, leaves a checkpoint, and only then ends.

with Interrupts() as interrupts:
    while not interrupts.signal: ...
"""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, final

_NOTICE = b"\nInterrupted: finishing the step and saving. Press Ctrl-C again to end at once.\n"


@final
class Interrupts:
    """While entered, remembers the first SIGINT or SIGTERM in `signal`; a second Ctrl-C raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """Number of the signal that came, or None."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        # Python lets only the main thread set handlers; elsewhere the host program decides about signals.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            # Not print: the handler may run in the middle of one.
            os.write(2, _NOTICE)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
