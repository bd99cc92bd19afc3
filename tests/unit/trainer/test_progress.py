import io
import re

from rich.console import Console

from laconic.records import EpochRecord
from laconic.trainer.progress import LiveBar, PlainLines, choose_display, describe


def written(total: int, epochs: range, *, done: int = 0) -> list[str]:
    out = io.StringIO()
    display = PlainLines(Console(file=out, width=40))
    display.start(done=done, total=total, metric="accuracy")
    for epoch in epochs:
        display.show(EpochRecord(epoch, 0.5, val=0.25, seconds=0.01))
    display.stop()
    return out.getvalue().splitlines()


def test_a_terminal_gets_a_bar_and_anything_else_plain_lines():
    assert isinstance(choose_display(Console(file=io.StringIO(), force_terminal=True, _environ={})), LiveBar)
    assert isinstance(choose_display(Console(file=io.StringIO())), PlainLines)
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(choose_display(dumb), PlainLines)


def test_plain_lines_come_first_last_and_every_tenth():
    epochs = [int(re.match(r"epoch +(\d+)/205", line).group(1)) for line in written(205, range(1, 206))]  # type: ignore[union-attr]
    assert epochs == [1, *range(20, 201, 20), 205]


def test_a_short_run_has_a_line_per_epoch():
    assert len(written(4, range(1, 5))) == 4


def test_a_resumed_run_shows_its_first_epoch():
    assert len(written(200, range(101, 110), done=100)) == 1


def test_a_slow_run_shows_that_it_lives(monkeypatch):
    clock = iter(range(0, 10_000, 11))
    monkeypatch.setattr("laconic.trainer.progress.time.monotonic", lambda: next(clock))
    assert len(written(1000, range(1, 6))) == 5


def test_an_epoch_in_words():
    record = EpochRecord(3, 1.23456, val=0.5, seconds=0.010, evaluate_seconds=0.002, wait_seconds=0.001)
    assert describe(record, "roc_auc") == "loss 1.2346  val roc_auc 0.5000  12 ms/epoch  waiting 10%"
    assert describe(EpochRecord(3, 1.0, seconds=2.0), "accuracy") == "loss 1.0000  2.0 s/epoch"


def test_the_bar_shows_the_newest_epoch_and_gives_the_terminal_back():
    out = io.StringIO()
    display = LiveBar(Console(file=out, force_terminal=True, width=120, _environ={}))
    display.start(done=0, total=7, metric="accuracy")
    display.show(EpochRecord(6, 0.125, val=0.75))
    display.stop()
    text = out.getvalue()
    assert "6/7" in text
    assert "val accuracy 0.7500" in text
    assert text.rstrip().endswith("\x1b[?25h"), "the cursor is shown again"
