"""The words of one product: the ledger against the formula of the grid, as integers, and against scipy."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from tests.unit.sharded.product_runs import random_graph, received_words

from laconic.comm.grid import Grid, all_grids, parse_grid
from laconic.graph import Graph


def by_formula(num_nodes: int, width: int, grid: Grid) -> int:
    words = Fraction(num_nodes * width, grid.num_ranks) * (grid.pi + grid.pk - 2 + 2 * (1 - Fraction(1, grid.pj)))
    assert words.denominator == 1
    return int(words)


@pytest.mark.parametrize("grid", [str(grid) for num_ranks in (4, 6, 8) for grid in all_grids(num_ranks)])
def test_a_dense_product_moves_what_the_formula_says_both_ways(grid):
    layout = parse_grid(grid)
    shape = layout.of(layout.pi * layout.pk * layout.pj)
    words = received_words(random_graph(48, 100), shape, 24, is_sparse=False)
    assert words == [(by_formula(48, 24, shape),) * 2] * shape.num_ranks


@pytest.mark.parametrize(
    ("preset", "num_ranks"),
    [(preset, num_ranks) for preset in ("1d", "1d_columns", "2d", "feature") for num_ranks in (4, 9, 16, 25)]
    + [("1.5d(c=2)", 4), ("1.5d(c=3)", 9), ("1.5d(c=4)", 16), ("1.5d(c=5)", 25), ("3d", 8), ("3d", 27)],
)
def test_presets_follow_their_laws(preset, num_ranks):
    grid = parse_grid(preset).of(num_ranks)
    num_nodes, width = 4 * num_ranks, num_ranks
    words = received_words(random_graph(num_nodes, 8 * num_nodes), grid, width, is_sparse=False)
    assert words == [(by_formula(num_nodes, width, grid),) * 2] * num_ranks


def needed_words(graph: Graph, grid: Grid, rank: int, width: int) -> int:
    """What a rank lacks in the forward product: distinct columns with an edge into its rows, rows with sums for it."""
    num_nodes, place = graph.num_nodes, grid.coordinates_of(rank)
    sources, destinations = graph.edge_index.numpy()
    matrix = scipy.sparse.coo_matrix((np.ones(len(sources)), (destinations, sources)), (num_nodes, num_nodes)).tocsr()
    of_rank = np.arange(num_nodes) * grid.num_ranks // num_nodes
    i, k = np.array([grid.coordinates_of(int(r))[:2] for r in of_rank]).T
    in_row_group, in_column_group = i == place.i, k == place.k
    is_own = in_row_group & in_column_group
    block = matrix[in_row_group][:, in_column_group]
    columns = np.flatnonzero(in_column_group)[np.diff(block.tocsc().indptr) > 0]
    gathered = int((~is_own[columns]).sum())
    # Of the sums for the own block, those that the other column groups have something for.
    others = [np.diff(matrix[is_own][:, k == other].tocsr().indptr) for other in range(grid.pk) if other != place.k]
    return (gathered + sum(int((counts > 0).sum()) for counts in others)) * width


@pytest.mark.parametrize("grid", [Grid(4, 1, 1), Grid(1, 4, 1), Grid(2, 2, 1), Grid(3, 2, 1), Grid(4, 2, 1)], ids=str)
def test_a_sparse_product_moves_the_distinct_columns_and_rows_that_scipy_counts(grid):
    graph = random_graph(45, 90)
    sparse = received_words(graph, grid, 3, is_sparse=True)
    dense = received_words(graph, grid, 3, is_sparse=False)
    assert [forward for forward, _ in sparse] == [needed_words(graph, grid, r, 3) for r in range(grid.num_ranks)]
    assert all(
        few <= many for ours, theirs in zip(sparse, dense, strict=True) for few, many in zip(ours, theirs, strict=True)
    )
    assert sum(map(sum, sparse)) < sum(map(sum, dense))
