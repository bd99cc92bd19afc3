"""Adjacency: the same edges by destination and by source."""

import numpy as np
import scipy.sparse

from laconic.graph import Adjacency
from laconic.kernels.compress import index_dtype


def edges_of(adjacency):
    return sorted(zip(adjacency.indices.tolist(), adjacency.row_of_edge.tolist(), strict=True))


def test_rows_hold_the_edges_that_arrive_sorted_by_source(small_graph):
    adjacency = small_graph.adjacency
    assert edges_of(adjacency) == sorted(map(tuple, small_graph.edge_index.t().tolist()))
    for row in range(60):
        sources = adjacency.indices[adjacency.indptr[row] : adjacency.indptr[row + 1]]
        assert np.all(np.diff(sources) >= 0)


def test_edge_order_leads_back_to_the_edge_list(small_graph):
    adjacency = small_graph.adjacency
    listed = small_graph.edge_index.numpy()[:, adjacency.edge_order]
    assert np.array_equal(listed, [adjacency.indices, adjacency.row_of_edge])


def test_the_transpose_is_scipys(small_graph):
    adjacency = small_graph.adjacency
    values = np.arange(1.0, adjacency.num_edges + 1)
    matrix = scipy.sparse.csr_matrix((values, adjacency.indices, adjacency.indptr), shape=(60, 60))
    across = adjacency.transposed
    ours = scipy.sparse.csr_matrix((values[across.edge_order], across.indices, across.indptr), shape=(60, 60))
    assert abs(ours - matrix.T).max() == 0


def test_an_undirected_graph_keeps_its_edges_once():
    pairs = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    adjacency = Adjacency.from_edges(*pairs, 3, 3)
    assert adjacency.is_symmetric
    assert adjacency.transposed.indices is adjacency.indices
    assert not Adjacency.from_edges(*pairs[:, :3], 3, 3).is_symmetric


def test_degrees_count_edges_by_both_ends(small_graph):
    sources, destinations = small_graph.edge_index.numpy()
    assert small_graph.adjacency.row_degrees.tolist() == np.bincount(destinations, minlength=60).tolist()
    assert small_graph.adjacency.transposed.row_degrees.tolist() == np.bincount(sources, minlength=60).tolist()


def test_more_columns_than_rows():
    adjacency = Adjacency.from_edges(np.array([4, 0, 4]), np.array([0, 1, 1]), 2, 5)
    assert (adjacency.num_rows, adjacency.num_columns) == (2, 5)
    assert adjacency.transposed.num_rows == 5
    assert edges_of(adjacency) == [(0, 1), (4, 0), (4, 1)]


def test_indices_are_narrow_where_they_fit():
    assert index_dtype(2**31 - 1) is np.int32
    assert index_dtype(2**31) is np.int64
