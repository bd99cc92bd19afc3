"""Compressed rows without direction: whether they are symmetric, and the plain neighbours of each node.

Partitioners and node orders ask who a node's neighbours are, in either direction, once each and without itself.
"""

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import serial_kernel


@serial_kernel
def is_symmetric(indptr: NDArray[np.int64], indices: NDArray[np.integer]) -> bool:
    """Whether each edge of sorted compressed rows has its reverse, as often; found without the transpose."""
    cursor = indptr[:-1].copy()
    for row in range(len(indptr) - 1):
        # Rows are visited in ascending order, so the reverse edges must stand in their rows in just that order.
        for edge in range(indptr[row], indptr[row + 1]):
            other = indices[edge]
            if cursor[other] == indptr[other + 1] or indices[cursor[other]] != row:
                return False
            cursor[other] += 1
    return True


@serial_kernel
def count_self_loops(indptr: NDArray[np.int64], indices: NDArray[np.integer]) -> int:
    """The number of edges from a node to itself."""
    loops = 0
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            loops += indices[edge] == row
    return loops


def merge_directions(
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    reverse_indptr: NDArray[np.int64],
    reverse_indices: NDArray[np.integer],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (indptr, indices) of the neighbours by either direction: sorted, no self-loops, no duplicates.

    Both pairs are sorted compressed rows of the same nodes, one by destination and one by source.
    """
    starts = np.zeros(len(indptr), np.int64)
    _merge(indptr, indices, reverse_indptr, reverse_indices, starts, np.empty(0, np.int64))
    merged = np.empty(starts[-1], np.int64)
    _merge(indptr, indices, reverse_indptr, reverse_indices, starts, merged)
    return starts, merged


@serial_kernel
def _merge(indptr, indices, reverse_indptr, reverse_indices, starts, out):
    # The first call, with an empty `out`, only counts into `starts`; the second one writes.
    written = 0
    for row in range(len(indptr) - 1):
        one, one_end = indptr[row], indptr[row + 1]
        two, two_end = reverse_indptr[row], reverse_indptr[row + 1]
        last = np.int64(-1)
        while one < one_end or two < two_end:
            if two == two_end or (one < one_end and indices[one] <= reverse_indices[two]):
                node = np.int64(indices[one])
                one += 1
            else:
                node = np.int64(reverse_indices[two])
                two += 1
            if node != row and node != last:
                if len(out):
                    out[written] = node
                written += 1
                last = node
        starts[row + 1] = written
