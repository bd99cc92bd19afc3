"""What comes through a pipe, line by line."""

import os
from collections.abc import Callable
from typing import final

_READ_BYTES = 1 << 16


@final
class LineReader:
    """Cuts what comes through a pipe into lines.

    Args:
        pipe: descriptor to read from.
        on_line: called with each line, without its end.
    """

    def __init__(self, pipe: int, on_line: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._on_line = on_line
        self._rest = b""

    def read(self) -> bool:
        """Reads what is there and hands on the whole lines; returns whether more may come."""
        data = os.read(self._pipe, _READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hand_on(line)
        if not data:
            self.finish()
        return bool(data)

    def finish(self) -> None:
        """Hands on a last line that has no end."""
        rest, self._rest = self._rest, b""
        if rest:
            self._hand_on(rest)

    def _hand_on(self, line: bytes) -> None:
        # Of a line that a progress bar wrote over again and again, what a terminal would show in the end.
        visible = line.rstrip(b"\r").rpartition(b"\r")[2]
        self._on_line(visible.decode("utf-8", errors="replace"))
