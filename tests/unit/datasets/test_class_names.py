"""What the log tells of labels that are text."""

import logging

import numpy as np
import pytest

from laconic.datasets._fields import to_named_labels


def test_classes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        y, names = to_named_labels(np.array(["dog", "", "cat", "dog"]), "labels.csv")
    assert (y.tolist(), names) == ([1, -1, 0, 1], ("cat", "dog"))
    assert caplog.messages == ["labels.csv: 2 classes <- cat, dog."]


def test_of_many_classes_the_first_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        to_named_labels(np.array([f"{number}{'!' * 90}" for number in range(8)] * 2), "labels.csv")
    shown = ", ".join(f"{number}{'!' * 39}..." for number in range(6))
    assert caplog.messages == [f"labels.csv: 8 classes <- {shown}, ...."]


def test_numbers_are_no_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert to_named_labels(np.array([0.0, np.nan, 1.0]), "labels.csv")[0].tolist() == [0, -1, 1]
    assert not caplog.messages


@pytest.mark.parametrize("word", ["NA", "N/A", "NaN", "nan", "null", "None"])
def test_a_word_for_no_label_stays_a_class_and_is_warned_of(caplog: pytest.LogCaptureFixture, word: str) -> None:
    labels = np.array(["dog", word, "cat", "dog"])
    assert to_named_labels(labels, "labels.csv")[1] == tuple(sorted(["cat", "dog", word]))
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert f"labels.csv: {word!r} is taken for a class" in warned[0]
    assert "leave the label of that node empty" in warned[0]


def test_a_class_that_the_data_names_itself_gets_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    to_named_labels(np.array(["none", "some"]), "y", ("none", "some"))
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
