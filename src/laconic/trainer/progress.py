"""What a person sees while a run goes on: a live bar on a terminal, plain lines elsewhere, or nothing.

Before the first epoch a display says which phase is under way. Plain lines come at the first and last epoch, at every
tenth of the way, and at least every ten seconds: a log file of a short run has a dozen lines, and one of a long run
shows that it lives. "12 ms/epoch" is the time of the training steps; evaluations are not counted in it.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol, final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from laconic.records import EpochRecord
from laconic.trainer.traffic import EVERY_EPOCH, Traffic
from laconic.units import format_bytes, format_seconds

_LINE_INTERVAL_SECONDS = 10.0


class Status(Protocol):
    """Shows in a line what is under way."""

    def tell(self, text: str) -> None: ...

    def stop(self) -> None: ...


@final
class NoStatus:
    """Shows nothing."""

    def tell(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class Display(ABC):
    """Shows how a run goes on."""

    def phase(self, text: str) -> None:  # noqa: B027
        """Says what is under way, such as "Loading cora.npz", until the next phase or epoch is shown; "" ends it."""

    @abstractmethod
    def start(self, *, done: int, total: int, metric: str) -> None:
        """Begins, with `done` of `total` epochs behind us already."""

    @abstractmethod
    def show(self, record: EpochRecord) -> None:
        """Shows a finished epoch."""

    def show_traffic(self, traffic: Traffic) -> None:  # noqa: B027
        """Shows what all ranks received up to now."""

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

    def __init__(self, console: Console, status: Status | None = None) -> None:
        self._console = console
        self._status = status or NoStatus()
        self._is_traffic_shown = False
        self._scored: EpochRecord | None = None

    def phase(self, text: str) -> None:
        if text:
            self._status.tell(text)
        else:
            self._status.stop()

    def start(self, *, done: int, total: int, metric: str) -> None:
        self._total, self._metric = total, metric
        self._is_first = True
        self._shown_at = time.monotonic()
        self._status.tell("Training the first epoch")

    def show(self, record: EpochRecord) -> None:
        self._status.stop()
        if record.val is not None:
            self._scored = record
        at_tenth = record.epoch % max(1, self._total // 10) == 0
        overdue = time.monotonic() - self._shown_at >= _LINE_INTERVAL_SECONDS
        if self._is_first or at_tenth or overdue or record.epoch == self._total:
            width = len(str(self._total))
            line = f"epoch {record.epoch:>{width}}/{self._total}  {describe(record, self._metric, self._scored)}"
            self._console.print(line, soft_wrap=True)
            self._is_first, self._shown_at = False, time.monotonic()

    def show_traffic(self, traffic: Traffic) -> None:
        # Once: it hardly changes, and the summary has it too.
        if not self._is_traffic_shown:
            self._console.print(describe_traffic(traffic), soft_wrap=True)
        self._is_traffic_shown = True

    def stop(self) -> None:
        self._status.stop()


@final
class LiveBar(Display):
    """Keeps a bar up to date, and below it the newest epoch and the traffic."""

    def __init__(self, console: Console, status: Status | None = None) -> None:
        self._status = status or NoStatus()
        self._is_started = False
        self._scored: EpochRecord | None = None
        self._progress = _BarAndLines(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
        )

    def phase(self, text: str) -> None:
        if self._is_started:
            self._progress.update(self._task, description=text)
        else:
            self._status.tell(text)

    def start(self, *, done: int, total: int, metric: str) -> None:
        self._status.stop()
        self._metric = metric
        self._task = self._progress.add_task("Training the first epoch", total=total, completed=done)
        self._progress.start()
        self._is_started = True

    def show(self, record: EpochRecord) -> None:
        if record.val is not None:
            self._scored = record
        self._progress.epoch = describe(record, self._metric, self._scored)
        self._progress.update(self._task, completed=record.epoch, description="")

    def show_traffic(self, traffic: Traffic) -> None:
        self._progress.traffic = describe_traffic(traffic)

    def stop(self) -> None:
        self._status.stop()
        if self._is_started:
            self._progress.stop()


@final
class _BarAndLines(Progress):
    """A bar with lines of text below it, which may be wider than what the bar leaves."""

    epoch = ""
    traffic = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for line in (self.epoch, self.traffic):
            if line:
                yield Text(line)


def choose_display(console: Console, status: Status | None = None) -> Display:
    """Returns the display that suits where `console` writes to.

    Args:
        status: shows the phases before the first epoch.
    """
    is_live = console.is_terminal and not console.is_dumb_terminal
    return LiveBar(console, status) if is_live else PlainLines(console, status)


def describe(record: EpochRecord, metric: str, scored: EpochRecord | None = None) -> str:
    """Returns one epoch in a few words: "loss 1.9459  val accuracy 0.3160  12 ms/epoch".

    Args:
        scored: the last epoch that has a score, shown where this one has none.
    """
    words = [f"loss {record.loss:.4f}"]
    if record.val is not None:
        words.append(f"val {metric} {record.val:.4f}")
    elif scored is not None:
        words.append(f"val {metric} {scored.val:.4f} (epoch {scored.epoch})")
    words.append(f"{format_seconds(record.seconds)}/epoch")
    if record.wait_seconds > 0:
        words.append(f"waiting {record.wait_seconds / max(record.seconds, 1e-9):.0%}")
    return "  ".join(words)


def describe_traffic(traffic: Traffic) -> str:
    """Returns what travels in a few words: "traffic per epoch: rows 1.2 KiB (exact exchange 9.8 KiB), ..."."""
    words = []
    for purpose in EVERY_EPOCH:
        received = traffic.received.get(purpose, 0)
        exact = 0 if traffic.exact is None else traffic.exact.get(purpose, 0)
        if received or exact:
            beside = f" (exact exchange {_per_epoch(exact, traffic)})" if exact and exact != received else ""
            words.append(f"{purpose} {_per_epoch(received, traffic)}{beside}")
    setup = f"; set-up {format_bytes(traffic.received['setup'])} once" if traffic.received.get("setup") else ""
    when = "in the first epoch" if traffic.num_epochs == 1 else "per epoch"
    return f"traffic {when}: {', '.join(words) or 'none'}{setup}"


def _per_epoch(num_bytes: int, traffic: Traffic) -> str:
    return format_bytes(num_bytes / max(1, traffic.num_epochs))
