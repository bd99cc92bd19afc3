"""The words of one product in CAGNET's own layouts: the ledger against the paper's formulas, as integers."""

import numpy as np
import pytest
from tests.unit.sharded.product_runs import random_graph, received_words

from laconic.comm.grid import parse_grid
from laconic.papers.cagnet.replicated import ReplicatedMap
from laconic.papers.cagnet.tiles import TileMap


@pytest.mark.parametrize(("num_ranks", "c"), [(4, 2), (8, 2), (9, 3), (16, 2), (16, 4), (25, 5)])
def test_replicated_rows_move_what_the_paper_says_both_ways(num_ranks, c):
    grid = parse_grid(f"1.5d_replicated(c={c})").of(num_ranks)
    num_nodes, width = 4 * num_ranks, 3
    rows = num_nodes // num_ranks

    def by_formula(rank: int) -> tuple[int, int]:
        i, k, _ = grid.coordinates_of(rank)
        groups = [q for q in range(grid.pi) if q * c // grid.pi == k]
        # Half of an all-reduce of the own group before, half after the product.
        replicas = 2 * (c - 1) * rows
        # Row groups along the process column; their gradients go the other way.
        broadcast, back = len(groups) - (i in groups), (grid.pi - 1) * (i in groups)
        return width * (c * rows * broadcast + replicas), width * (c * rows * back + replicas)

    graph = random_graph(num_nodes, 8 * num_nodes)
    words = received_words(graph, grid, width, is_sparse=False, map_type=ReplicatedMap)
    assert words == [by_formula(rank) for rank in range(num_ranks)]
    assert sum(forward for forward, _ in words) == sum(backward for _, backward in words)
    if num_ranks % c**2 == 0:
        # The paper's n f / c and 2 n f (c - 1) / P, a rank's own group excepted, which it does not receive.
        paper = num_ranks * width * num_nodes // c + 2 * num_nodes * width * (c - 1)
        own = num_ranks // c * c * rows * width
        assert sum(forward for forward, _ in words) == paper - own
    few = received_words(graph, grid, width, is_sparse=True, map_type=ReplicatedMap)
    assert all(sum(sparse) <= sum(dense) for sparse, dense in zip(few, words, strict=True))


@pytest.mark.parametrize("num_ranks", [4, 9, 16, 25])
def test_summa_moves_edges_and_slices_as_the_paper_says_both_ways(num_ranks):
    grid = parse_grid("2d_summa").of(num_ranks)
    side, num_nodes, width = grid.pi, 4 * num_ranks, num_ranks
    graph = random_graph(num_nodes, 8 * num_nodes)
    group = np.arange(num_nodes) * side // num_nodes
    sources, destinations = group[graph.edge_index.numpy()]
    num_edges = np.zeros((side, side), int)
    np.add.at(num_edges, (destinations, sources), 1)

    def by_formula(rank: int, tiles: np.ndarray) -> int:
        i, _, j = grid.coordinates_of(rank)
        dense = num_nodes * width * (side - 1) // num_ranks
        swaps = 2 * num_nodes * width * (side - 1) // (num_ranks * side)
        # In float64 an entry is two words: two numbers of 4 bytes and a value of 8.
        return dense + swaps + 2 * (tiles[i].sum() - tiles[i, j])

    words = received_words(graph, grid, width, is_sparse=False, map_type=TileMap)
    assert words == [(by_formula(rank, num_edges), by_formula(rank, num_edges.T)) for rank in range(num_ranks)]
