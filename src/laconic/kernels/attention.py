"""What the attention kernels share: the terms of a row with self-loops put in, softmax, dropout, sums of rows.

Attention over a graph is a softmax over the edges that arrive at a row. The kernels in `gat.py` and `gatv2.py` keep
numbers per edge and head at most, never per edge and feature, and add up each row in one thread and in a fixed order.
They work row by row: list the row's terms (its edges and its self-loop), find the weight of each, then sum.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import inline_kernel
from laconic.kernels.keyed import edge_key, is_kept
from laconic.kernels.prefetch import prefetch_row
from laconic.kernels.row_view import clear_row, row_view

# How many edges ahead a neighbour's row is fetched: far enough to hide memory's delay, near enough to stay in cache.
AHEAD = 8
# PyG divides by the sum plus this; so do we, to be equal.
_SOFTMAX_FLOOR = 1e-16


class Neighbours(NamedTuple):
    """Compressed rows, cut into chunks of equal work.

    The first `num_loops` rows have one self-loop each, after their edges; self-loops among the edges are passed over.
    `edge_order` is the place of each edge in tensors per edge; empty where that is its position.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32] | NDArray[np.int64]
    edge_order: NDArray[np.int32] | NDArray[np.int64]
    bounds: NDArray[np.int64]
    num_loops: int


class EdgeDropout(NamedTuple):
    """Which (edge, head) pairs are dropped, keyed by the end points' numbers in the whole graph. Threshold 0: none."""

    node_ids: NDArray[np.int64]
    key: np.uint64
    threshold: np.uint64
    # What a dropped and a kept weight are multiplied by: 0 and 1 / (1 - probability).
    factors: NDArray[np.float32] | NDArray[np.float64]


@inline_kernel
def most_terms(neighbours, chunk):
    """The largest number of terms of a row in a chunk: the size of the scratch space."""
    most = 0
    for row in range(neighbours.bounds[chunk], neighbours.bounds[chunk + 1]):
        most = max(most, neighbours.indptr[row + 1] - neighbours.indptr[row])
    return most + 1


@inline_kernel
def list_terms(neighbours, row, others, edges):
    """Writes the other end and the edge of each term of a row, and returns how many terms there are.

    Self-loops have places of their own after all edges.
    """
    indptr, indices, edge_order, _, num_loops = neighbours
    count = 0
    for position in range(indptr[row], indptr[row + 1]):
        others[count] = indices[position]
        edges[count] = edge_order[position] if edge_order.size else position
        count += not (indices[position] == row and row < num_loops)
    if row < num_loops:
        others[count] = row
        edges[count] = len(indices) + row
        count += 1
    return count


@inline_kernel
def prefetch_ahead(neighbours, row, term, values):
    """Fetches the row of `values` that belongs to an edge some way ahead, be it of this row or the next ones."""
    ahead = min(neighbours.indptr[row] + term + AHEAD, len(neighbours.indices) - 1)
    if ahead >= 0:
        prefetch_row(values, neighbours.indices[ahead], values.shape[1])


@inline_kernel
def softmax_terms(row, num_terms, weights, peak, inverse):
    """Turns logits (terms, H) into weights that sum to 1 per head, and keeps what it takes to do it again."""
    for head in range(weights.shape[1]):
        largest = weights.dtype.type(-np.inf)
        for term in range(num_terms):
            largest = max(largest, weights[term, head])
        total = weights.dtype.type(0)
        for term in range(num_terms):
            # Relative to the largest logit, so that no exponential overflows.
            weights[term, head] = math.exp(weights[term, head] - largest)
            total += weights[term, head]
        scale = weights.dtype.type(1 / (total + _SOFTMAX_FLOOR))
        for term in range(num_terms):
            weights[term, head] *= scale
        peak[row, head] = largest
        inverse[row, head] = scale


@inline_kernel
def edge_factors(dropout, source, destination, factors):
    """Writes what dropout multiplies the weight of each head of an edge by."""
    row_key = edge_key(dropout.key, dropout.node_ids[source], dropout.node_ids[destination])
    for head in range(len(factors)):
        factors[head] = dropout.factors[int(is_kept(row_key, head, dropout.threshold))]


@inline_kernel
def drop_terms(dropout, row, num_terms, sources, factors, weights):
    """Applies dropout to the weights (terms, H) of a row."""
    for term in range(num_terms):
        edge_factors(dropout, sources[term], row, factors)
        for head in range(len(factors)):
            weights[term, head] *= factors[head]


@inline_kernel
def sum_terms(neighbours, row, num_terms, others, weights, values, out):
    """Writes out[row]: the sum over terms of weights (terms, H) times rows of `values`, head by head."""
    num_heads = weights.shape[1]
    width = out.shape[1] // num_heads
    clear_row(out, row)
    for term in range(num_terms):
        prefetch_ahead(neighbours, row, term, values)
        for head in range(num_heads):
            add_scaled(
                row_view(out, row, head * width, width),
                weights[term, head],
                row_view(values, others[term], head * width, width),
            )


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
