"""Attention of GAT (Velickovic et al., 2018): a softmax of leaky_relu(a_src[source] + a_dst[row]), then a weighted sum.

Nothing per edge is kept for the backward pass: a weight is computed again from two numbers per row and head, the largest
logit and the inverse of the softmax sum. The backward pass gathers features once, by source: the sum over edges that a
softmax's gradient needs is `gradient . output`, which is known per row (as in FlashAttention, Dao et al., 2022).
"""

# Shapes: R rows (destinations), S sources, E edges, H heads, F = H x channels per head

import math

import numba
import numpy as np

from laconic.kernels.attention import (
    AHEAD,
    SOFTMAX_FLOOR,
    add_scaled,
    dropout_factor,
    dropout_key,
    head_of,
    inner,
    is_own_loop,
    leaky,
    leaky_backward,
)
from laconic.kernels.compile import inline_kernel, parallel_kernel
from laconic.kernels.prefetch import prefetch_row
from laconic.kernels.row_view import row_view


@parallel_kernel
def gat_forward(neighbours, x, a_src, a_dst, slope, dropout, out, peak, inverse):
    """Writes out (R, F), and per row and head the largest logit and the inverse of the softmax sum (R, H).

    x is (S, F), a_src (S, H), a_dst (R, H). A row without edges gets 0.
    """
    indptr, indices, bounds, num_loops = neighbours
    last = len(indices) - 1
    for chunk in numba.prange(len(bounds) - 1):
        for row in range(bounds[chunk], bounds[chunk + 1]):
            out[row] = 0
            inverse[row] = 0
            _find_peaks(neighbours, row, a_src, a_dst, slope, peak)
            for position in range(indptr[row], indptr[row + 1]):
                prefetch_row(x, indices[min(position + AHEAD, last)], x.shape[1])
                source = indices[position]
                if not is_own_loop(neighbours, row, source):
                    _add_term(row, source, x, a_src, a_dst, slope, dropout, out, peak, inverse)
            if row < num_loops:
                _add_term(row, row, x, a_src, a_dst, slope, dropout, out, peak, inverse)
            for head in range(a_src.shape[1]):
                inverse[row, head] = 1 / (inverse[row, head] + SOFTMAX_FLOOR)
                values = head_of(out, row, head, a_src.shape[1])
                for column in range(len(values)):
                    values[column] *= inverse[row, head]


@inline_kernel
def _find_peaks(neighbours, row, a_src, a_dst, slope, peak):
    # The softmax is computed relative to the largest logit, so that no exponential overflows.
    peaks = row_view(peak, row, 0, peak.shape[1])
    a_row = row_view(a_dst, row, 0, peak.shape[1])
    peaks[:] = -np.inf
    for position in range(neighbours.indptr[row], neighbours.indptr[row + 1]):
        source = neighbours.indices[position]
        if not is_own_loop(neighbours, row, source):
            for head in range(len(peaks)):
                peaks[head] = max(peaks[head], leaky(a_src[source, head] + a_row[head], slope))
    if row < neighbours.num_loops:
        for head in range(len(peaks)):
            peaks[head] = max(peaks[head], leaky(a_src[row, head] + a_row[head], slope))


@inline_kernel
def _add_term(row, source, x, a_src, a_dst, slope, dropout, out, peak, total):
    num_heads = a_src.shape[1]
    row_key = dropout_key(dropout, source, row)
    for head in range(num_heads):
        weight = math.exp(leaky(a_src[source, head] + a_dst[row, head], slope) - peak[row, head])
        total[row, head] += weight
        weight *= dropout_factor(dropout, row_key, head)
        add_scaled(head_of(out, row, head, num_heads), weight, head_of(x, source, head, num_heads))


@parallel_kernel
def gat_pack(a_dst, peak, inverse, out, g_out, packed):
    """Writes what the backward pass needs of a row side by side, so that one fetch brings it all: packed (R, 4 H)."""
    num_heads = a_dst.shape[1]
    for row in numba.prange(len(a_dst)):
        for head in range(num_heads):
            packed[row, head] = a_dst[row, head]
            packed[row, num_heads + head] = peak[row, head]
            packed[row, 2 * num_heads + head] = inverse[row, head]
            packed[row, 3 * num_heads + head] = inner(
                head_of(g_out, row, head, num_heads), head_of(out, row, head, num_heads)
            )


@parallel_kernel
def gat_backward_sources(transposed, edge_order, x, a_src, packed, g_out, slope, dropout, wanted, g_x, g_src, g_edge):
    """Writes g_x (S, F), g_src (S, H) and the gradient of each logit before leaky_relu, g_edge (E + loops, H).

    `transposed` holds the edges by source, `edge_order` their positions by destination, in which order `g_edge` is; the
    self-loops stand after the edges. `wanted` says whether (g_x, the rest) are needed; the others are left alone.
    """
    indptr, indices, bounds, num_loops = transposed
    num_edges = len(indices)
    for chunk in numba.prange(len(bounds) - 1):
        for source in range(bounds[chunk], bounds[chunk + 1]):
            if wanted[0]:
                g_x[source] = 0
            if wanted[1]:
                g_src[source] = 0
            for position in range(indptr[source], indptr[source + 1]):
                ahead = min(position + AHEAD, num_edges - 1)
                prefetch_row(g_out, indices[ahead], g_out.shape[1])
                prefetch_row(packed, indices[ahead], packed.shape[1])
                row, edge = indices[position], edge_order[position]
                if not is_own_loop(transposed, source, row):
                    _take_back(row, source, edge, x, a_src, packed, g_out, slope, dropout, wanted, g_x, g_src, g_edge)
                elif wanted[1]:
                    g_edge[edge] = 0
            if source < num_loops:
                edge = num_edges + source
                _take_back(source, source, edge, x, a_src, packed, g_out, slope, dropout, wanted, g_x, g_src, g_edge)


@inline_kernel
def _take_back(row, source, edge, x, a_src, packed, g_out, slope, dropout, wanted, g_x, g_src, g_edge):
    num_heads = a_src.shape[1]
    row_key = dropout_key(dropout, source, row)
    for head in range(num_heads):
        before = a_src[source, head] + packed[row, head]
        alpha = math.exp(leaky(before, slope) - packed[row, num_heads + head]) * packed[row, 2 * num_heads + head]
        factor = dropout_factor(dropout, row_key, head)
        g_row = head_of(g_out, row, head, num_heads)
        if wanted[0]:
            add_scaled(head_of(g_x, source, head, num_heads), alpha * factor, g_row)
        if wanted[1]:
            g_alpha = factor * inner(g_row, head_of(x, source, head, num_heads))
            g_logit = alpha * (g_alpha - packed[row, 3 * num_heads + head])
            g_before = leaky_backward(g_logit, before, slope)
            g_src[source, head] += g_before
            g_edge[edge, head] = g_before


@parallel_kernel
def sum_edges(neighbours, per_edge, out):
    """Writes out (R, H): the sum of `per_edge` (E + loops, H) over the edges of each row and its self-loop."""
    indptr, indices, bounds, num_loops = neighbours
    for chunk in numba.prange(len(bounds) - 1):
        for row in range(bounds[chunk], bounds[chunk + 1]):
            out[row] = 0
            for position in range(indptr[row], indptr[row + 1]):
                for head in range(out.shape[1]):
                    out[row, head] += per_edge[position, head]
            if row < num_loops:
                for head in range(out.shape[1]):
                    out[row, head] += per_edge[len(indices) + row, head]
