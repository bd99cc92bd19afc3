"""Gathering rows copies those asked for, bit by bit."""

import numpy as np
import pytest

from laconic.kernels.gather import gather_rows


@pytest.mark.parametrize("width", [1, 7, 512])
@pytest.mark.parametrize("rows", [[], [3], [2, 2, 0, 4, 2], list(range(4, -1, -1)) * 20])
def test_it_copies_the_rows_asked_for(width, rows):
    values = np.random.default_rng(0).integers(0, 255, size=(5, width), dtype=np.uint8)
    rows = np.array(rows, dtype=np.int64)
    out = np.empty((len(rows), width), np.uint8)
    gather_rows(values, rows, out)
    assert np.array_equal(out, values[rows])
