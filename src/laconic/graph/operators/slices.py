"""Some rows or some columns of a fixed sparse matrix, as a matrix of its own."""

import numpy as np

from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.linear import LinearOperator


def columns_of(operator: LinearOperator, columns: slice) -> LinearOperator:
    """Returns the columns `columns`, which may have a step, of a matrix without a diagonal."""
    adjacency, scale = operator.adjacency, operator.column_scale
    start, stop, step = columns.indices(adjacency.num_columns)
    offsets = adjacency.indices - start
    chosen = (offsets >= 0) & (adjacency.indices < stop) & (offsets % step == 0)
    starts = np.append(0, np.cumsum(chosen))[adjacency.indptr]
    tile = Adjacency(starts, offsets[chosen] // step, len(range(start, stop, step)))
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
