"""Maximum over in-neighbours, element by element, and its gradient by the winner. No buffer per edge and feature."""

import numba

from laconic.kernels.compile import inline_kernel, parallel_kernel
from laconic.kernels.prefetch import prefetch_row
from laconic.kernels.row_view import clear_row, row_view

_AHEAD = 8


@parallel_kernel
def neighbour_maximum(bounds, indptr, indices, x, out, winner):
    """Writes the maximum into out (R, F), and into winner (R, F) which edge of the row it came by.

    The first of equal ones wins. A row without edges gets 0, and -1 as its winner.
    """
    width = x.shape[1]
    num_edges = indices.shape[0]
    for chunk in numba.prange(bounds.shape[0] - 1):
        for row in range(bounds[chunk], bounds[chunk + 1]):
            first = indptr[row]
            best, by = out[row], winner[row]
            if first == indptr[row + 1]:
                for f in range(width):
                    best[f], by[f] = 0, -1
                continue
            for f in range(width):
                best[f], by[f] = x[indices[first], f], 0
            for edge in range(first + 1, indptr[row + 1]):
                if edge + _AHEAD < num_edges:
                    prefetch_row(x, indices[edge + _AHEAD], width)
                source = indices[edge]
                number = edge - first
                for f in range(width):
                    # Written so that a NaN wins and stays, as in torch: a diverged run has to be seen.
                    if not x[source, f] <= best[f] and best[f] == best[f]:
                        best[f], by[f] = x[source, f], number


@parallel_kernel
def neighbour_maximum_backward(bounds, indptr, indices, edge_order, row_starts, winner, g_out, g_x):
    """Writes into g_x (S, F) the gradients of the elements of g_out (R, F) that each source won.

    Args:
        indptr, indices, edge_order: the transposed edges; edge_order: their positions by destination.
        row_starts: where each destination's edges start.
    """
    width = g_x.shape[1]
    num_edges = indices.shape[0]
    for chunk in numba.prange(bounds.shape[0] - 1):
        for source in range(bounds[chunk], bounds[chunk + 1]):
            clear_row(g_x, source)
            for k in range(indptr[source], indptr[source + 1]):
                if k + _AHEAD < num_edges:
                    prefetch_row(winner, indices[k + _AHEAD], width)
                    prefetch_row(g_out, indices[k + _AHEAD], width)
                row = indices[k]
                _add_won(source, row, edge_order[k] - row_starts[row], winner, g_out, g_x)


@inline_kernel
def _add_won(source, row, number, winner, g_out, g_x):
    width = g_x.shape[1]
    target, by, gradient = (
        row_view(g_x, source, 0, width),
        row_view(winner, row, 0, width),
        row_view(g_out, row, 0, width),
    )
    nothing = g_x.dtype.type(0)
    for f in range(width):
        # Adds always, so that it becomes vector instructions.
        target[f] += gradient[f] if by[f] == number else nothing
