"""Signals that would end this process while a lab is up: turned into an exception that unwinds.

Python lets only the main thread set handlers. In another thread nothing is done, and the host program decides.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def unwinding_signals() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP raise SystemExit where they would end the process without taking down."""
    mine = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, _unwind)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _unwind(number: int, frame: FrameType | None) -> None:
    # What a shell expects of a command that a signal ended.
    raise SystemExit(128 + number)
