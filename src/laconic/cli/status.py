"""What a verb is doing, on stderr: a spinner on a terminal, plain lines elsewhere. Imports nothing heavy.

    with working("Loading PyTorch") as status:
        ...
        status.tell("Writing store/cora")

Elsewhere than on a terminal the first text is printed at once, and another one if it is still true two seconds later.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from laconic.cli.console import one_error_console

LOADING = "Loading PyTorch and PyTorch Geometric"
_LONG_SECONDS = 2.0


@final
class Status:
    """Shows in one line what is under way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._is_first = True
        self._line: Live | None = None
        self._drawing: set[threading.Thread] = set()
        self._timer: threading.Timer | None = None

    def tell(self, text: str) -> None:
        """Shows `text` instead of what was shown before."""
        if self._is_live and self._line is not None:
            self._line.update(Spinner("dots", Text(text)))
        elif self._is_live:
            self._line = Live(Spinner("dots", Text(text)), console=self._console, transient=True)
            before = set(threading.enumerate())
            # What follows may not give the thread that draws it a chance for a while.
            self._line.start(refresh=True)
            self._drawing = set(threading.enumerate()) - before
        else:
            self._print_if_long(text)

    def stop(self) -> None:
        """Takes the line away; `tell` may begin again."""
        if self._line is not None:
            self._line.stop()
            self._line = None
            for thread in self._drawing:
                # Rich does not wait for it, and a process that has a thread cannot be copied.
                thread.join()
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None

    def _print_if_long(self, text: str) -> None:
        self.stop()
        if self._is_first:
            self._print(text)
            self._is_first = False
            return
        self._timer = threading.Timer(_LONG_SECONDS, self._print, [text])
        self._timer.daemon = True
        self._timer.start()

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


@contextmanager
def working(text: str) -> Iterator[Status]:
    """Shows `text` while the block runs, or what it tells instead; errors and notes meanwhile go above it."""
    with one_error_console() as out:
        status = Status(out)
        status.tell(text)
        try:
            yield status
        finally:
            status.stop()
