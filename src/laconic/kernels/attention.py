"""What the attention kernels share: the neighbours of a row with self-loops put in, dropout of edges, row arithmetic.

Attention over a graph is a softmax over the edges that arrive at a row. The kernels in `gat.py` and `gatv2.py` keep
numbers per edge and head at most, never per edge and feature, and add up each row in one thread and in a fixed order.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import inline_kernel
from laconic.kernels.keyed import edge_key, is_kept
from laconic.kernels.row_view import row_view

# How many edges ahead a neighbour's row is fetched: far enough to hide memory's delay, near enough to stay in cache.
AHEAD = 8
# PyG divides by the sum plus this; so do we, to be equal.
SOFTMAX_FLOOR = 1e-16


class Neighbours(NamedTuple):
    """Compressed rows, cut into chunks of equal work.

    The first `num_loops` rows have one self-loop each, at the end, and self-loops among their edges are passed over.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32] | NDArray[np.int64]
    bounds: NDArray[np.int64]
    num_loops: int


class EdgeDropout(NamedTuple):
    """Which (edge, head) pairs are dropped, keyed by the end points' numbers in the whole graph. Threshold 0: none.

    `factors` holds what a dropped and a kept weight are multiplied by: 0 and 1 / (1 - probability).
    """

    node_ids: NDArray[np.int64]
    key: np.uint64
    threshold: np.uint64
    factors: NDArray[np.float32] | NDArray[np.float64]


@inline_kernel
def is_own_loop(neighbours, row, other):
    """Whether an edge between `row` and `other` gives way to the one self-loop of that row."""
    return row == other and row < neighbours.num_loops


@inline_kernel
def dropout_key(dropout, source, destination):
    """The key of an edge's mask; nothing is computed where nothing is dropped."""
    if dropout.threshold == 0:
        return np.uint64(0)
    return edge_key(dropout.key, dropout.node_ids[source], dropout.node_ids[destination])


@inline_kernel
def dropout_factor(dropout, row_key, head):
    """What dropout multiplies the weight of a head by."""
    if dropout.threshold == 0 or is_kept(row_key, head, dropout.threshold):
        return dropout.factors[1]
    return dropout.factors[0]


@inline_kernel
def leaky(value, slope):
    return value if value > 0 else value * slope


@inline_kernel
def leaky_backward(gradient, value, slope):
    """The gradient before `leaky`; its derivative at zero is `slope`, as torch has it."""
    return gradient if value > 0 else gradient * slope


@inline_kernel
def add_scaled(target, weight, values):
    """target += weight * values."""
    for column in range(len(target)):
        target[column] += weight * values[column]


@inline_kernel
def inner(left, right):
    """The inner product of two rows."""
    total = left.dtype.type(0)
    for column in range(len(left)):
        total += left[column] * right[column]
    return total


@inline_kernel
def head_of(values, row, head, num_heads):
    """The channels of one head in a row that holds all heads one after another."""
    width = values.shape[1] // num_heads
    return row_view(values, row, head * width, width)
