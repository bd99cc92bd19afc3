"""Attention of GATv2 (Brody et al., 2022): a softmax of att . leaky_relu(x_l[source] + x_r[row]), then a sum of x_l.

The backward pass goes twice over the edges: by row for what belongs to rows (g_r) and all edges (g_att), noting two
numbers per edge and head; then by source for what belongs to sources (g_l).
"""

# Shapes: R rows (destinations), S sources, E edges, H heads, F = H x channels per head

import math

import numba
import numpy as np

from laconic.kernels.attention import (
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
def gatv2_forward(neighbours, x_l, x_r, att, slope, dropout, out, peak, inverse):
    """Writes out (R, F), and per row and head the largest logit and the inverse of the softmax sum (R, H).

    x_l is (S, F), x_r (R, F), att (1, F). A row without edges gets 0.
    """
    num_heads = peak.shape[1]
    width = out.shape[1] // num_heads
    for chunk in numba.prange(len(neighbours.bounds) - 1):
        space = most_terms(neighbours, chunk)
        sources, edges = np.empty(space, np.int64), np.empty(space, np.int64)
        weights = np.empty((space, num_heads), out.dtype)
        factors = np.empty(num_heads, out.dtype)
        for row in range(neighbours.bounds[chunk], neighbours.bounds[chunk + 1]):
            num_terms = list_terms(neighbours, row, sources, edges)
            for term in range(num_terms):
                prefetch_ahead(neighbours, row, term, x_l)
                for head in range(num_heads):
                    weights[term, head] = _logit(x_l, x_r, att, slope, sources[term], row, head * width, width)
            softmax_terms(row, num_terms, weights, peak, inverse)
            if dropout.threshold > 0:
                drop_terms(dropout, row, num_terms, sources, factors, weights)
            sum_terms(neighbours, row, num_terms, sources, weights, x_l, out)


@inline_kernel
def _logit(x_l, x_r, att, slope, source, row, start, width):
    left, right = row_view(x_l, source, start, width), row_view(x_r, row, start, width)
    attention = row_view(att, 0, start, width)
    total = att.dtype.type(0)
    for column in range(width):
        total += attention[column] * leaky(left[column] + right[column], slope)
    return total


@parallel_kernel
def gatv2_backward_rows(
    neighbours, x_l, x_r, att, out, peak, inverse, g_out, slope, dropout, wanted, per_edge, g_r, g_att
):
    """Writes g_r (R, F) and the sum over each chunk's edges that makes up g_att (chunks, F) when added.

    Writes also per_edge (E + loops, 2 H): the weight after dropout and the gradient of the logit. `wanted` says whether
    per_edge, and whether the other two, are needed; what is not needed is left alone.
    """
    num_heads = peak.shape[1]
    for chunk in numba.prange(len(neighbours.bounds) - 1):
        space = most_terms(neighbours, chunk)
        sources, edges = np.empty(space, np.int64), np.empty(space, np.int64)
        factors, expected = np.ones(num_heads, out.dtype), np.empty(num_heads, out.dtype)
        if wanted[1]:
            clear_row(g_att, chunk)
        for row in range(neighbours.bounds[chunk], neighbours.bounds[chunk + 1]):
            num_terms = list_terms(neighbours, row, sources, edges)
            _expect(row, g_out, out, expected)
            if wanted[1]:
                clear_row(g_r, row)
            for term in range(num_terms):
                prefetch_ahead(neighbours, row, term, x_l)
                source, edge = sources[term], edges[term]
                if dropout.threshold > 0:
                    edge_factors(dropout, source, row, factors)
                for head in range(num_heads):
                    alpha, g_logit = _weigh_again(
                        source, row, head, x_l, x_r, att, slope, peak, inverse, g_out, factors, expected
                    )
                    if wanted[0]:
                        per_edge[edge, head] = alpha * factors[head]
                        per_edge[edge, num_heads + head] = g_logit
                    if wanted[1]:
                        _spread(x_l, x_r, att, slope, source, row, chunk, head, num_heads, g_logit, g_r, g_att)


@inline_kernel
def _expect(row, g_out, out, expected):
    # The sum over a row's edges of weight x gradient, which a softmax's gradient needs, is gradient . output.
    width = out.shape[1] // len(expected)
    for head in range(len(expected)):
        expected[head] = inner(row_view(g_out, row, head * width, width), row_view(out, row, head * width, width))


@inline_kernel
def _weigh_again(source, row, head, x_l, x_r, att, slope, peak, inverse, g_out, factors, expected):
    width = g_out.shape[1] // len(factors)
    logit = _logit(x_l, x_r, att, slope, source, row, head * width, width)
    alpha = math.exp(logit - peak[row, head]) * inverse[row, head]
    g_alpha = inner(row_view(g_out, row, head * width, width), row_view(x_l, source, head * width, width))
    return alpha, alpha * (factors[head] * g_alpha - expected[head])


@inline_kernel
def _spread(x_l, x_r, att, slope, source, row, chunk, head, num_heads, g_logit, g_r, g_att):
    width = g_r.shape[1] // num_heads
    start = head * width
    left, right = row_view(x_l, source, start, width), row_view(x_r, row, start, width)
    attention = row_view(att, 0, start, width)
    g_right, g_attention = row_view(g_r, row, start, width), row_view(g_att, chunk, start, width)
    for column in range(width):
        before = left[column] + right[column]
        g_right[column] += leaky_backward(g_logit * attention[column], before, slope)
        g_attention[column] += g_logit * leaky(before, slope)


@parallel_kernel
def gatv2_backward_sources(transposed, x_l, x_r, att, g_out, per_edge, slope, g_l):
    """Writes g_l (S, F). `transposed` holds the edges by source, `per_edge` is what `gatv2_backward_rows` wrote."""
    for chunk in numba.prange(len(transposed.bounds) - 1):
        space = most_terms(transposed, chunk)
        rows, edges = np.empty(space, np.int64), np.empty(space, np.int64)
        for source in range(transposed.bounds[chunk], transposed.bounds[chunk + 1]):
            num_terms = list_terms(transposed, source, rows, edges)
            clear_row(g_l, source)
            for term in range(num_terms):
                prefetch_ahead(transposed, source, term, g_out)
                prefetch_ahead(transposed, source, term, x_r)
                _take_back(source, rows[term], edges[term], x_l, x_r, att, g_out, per_edge, slope, g_l)


@inline_kernel
def _take_back(source, row, edge, x_l, x_r, att, g_out, per_edge, slope, g_l):
    num_heads = per_edge.shape[1] // 2
    width = g_l.shape[1] // num_heads
    for head in range(num_heads):
        start = head * width
        left, right = row_view(x_l, source, start, width), row_view(x_r, row, start, width)
        g_row, target = row_view(g_out, row, start, width), row_view(g_l, source, start, width)
        attention = row_view(att, 0, start, width)
        weight, g_logit = per_edge[edge, head], per_edge[edge, num_heads + head]
        for column in range(width):
            g_before = leaky_backward(g_logit * attention[column], left[column] + right[column], slope)
            target[column] += weight * g_row[column] + g_before
