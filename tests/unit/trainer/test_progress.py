import io
import re

import pytest
from rich.console import Console

from laconic.records import EpochRecord
from laconic.trainer.progress import LiveBar, PlainLines, choose_display, describe, describe_traffic
from laconic.trainer.traffic import Traffic


def written(total: int, epochs: range, *, done: int = 0, scores_every: int = 1) -> list[str]:
    out = io.StringIO()
    display = PlainLines(Console(file=out, width=40))
    display.start(done=done, total=total, metric="accuracy")
    for epoch in epochs:
        display.show(EpochRecord(epoch, 0.5, val=None if epoch % scores_every else 0.25, seconds=0.01))
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
    assert describe(record, "roc_auc") == "loss 1.2346  val roc_auc 0.5000  10 ms/epoch  waiting 10%"
    assert describe(EpochRecord(3, 1.0, seconds=2.0), "accuracy") == "loss 1.0000  2.0 s/epoch"


def test_between_scores_the_last_one_is_shown_with_its_epoch():
    scored = EpochRecord(10, 1.0, val=0.5)
    assert describe(EpochRecord(12, 0.5, seconds=1.0), "accuracy", scored) == (
        "loss 0.5000  val accuracy 0.5000 (epoch 10)  1.0 s/epoch"
    )
    lines = written(40, range(1, 41), scores_every=10)
    assert "val accuracy" not in lines[0]
    assert "val accuracy 0.2500 (epoch 10)" in lines[3]
    assert "val accuracy 0.2500  " in lines[-1]


TRAFFIC = Traffic(
    10,
    {"rows": 10_240, "gradients": 20_480, "evaluation": 1024, "setup": 4096, "records": 999},
    {"rows": 102_400, "gradients": 20_480, "evaluation": 1024},
)


def test_traffic_in_words():
    assert describe_traffic(TRAFFIC) == (
        "traffic per epoch: rows 1.0 KiB (exact exchange 10.0 KiB), gradients 2.0 KiB, evaluation 102 B; "
        "set-up 4.0 KiB once"
    )
    alone = Traffic(1, {"gradients": 2048, "refresh": 512}, {"rows": 4096, "gradients": 2048, "evaluation": 0})
    assert describe_traffic(alone) == (
        "traffic in the first epoch: rows 0 B (exact exchange 4.0 KiB), gradients 2.0 KiB, refresh 512 B"
    )
    assert describe_traffic(Traffic(2, {"rows": 2048}, None)) == "traffic per epoch: rows 1.0 KiB"


def test_plain_lines_tell_the_traffic_once():
    out = io.StringIO()
    display = PlainLines(Console(file=out))
    display.start(done=0, total=3, metric="accuracy")
    for _ in range(3):
        display.show_traffic(TRAFFIC)
    assert out.getvalue().count("traffic per epoch: rows 1.0 KiB") == 1


class Listener:
    """Notes what a status is told."""

    def __init__(self):
        self.told = []

    def tell(self, text):
        self.told.append(text)

    def stop(self):
        self.told.append(None)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_phases_before_the_first_epoch_are_told_and_end_with_it(is_terminal):
    status = Listener()
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80, _environ={})
    display = choose_display(console, status)
    display.phase("Loading cora.npz")
    display.phase("Checking the model")
    assert status.told == ["Loading cora.npz", "Checking the model"]
    display.start(done=0, total=3, metric="accuracy")
    display.show(EpochRecord(1, 0.5))
    assert status.told[-1] is None
    display.stop()


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_has_the_traffic_below_it_whatever_the_width(width):
    out = io.StringIO()
    display = LiveBar(Console(file=out, force_terminal=True, width=width, _environ={}))
    display.start(done=0, total=7, metric="accuracy")
    display.phase("Evaluating on the whole graph")
    display.show(EpochRecord(6, 0.125, val=0.75))
    display.show_traffic(TRAFFIC)
    display.stop()
    text = " ".join(out.getvalue().split())
    for words in ("val accuracy 0.7500", "rows 1.0 KiB (exact exchange 10.0 KiB)", "set-up 4.0 KiB once"):
        assert words in text


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
