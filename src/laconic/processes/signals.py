"""What this process does about signals while something is under way, and that it is undone afterwards.

Python lets only the main thread set handlers. In another thread nothing is changed, and the host program decides.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import final

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signal_handler(handler: Callable[[int, FrameType | None], None], numbers: Iterable[int]) -> Iterator[None]:
    """Inside, `handler` is called when one of the signals comes; the handlers that were there are put back after.

    A signal that is ignored, as Ctrl-C is for a shell's background jobs, stays ignored.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        # None is a handler that was not set by Python, which Python cannot put back.
        taken = [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def unwinding_signals() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP raise SystemExit where they would end the process without taking down."""
    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with signal_handler(_unwind, ending):
        yield


def _unwind(number: int, frame: FrameType | None) -> None:
    # What a shell expects of a command that a signal ended.
    raise SystemExit(128 + number)


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
        self._handlers = ExitStack()

    def __enter__(self) -> "HeldSignals":
        self._handlers.enter_context(signal_handler(self._note, _ENDING))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.close()
        if self.received:
            signal.raise_signal(self.received[0])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self.on_signal is not None:
            self.on_signal()
