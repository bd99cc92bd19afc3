"""Rows on their way, in the forms that a coded exchange has them: there, decoded when waited for, or told of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from laconic.comm.exchange import Arriving


@final
@dataclass(frozen=True)
class Arrived:
    """Rows that are there."""

    rows: Tensor

    def wait(self) -> Tensor:
        return self.rows


@final
class Decoded:
    """Rows that are decoded when they are waited for."""

    def __init__(self, unpack: Callable[[], Tensor]) -> None:
        self._unpack: Callable[[], Tensor] | None = unpack
        self._rows: Tensor | None = None

    def wait(self) -> Tensor:
        if self._unpack is not None:
            self._rows = self._unpack()
            self._unpack = None
        assert self._rows is not None
        return self._rows


@final
class Noted:
    """Rows that go as they are; what came is told to somebody."""

    def __init__(self, arriving: Arriving, note: Callable[[Tensor], None]) -> None:
        self._arriving = arriving
        self._note: Callable[[Tensor], None] | None = note

    def wait(self) -> Tensor:
        rows = self._arriving.wait()
        if self._note is not None:
            self._note(rows)
            self._note = None
        return rows
