"""The fixed operators of the linear convolutions: sum, mean and GCN's symmetric normalisation."""

import numpy as np
from numpy.typing import NDArray

from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.linear import FloatArray, LinearOperator

# Shapes: N nodes, E edges


def sum_operator(
    adjacency: Adjacency, values: FloatArray | None = None, *, own_weight: float | None = None
) -> LinearOperator:
    """Returns the sum over in-neighbours, weighted by `values`; `own_weight` times the row itself is added (GIN)."""
    diagonal = None if own_weight is None else np.full(adjacency.num_rows, own_weight)
    return LinearOperator(adjacency, values, diagonal=diagonal)


def mean_operator(
    adjacency: Adjacency, values: FloatArray | None = None, *, degrees: FloatArray | None = None
) -> LinearOperator:
    """Returns the mean over in-neighbours (0 where there is none); over `degrees` of them, where told."""
    counts = adjacency.row_degrees if degrees is None else degrees
    return LinearOperator(adjacency, values, row_scale=1.0 / np.maximum(counts, 1))


def gcn_operator(
    adjacency: Adjacency,
    values: FloatArray | None = None,
    *,
    self_loops: bool = True,
    loop_weight: float = 1.0,
    degrees: FloatArray | None = None,
) -> LinearOperator:
    """Returns D^-1/2 (A + loops) D^-1/2 of Kipf and Welling (arXiv 1609.02907), D being weighted in-degrees.

    As in PyG, a node that has a loop keeps its weight, one that has none gets `loop_weight`.

    Args:
        degrees: sum of the weights that arrive at each row in the whole graph, loops included, where not all of these
            edges are here; loops always are.
    """
    weights = np.ones(adjacency.num_edges) if values is None else values.astype(np.float64)
    rows = adjacency.row_of_edge
    is_loop = rows == adjacency.indices
    given = weights
    if self_loops:
        loops = np.full(adjacency.num_rows, loop_weight)
        loops[rows[is_loop]] = weights[is_loop]
        weights = np.where(is_loop, 0.0, weights)
    if degrees is None:
        degrees = _sums_by_row(rows, weights, adjacency.num_rows)
    elif self_loops:
        degrees = degrees - _sums_by_row(rows[is_loop], given[is_loop], adjacency.num_rows)
    if self_loops:
        degrees = degrees + loops
    scale = inverse_square_root(degrees)
    return LinearOperator(
        adjacency,
        values,
        row_scale=scale,
        column_scale=scale,
        diagonal=loops * scale**2 if self_loops else None,
        skip_loops=self_loops,
    )


def _sums_by_row(rows: NDArray[np.integer], weights: FloatArray, num_rows: int) -> FloatArray:
    # bincount counts in integers where there is nothing to add up.
    return np.bincount(rows, weights=weights, minlength=num_rows).astype(np.float64)


def inverse_square_root(degrees: FloatArray) -> FloatArray:
    """Returns D^-1/2, with 0 for a node that nothing arrives at."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale: FloatArray = degrees**-0.5
    scale[~np.isfinite(scale) & (degrees == 0)] = 0.0
    return scale
