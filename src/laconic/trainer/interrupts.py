"""Ctrl-C and SIGTERM as a wish: the loop finishes its step, leaves a checkpoint, and only then ends.

with Interrupts() as interrupts:
    while not interrupts.signal: ...
"""

import os
import signal
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import final

from laconic.processes import signal_handler

_NOTICE = b"\nInterrupted: finishing the step and saving. Press Ctrl-C again to end at once.\n"


@final
class Interrupts:
    """While entered, remembers the first SIGINT or SIGTERM in `signal`; a second Ctrl-C raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """Number of the signal that came, or None."""
        self._handlers = ExitStack()

    def __enter__(self) -> "Interrupts":
        self._handlers.enter_context(signal_handler(self._note, (signal.SIGINT, signal.SIGTERM)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            # Not print: the handler may run in the middle of one.
            os.write(2, _NOTICE)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
