"""Prefetching changes nothing that can be seen, and is there in the machine code."""

import re

import numba
import numpy as np
import pytest

from laconic.kernels.compile import serial_kernel
from laconic.kernels.prefetch import prefetch_row


@serial_kernel
def sum_with_prefetch(x, order):
    total = 0.0
    for k in range(len(order)):
        prefetch_row(x, order[min(k + 2, len(order) - 1)], x.shape[1])
        for f in range(x.shape[1]):
            total += x[order[k], f]
    return total


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [0, 1, 33])
def test_a_sum_is_the_same_with_it(dtype, width):
    x = np.arange(10 * width, dtype=dtype).reshape(10, width)
    assert sum_with_prefetch(x, np.arange(9, -1, -1)) == x.sum()


def test_the_hint_reaches_the_processor():
    # Compiled anew: numba does not show the code of a kernel that it took from disk.
    kernel = numba.njit(sum_with_prefetch.py_func)
    kernel(np.ones((4, 8)), np.arange(4))
    # Whatever the processor calls it: prefetcht0 on x86, prfm on ARM.
    assert re.search(r"prefetch|prfm", "".join(kernel.inspect_asm().values()))


def test_other_arrays_are_refused():
    with pytest.raises(TypeError, match="2-D C-contiguous"):
        sum_with_prefetch(np.ones((4, 8), order="F"), np.arange(4))
