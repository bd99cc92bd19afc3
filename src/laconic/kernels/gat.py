"""Attention of GAT (Velickovic et al., 2018): a softmax of leaky_relu(a_src[source] + a_dst[row]), then a weighted sum.

Nothing per edge is kept for the backward pass: a weight is computed again from two numbers per row and head, the
largest logit and the inverse of the softmax sum. The backward pass gathers features once, by source: the sum over edges
that a softmax's gradient needs is `gradient . output`, which is known per row (as in FlashAttention, Dao et al., 2022).
"""

# Shapes: R rows (destinations), S sources, E edges, H heads, F = H x channels per head

import math

import numba
import numpy as np

from laconic.kernels.attention import (
    add_scaled,
    drop_terms,
    edge_factors,
    inner,
    leaky,
    leaky_backward,
    list_terms,
    most_terms,
    prefetch_ahead,
    softmax_terms,
    sum_terms,
)
from laconic.kernels.compile import inline_kernel, parallel_kernel
from laconic.kernels.row_view import clear_row, row_view


@parallel_kernel
def gat_forward(neighbours, x, a_src, a_dst, slope, dropout, out, peak, inverse):
    """Writes out (R, F), and per row and head the largest logit and the inverse of the softmax sum (R, H).

    x is (S, F), a_src (S, H), a_dst (R, H). A row without edges gets 0.
    """
    num_heads = a_src.shape[1]
    for chunk in numba.prange(len(neighbours.bounds) - 1):
        space = most_terms(neighbours, chunk)
        sources, edges = np.empty(space, np.int64), np.empty(space, np.int64)
        weights = np.empty((space, num_heads), x.dtype)
        factors = np.empty(num_heads, x.dtype)
        for row in range(neighbours.bounds[chunk], neighbours.bounds[chunk + 1]):
            num_terms = list_terms(neighbours, row, sources, edges)
            for term in range(num_terms):
                prefetch_ahead(neighbours, row, term, a_src)
                for head in range(num_heads):
                    weights[term, head] = leaky(a_src[sources[term], head] + a_dst[row, head], slope)
            softmax_terms(row, num_terms, weights, peak, inverse)
            if dropout.threshold > 0:
                drop_terms(dropout, row, num_terms, sources, factors, weights)
            sum_terms(neighbours, row, num_terms, sources, weights, x, out)


@parallel_kernel
def gat_pack(a_dst, peak, inverse, out, g_out, packed):
    """Writes what the backward pass needs of a row side by side, so that one fetch brings it all: packed (R, 4 H)."""
    num_heads = a_dst.shape[1]
    width = out.shape[1] // num_heads
    for row in numba.prange(len(a_dst)):
        for head in range(num_heads):
            packed[row, head] = a_dst[row, head]
            packed[row, num_heads + head] = peak[row, head]
            packed[row, 2 * num_heads + head] = inverse[row, head]
            packed[row, 3 * num_heads + head] = inner(
                row_view(g_out, row, head * width, width), row_view(out, row, head * width, width)
            )


@parallel_kernel
def gat_backward_sources(transposed, x, a_src, packed, g_out, slope, dropout, wanted, g_x, g_src, g_edge):
    """Writes g_x (S, F), g_src (S, H) and the gradient of each logit before leaky_relu, g_edge (E + loops, H).

    `transposed` holds the edges by source. `wanted` says whether g_x, and whether the other two, are needed; what is
    not needed is left alone.
    """
    num_heads = a_src.shape[1]
    for chunk in numba.prange(len(transposed.bounds) - 1):
        space = most_terms(transposed, chunk)
        rows, edges = np.empty(space, np.int64), np.empty(space, np.int64)
        factors = np.ones(num_heads, x.dtype)
        for source in range(transposed.bounds[chunk], transposed.bounds[chunk + 1]):
            num_terms = list_terms(transposed, source, rows, edges)
            if wanted[0]:
                clear_row(g_x, source)
            if wanted[1]:
                clear_row(g_src, source)
            for term in range(num_terms):
                prefetch_ahead(transposed, source, term, g_out)
                prefetch_ahead(transposed, source, term, packed)
                if dropout.threshold > 0:
                    edge_factors(dropout, source, rows[term], factors)
                _take_back(
                    source, rows[term], edges[term], factors, x, a_src, packed, g_out, slope, wanted, g_x, g_src, g_edge
                )


@inline_kernel
def _take_back(source, row, edge, factors, x, a_src, packed, g_out, slope, wanted, g_x, g_src, g_edge):
    num_heads = a_src.shape[1]
    width = g_out.shape[1] // num_heads
    for head in range(num_heads):
        before = a_src[source, head] + packed[row, head]
        alpha = math.exp(leaky(before, slope) - packed[row, num_heads + head]) * packed[row, 2 * num_heads + head]
        g_row = row_view(g_out, row, head * width, width)
        if wanted[0]:
            add_scaled(row_view(g_x, source, head * width, width), alpha * factors[head], g_row)
        if wanted[1]:
            g_alpha = factors[head] * inner(g_row, row_view(x, source, head * width, width))
            g_logit = alpha * (g_alpha - packed[row, 3 * num_heads + head])
            g_before = leaky_backward(g_logit, before, slope)
            g_src[source, head] += g_before
            g_edge[edge, head] = g_before


@parallel_kernel
def gat_backward_rows(neighbours, g_edge, g_dst):
    """Writes g_dst (R, H): the sum of `g_edge` (E + loops, H) over the terms of each row."""
    indptr, indices, bounds, num_loops = neighbours.indptr, neighbours.indices, neighbours.bounds, neighbours.num_loops
    for chunk in numba.prange(len(bounds) - 1):
        for row in range(bounds[chunk], bounds[chunk + 1]):
            for head in range(g_dst.shape[1]):
                total = g_dst.dtype.type(0)
                for position in range(indptr[row], indptr[row + 1]):
                    # The place of a self-loop that was passed over was never written.
                    if indices[position] != row or row >= num_loops:
                        total += g_edge[position, head]
                if row < num_loops:
                    total += g_edge[len(indices) + row, head]
                g_dst[row, head] = total
