"""Where the command writes: results to stdout, everything else to stderr. Knows terminals, nothing of graphs.

A new Console is made on each call, because its width is that of the terminal at that moment.
"""

import logging
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

# The console on which something is kept up to date at the moment, if any.
_in_use: list[Console] = []


def console() -> Console:
    """Returns the console for results, on stdout."""
    return Console(highlight=False)


def error_console() -> Console:
    """Returns the console for errors, notes and progress, on stderr."""
    return _in_use[-1] if _in_use else Console(stderr=True, highlight=False)


@contextmanager
def one_error_console() -> Iterator[Console]:
    """Inside, `error_console` gives this one, so that lines go above what is kept up to date on it."""
    _in_use.append(error_console())
    try:
        yield _in_use[-1]
    finally:
        _in_use.pop()


def print_error(message: str) -> None:
    """Prints "Error: ..." on stderr, wrapped to the terminal; indented lines (code to copy) keep their own shape."""
    _print_labelled("Error", "bold red", message)


def show_log_lines(*, debug: bool) -> None:
    """Sends the library's log lines to stderr: notes and warnings, or everything when `debug`."""
    logger = logging.getLogger("laconic")
    for handler in list(logger.handlers):
        if isinstance(handler, _ConsoleHandler):
            logger.removeHandler(handler)
    logger.addHandler(_ConsoleHandler())
    logger.setLevel(logging.DEBUG if debug else logging.INFO)


class _ConsoleHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            _print_labelled("Warning", "yellow", record.getMessage())
        else:
            _print_labelled("Note", "dim", record.getMessage())


def _print_labelled(label: str, style: str, message: str) -> None:
    out = error_console()
    pieces: list[str] = []
    for line in f"{label}: {message}".splitlines():
        if line.startswith("  "):
            pieces.append(line)
        else:
            # A long path is left whole, to be copied, where rich would cut it at the margin.
            pieces += textwrap.wrap(line, out.width, break_long_words=False, break_on_hyphens=False) or [""]
    for number, piece in enumerate(pieces):
        text = Text(piece)
        if number == 0:
            text.stylize(style, 0, len(label) + 1)
        out.print(text, soft_wrap=True)
