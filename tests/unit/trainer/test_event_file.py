"""TensorBoard reads what is written without it."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from laconic.trainer.event_file import EventFile


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_point_is_read_with_its_step_and_time(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "board", next_step=1)
    # Steps and lengths of one byte and of several; numbers that float32 holds.
    long = "a curve whose name is longer than 127 bytes: " + "x" * 200
    for step in (1, 127, 128, 300, 2**40):
        file.add({"loss": step / 4, "accuracy/val": -0.5, long: float("inf")}, step)
    file.close()
    steps = [1, 127, 128, 300, 2**40]
    assert curves(tmp_path / "board") == {
        "loss": [(step, step / 4) for step in steps],
        "accuracy/val": [(step, -0.5) for step in steps],
        long: [(step, float("inf")) for step in steps],
    }


def test_what_is_too_large_for_a_point_is_infinite(tmp_path: Path) -> None:
    file = EventFile(tmp_path, next_step=1)
    file.add({"loss": 1e39, "score": -1e39}, 1)
    file.close()
    assert curves(tmp_path) == {"loss": [(1, float("inf"))], "score": [(1, float("-inf"))]}


def test_points_of_a_run_that_got_further_before_it_was_resumed_do_not_count(tmp_path: Path) -> None:
    first = EventFile(tmp_path, next_step=1)
    for step in range(1, 6):
        first.add({"loss": 1.0}, step)
    first.close()
    second = EventFile(tmp_path, next_step=4)
    second.add({"loss": 2.0}, 4)
    second.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert curves(tmp_path) == {"loss": [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]}


def test_a_point_can_be_read_as_soon_as_it_was_added(tmp_path: Path) -> None:
    file = EventFile(tmp_path, next_step=1)
    file.add({"loss": 1.0}, 1)
    (path,) = tmp_path.iterdir()
    events = list(EventFileLoader(str(path)).Load())
    assert events[0].file_version == "brain.Event:2"
    assert events[0].wall_time == pytest.approx(path.stat().st_mtime, abs=60)
    assert [event.step for event in events] == [0, 1, 1]
    file.close()
