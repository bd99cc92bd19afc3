"""Arguments and results between processes: what comes back is what went, and nothing is pickled."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from laconic.errors import ConfigError
from laconic.launching.values import read_value, write_value
from laconic.records import EpochRecord
from laconic.session.predictions import Predictions


def there_and_back(value, tmp_path):
    write_value(value, tmp_path / "value")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["value.json", "value.safetensors"]
    return read_value(tmp_path / "value")


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1, "a text", "", [], {}, (1, [2.5, ("x",)]), {"a": {1: None}, 2: ["list", []]},
        Path("some/where"), ["path", "x"], {"dict": ["tensor", "0"]}, float("inf"),
        EpochRecord(epoch=1, loss=0.5, val=0.25),
    ],
)  # fmt: skip
def test_plain_values_come_back_as_they_were(value, tmp_path):
    assert there_and_back(value, tmp_path) == value


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_back_bit_by_bit(dtype, tmp_path):
    whole = torch.arange(12).reshape(3, 4).to(dtype)
    # Views share memory, and one number has no shape.
    for tensor in (whole, whole.t(), whole[0, 1], whole[:0]):
        (found,) = there_and_back([tensor], tmp_path)
        assert found.dtype == dtype
        assert torch.equal(found, tensor)


def test_arrays_of_numbers_and_of_texts_come_back(tmp_path):
    arrays = [np.arange(6).reshape(2, 3).T, np.array(2.5), np.array(["ab", "c"]), np.array([["x"]], dtype=object)]
    for array, found in zip(arrays, there_and_back(arrays, tmp_path), strict=True):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert there_and_back(np.float32(0.5), tmp_path) == 0.5


def test_predictions_come_back(tmp_path):
    predictions = Predictions(np.arange(3), np.array([1, 0, 1]), np.ones((3, 2), np.float32), epoch=4)
    found = there_and_back({"it": predictions}, tmp_path)["it"]
    assert isinstance(found, Predictions)
    np.testing.assert_array_equal(found.probabilities, predictions.probabilities)


def test_what_cannot_go_is_named_with_its_place(tmp_path):
    with pytest.raises(ConfigError, match=r"the value\['models'\]\[1\] is a Linear"):
        write_value({"models": [1, nn.Linear(2, 2)]}, tmp_path / "value")


def test_a_class_of_somebody_else_is_not_imported(tmp_path):
    write_value([], tmp_path / "value")
    (tmp_path / "value.json").write_text('["dataclass", "os", "system", ["dict", []]]')
    with pytest.raises(ConfigError, match="unknown kind"):
        read_value(tmp_path / "value")
