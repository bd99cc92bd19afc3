"""Neighbours in either direction, for those who ask who is near whom: partitioners and node orders."""

import numpy as np
from numpy.typing import NDArray

from laconic.graph.adjacency import Adjacency, IntArray
from laconic.kernels.undirected import is_symmetric, merge_directions


def plain_neighbours(adjacency: Adjacency) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (indptr, indices) of each node's neighbours by either direction: sorted, once each, without itself."""
    rows = adjacency
    if is_symmetric(rows.indptr, rows.indices):
        return merge_directions(rows.indptr, rows.indices, rows.indptr, rows.indices)
    return merge_directions(rows.indptr, rows.indices, rows.transposed.indptr, rows.transposed.indices)


def missing_directions(adjacency: Adjacency) -> tuple[NDArray[np.int64], IntArray]:
    """Returns the rows to read beside `adjacency`'s own to meet every edge at both ends; empty where it is symmetric.

    A symmetric graph costs no transpose here: that is looked at only where it differs.
    """
    if is_symmetric(adjacency.indptr, adjacency.indices):
        return adjacency.indptr[:0], adjacency.indices[:0]
    return adjacency.transposed.indptr, adjacency.transposed.indices
