"""Node orders for locality: neighbours get near numbers, so that a sparse product finds their rows in cache."""

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import serial_kernel

Ints = NDArray[np.integer]


@serial_kernel
def breadth_first(
    seeds: Ints, indptr: Ints, indices: Ints, parts: Ints, degrees: Ints, sorts: bool
) -> NDArray[np.int64]:
    """All nodes, part by part, each followed by its unmet neighbours within the part; `seeds` lists them by part.

    Rows hold the neighbours by either direction. With `sorts`, neighbours follow in ascending order of degree, as
    Cuthill and McKee have it.
    """
    order = np.empty(len(seeds), np.int64)
    is_met = np.zeros(len(seeds), np.bool_)
    head, tail = 0, 0
    for seed in seeds:
        if is_met[seed]:
            continue
        order[tail] = seed
        is_met[seed] = True
        tail += 1
        while head < tail:
            node = order[head]
            head += 1
            first = tail
            for edge in range(indptr[node], indptr[node + 1]):
                other = indices[edge]
                if not is_met[other] and parts[other] == parts[node]:
                    order[tail] = other
                    is_met[other] = True
                    tail += 1
            if sorts and tail - first > 1:
                ranked = np.argsort(degrees[order[first:tail]], kind="mergesort")
                order[first:tail] = order[first:tail][ranked]
    return order
