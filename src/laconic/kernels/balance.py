"""Cuts rows into chunks of equal work. Degrees follow a power law, so chunks of equally many rows would not be equal.

for chunk in numba.prange(NUM_CHUNKS):
    for row in range(bounds[chunk], bounds[chunk + 1]): ...
"""

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import serial_kernel

# A fixed number, so that sums per chunk do not depend on the number of threads; threads take equal shares of the
# chunks, and 240 divides evenly by most numbers of threads.
NUM_CHUNKS = 240


def balanced_rows(indptr: NDArray[np.int64], num_chunks: int = NUM_CHUNKS) -> NDArray[np.int64]:
    """Returns where each chunk of rows starts, int64 (num_chunks + 1,); rows plus edges are nearly equal per chunk."""
    bounds = np.empty(num_chunks + 1, np.int64)
    _cut(indptr, bounds)
    return bounds


@serial_kernel
def _cut(indptr, bounds):
    num_rows = len(indptr) - 1
    num_chunks = len(bounds) - 1
    total = indptr[num_rows] - indptr[0] + num_rows
    bounds[0] = 0
    low = 0
    for chunk in range(1, num_chunks):
        # chunk * total could overflow for no graph that fits in memory, but costs nothing to avoid.
        target = total // num_chunks * chunk + total % num_chunks * chunk // num_chunks
        high = num_rows
        while low < high:
            middle = (low + high) // 2
            if indptr[middle] - indptr[0] + middle < target:
                low = middle + 1
            else:
                high = middle
        bounds[chunk] = low
    bounds[num_chunks] = num_rows
