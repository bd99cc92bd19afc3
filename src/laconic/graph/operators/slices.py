"""Some rows or some columns of a fixed sparse matrix, as a matrix of its own."""

import numpy as np
from numpy.typing import NDArray

from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.linear import LinearOperator


def columns_of(operator: LinearOperator, columns: slice | NDArray[np.int64]) -> LinearOperator:
    """Returns the columns `columns`, a slice or their numbers, of a matrix without a diagonal."""
    adjacency, scale = operator.adjacency, operator.column_scale
    numbers = np.arange(adjacency.num_columns)[columns]
    place = np.full(adjacency.num_columns, -1, adjacency.indices.dtype)
    place[numbers] = np.arange(len(numbers))
    places = place[adjacency.indices]
    chosen = places >= 0
    starts = np.append(0, np.cumsum(chosen))[adjacency.indptr]
    tile = Adjacency(starts, places[chosen], len(numbers))
    values = None if operator.values is None else operator.values[chosen]
    return LinearOperator(tile, values, operator.row_scale, None if scale is None else scale[columns])


def rows_of(operator: LinearOperator, rows: slice) -> LinearOperator:
    """Returns the rows `rows`, one after the other, of a matrix without a diagonal."""
    adjacency, scale = operator.adjacency, operator.row_scale
    edges = slice(int(adjacency.indptr[rows.start]), int(adjacency.indptr[rows.stop]))
    indptr = adjacency.indptr[rows.start : rows.stop + 1] - edges.start
    values = None if operator.values is None else operator.values[edges]
    band = Adjacency(indptr, adjacency.indices[edges], adjacency.num_columns)
    return LinearOperator(band, values, None if scale is None else scale[rows], operator.column_scale)
