"""Sparse matrix times dense rows: out[i] = diagonal[i] x[i] + sum over edges j -> i of coefficient(i, j) x[j].

The coefficient is row_scale[i] * column_scale[j] * values[edge]; a factor that is not there is passed as an empty
array: one compiled kernel serves sum, mean, GCN and weighted operators, forward and, on the transpose, backward.

The work is bound by memory: each edge reads one row of x at random. Two things bring it near a plain pass over the same
rows (`benchmarks/kernels.py` measures both): four neighbours are added at once, so the output row is read and written
once per four, and rows needed soon are prefetched.
"""

import numba
import numpy as np

from laconic.kernels.compile import inline_kernel, parallel_kernel
from laconic.kernels.prefetch import prefetch_row

# How many edges ahead a row is asked for: far enough to hide a miss, near enough not to be evicted. Measured at widths
# 40 to 256: 8 to 24 are alike, 4 is too near, 32 begins to lose.
PREFETCH_DISTANCE = 16


@inline_kernel
def _coefficient(edge, row, column, scale, values, column_scale, skip_loops):
    coefficient = scale
    if column_scale.size:
        coefficient *= column_scale[column]
    if values.size:
        coefficient *= values[edge]
    if skip_loops and row == column:
        # The diagonal stands for the loop; a zero keeps the loop over edges free of jumps. Not `*= 0`: numba would make
        # every coefficient a float64 for the sake of that integer, and the sums half as fast.
        coefficient -= coefficient
    return coefficient


@parallel_kernel
def sparse_product(
    bounds, indptr, indices, values, row_scale, column_scale, diagonal, skip_loops, x, out, add, distance
):
    """Writes the product into `out`, or adds it to what is there.

    Args:
        bounds: rows bounds[t] to bounds[t + 1] are one thread's work.
        indptr, indices: the edges in compressed rows by destination.
        values: a factor per edge, or empty.
        row_scale, column_scale: a factor per destination and per source, or empty.
        diagonal: the coefficient of a row's own x, or empty.
        skip_loops: leave out edges from a node to itself.
        x, out: dense rows, C-contiguous.
        add: keep what `out` holds and add to it; then there is no diagonal.
        distance: how many edges ahead to prefetch, PREFETCH_DISTANCE; not at all with the number of edges.
    """
    width = x.shape[1]
    num_edges = indices.shape[0]
    one = x.dtype.type(1)
    for part in numba.prange(bounds.shape[0] - 1):
        for i in range(bounds[part], bounds[part + 1]):
            target = out[i]
            if diagonal.size:
                own = diagonal[i]
                for f in range(width):
                    target[f] = own * x[i, f]
            elif not add:
                for f in range(width):
                    target[f] = 0
            scale = row_scale[i] if row_scale.size else one
            k = indptr[i]
            end = indptr[i + 1]
            while k + 4 <= end:
                for ahead in range(k + distance, min(k + distance + 4, num_edges)):
                    prefetch_row(x, indices[ahead], width)
                j0, j1, j2, j3 = indices[k], indices[k + 1], indices[k + 2], indices[k + 3]
                c0 = _coefficient(k, i, j0, scale, values, column_scale, skip_loops)
                c1 = _coefficient(k + 1, i, j1, scale, values, column_scale, skip_loops)
                c2 = _coefficient(k + 2, i, j2, scale, values, column_scale, skip_loops)
                c3 = _coefficient(k + 3, i, j3, scale, values, column_scale, skip_loops)
                for f in range(width):
                    target[f] += c0 * x[j0, f] + c1 * x[j1, f] + c2 * x[j2, f] + c3 * x[j3, f]
                k += 4
            while k < end:
                if k + distance < num_edges:
                    prefetch_row(x, indices[k + distance], width)
                j = indices[k]
                c = _coefficient(k, i, j, scale, values, column_scale, skip_loops)
                for f in range(width):
                    target[f] += c * x[j, f]
                k += 1


def no_factor(dtype: np.dtype) -> np.ndarray:
    """Returns the empty array that stands for an absent factor."""
    return np.empty(0, dtype)
