"""Packing against plain numpy."""

import numpy as np
import pytest

from laconic.kernels.keyed import fold_key
from laconic.kernels.packing import dequantize_rows, quantize_rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3, 8, 17, 64])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_nearest_levels_are_those_of_numpy(bits, width, dtype):
    rng = np.random.default_rng(bits * width)
    rows = rng.normal(size=(20, width)).astype(dtype)
    top = 2**bits - 1
    low = rows.min(axis=1)
    step = ((rows.max(axis=1) - low) / top).astype(dtype)
    packed = np.empty((20, (width * bits + 7) // 8), np.uint8)
    quantize_rows(rows, low, step, np.arange(20), fold_key(1), bits, False, packed)
    levels = np.zeros_like(rows) if width == 1 else np.floor((rows - low[:, None]) / step[:, None] + 0.5)
    shifts = np.arange(0, 8, bits)
    unpacked = ((packed[:, :, None] >> shifts) & top).reshape(20, -1)
    np.testing.assert_array_equal(unpacked[:, :width], levels)
    # What is left of the last byte is 0, so that equal rows are equal bytes.
    assert not unpacked[:, width:].any()
    out = np.empty_like(rows)
    dequantize_rows(packed, low, step, bits, out)
    np.testing.assert_allclose(out, low[:, None] + levels * step[:, None], rtol=0, atol=1e-6)


def test_chance_rounds_up_as_often_as_the_part_of_a_step_says():
    rows = np.tile(np.linspace(0, 3, 25), (20000, 1))
    packed = np.empty((20000, 7), np.uint8)
    quantize_rows(rows, np.zeros(20000), np.ones(20000), np.arange(20000), fold_key(2), 2, True, packed)
    out = np.empty_like(rows)
    dequantize_rows(packed, np.zeros(20000), np.ones(20000), 2, out)
    part = rows[0] % 1
    z = (out.mean(axis=0) - rows[0]) / np.sqrt(np.maximum(part * (1 - part), 1e-9) / 20000)
    assert np.abs(z).max() < 4
    assert set(np.unique(np.abs(out - rows) < 1)) == {True}
