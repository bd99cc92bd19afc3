"""Subsets that sender and receiver draw alike from a key, so that no index has to travel."""

import numba
import numpy as np

from laconic.kernels.compile import parallel_kernel
from laconic.kernels.keyed import mix64, node_key


@parallel_kernel
def draw_columns(node_ids, key, width, columns):
    """Writes to each row of `columns`, int64 (n, m), m different columns below `width`, drawn by (key, node).

    They are the first m of one keyed permutation: a smaller m gives a part of the same columns.
    """
    for i in numba.prange(columns.shape[0]):
        row_key = node_key(key, node_ids[i])
        order = np.arange(width)
        for k in range(columns.shape[1]):
            # Fisher and Yates: each of those that are left is equally likely, up to 2**-64 * width.
            other = k + np.int64(mix64(row_key, np.uint64(k)) % np.uint64(width - k))
            drawn = order[other]
            order[other] = order[k]
            columns[i, k] = drawn


@parallel_kernel
def hash_nodes(node_ids, key, out):
    """Writes 64 random bits for (key, node) to `out`, uint64."""
    for i in numba.prange(len(out)):
        out[i] = node_key(key, node_ids[i])
