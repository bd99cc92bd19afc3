"""What a person sees while a run goes on: a live bar on a terminal, plain lines elsewhere, or nothing.

Plain lines come at the first and last epoch, at every tenth of the way, and at least every ten seconds: a log file of a
short run has a dozen lines, and one of a long run shows that it lives.
"""

import time
from abc import ABC, abstractmethod
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from laconic.records import EpochRecord
from laconic.units import format_seconds

_LINE_INTERVAL_SECONDS = 10.0


class Display(ABC):
    """Shows how a run goes on."""

    @abstractmethod
    def start(self, *, done: int, total: int, metric: str) -> None:
        """Begins, with `done` of `total` epochs behind us already."""

    @abstractmethod
    def show(self, record: EpochRecord) -> None:
        """Shows a finished epoch."""

    @abstractmethod
    def stop(self) -> None:
        """Ends, also when the run ended early."""


@final
class Silent(Display):
    """Shows nothing."""

    def start(self, *, done: int, total: int, metric: str) -> None:
        pass

    def show(self, record: EpochRecord) -> None:
        pass

    def stop(self) -> None:
        pass


@final
class PlainLines(Display):
    """Writes a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self, *, done: int, total: int, metric: str) -> None:
        self._total, self._metric = total, metric
        self._is_first = True
        self._shown_at = time.monotonic()

    def show(self, record: EpochRecord) -> None:
        at_tenth = record.epoch % max(1, self._total // 10) == 0
        overdue = time.monotonic() - self._shown_at >= _LINE_INTERVAL_SECONDS
        if self._is_first or at_tenth or overdue or record.epoch == self._total:
            width = len(str(self._total))
            line = f"epoch {record.epoch:>{width}}/{self._total}  {describe(record, self._metric)}"
            self._console.print(line, soft_wrap=True)
            self._is_first, self._shown_at = False, time.monotonic()

    def stop(self) -> None:
        pass


@final
class LiveBar(Display):
    """Keeps one line with a bar up to date."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
        )

    def start(self, *, done: int, total: int, metric: str) -> None:
        self._metric = metric
        self._task = self._progress.add_task("", total=total, completed=done)
        self._progress.start()

    def show(self, record: EpochRecord) -> None:
        self._progress.update(self._task, completed=record.epoch, description=describe(record, self._metric))

    def stop(self) -> None:
        self._progress.stop()


def choose_display(console: Console) -> Display:
    """Returns the display that suits where `console` writes to."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    return LiveBar(console) if is_live else PlainLines(console)


def describe(record: EpochRecord, metric: str) -> str:
    """Returns one epoch in a few words: "loss 1.9459  val accuracy 0.3160  12 ms/epoch"."""
    words = [f"loss {record.loss:.4f}"]
    if record.val is not None:
        words.append(f"val {metric} {record.val:.4f}")
    words.append(f"{format_seconds(record.seconds + record.evaluate_seconds)}/epoch")
    if record.wait_seconds > 0:
        words.append(f"waiting {record.wait_seconds / max(record.seconds, 1e-9):.0%}")
    return "  ".join(words)
