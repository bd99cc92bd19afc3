"""A view of a row reads and writes the array it is of."""

import numpy as np
import pytest

from laconic.kernels.compile import serial_kernel
from laconic.kernels.row_view import row_view


@serial_kernel
def double_piece(x, row, start, length):
    piece = row_view(x, row, start, length)
    for column in range(len(piece)):
        piece[column] *= 2


@pytest.mark.parametrize(("row", "start", "length"), [(0, 0, 6), (3, 2, 3), (4, 5, 1), (2, 6, 0)])
def test_it_is_that_piece_and_no_other(row, start, length):
    x = np.random.default_rng(0).normal(size=(5, 6))
    expected = x.copy()
    expected[row, start : start + length] *= 2
    double_piece(x, row, start, length)
    assert np.array_equal(x, expected)


def test_other_arrays_are_refused():
    with pytest.raises(TypeError, match="2-D C-contiguous"):
        double_piece(np.ones((4, 8))[:, ::2], 0, 0, 2)
