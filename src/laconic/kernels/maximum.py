"""Maximum over in-neighbours, element by element, and its gradient by the winner. No buffer per edge and feature."""

import numba

from laconic.kernels.compile import parallel_kernel
from laconic.kernels.prefetch import prefetch_row

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
    for chunk in numba.prange(bounds.shape[0] - 1):
        for source in range(bounds[chunk], bounds[chunk + 1]):
            target = g_x[source]
            for f in range(width):
                target[f] = 0
            for k in range(indptr[source], indptr[source + 1]):
                row = indices[k]
                number = edge_order[k] - row_starts[row]
                for f in range(width):
                    if winner[row, f] == number:
                        target[f] += g_out[row, f]
