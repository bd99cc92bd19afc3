"""Node orders: every node once, part by part, and nearer to its neighbours than before."""

import dataclasses

import numpy as np
import pytest
import torch

from laconic.graph import Graph
from laconic.store.reorder import REORDERS, Reorder, order_nodes


@pytest.fixture
def shuffled_path(make_graph) -> Graph:
    """A path of 200 nodes whose numbers were shuffled; the best order is along it."""
    names = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(make_graph(num_nodes=200), edge_index=torch.stack([names[:-1], names[1:]]))


def spread(graph: Graph, order: np.ndarray) -> float:
    """The mean distance between the new numbers of an edge's ends."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    sources, destinations = place[graph.edge_index.numpy()]
    return float(np.abs(sources - destinations).mean())


@pytest.mark.parametrize("reorder", REORDERS)
def test_every_node_stands_once_within_its_part(small_graph: Graph, reorder: Reorder) -> None:
    parts = np.random.default_rng(1).integers(5, size=60).astype(np.int32)
    order = order_nodes(small_graph, parts, reorder)
    assert sorted(order) == list(range(60))
    assert np.all(np.diff(parts[order]) >= 0)


def test_none_keeps_the_order(small_graph: Graph) -> None:
    np.testing.assert_array_equal(order_nodes(small_graph, np.zeros(60, np.int32), "none"), np.arange(60))


@pytest.mark.parametrize("reorder", ["bfs", "rcm"])
def test_neighbours_come_near(shuffled_path: Graph, reorder: Reorder) -> None:
    whole = np.zeros(200, np.int32)
    assert spread(shuffled_path, order_nodes(shuffled_path, whole, "none")) > 50
    # Breadth-first from the middle goes both ways in turn, so neighbours are two apart.
    assert spread(shuffled_path, order_nodes(shuffled_path, whole, reorder)) <= 2


def test_rcm_walks_a_path_from_end_to_end(shuffled_path: Graph) -> None:
    assert spread(shuffled_path, order_nodes(shuffled_path, np.zeros(200, np.int32), "rcm")) == 1


def test_degree_puts_the_best_connected_first(small_graph: Graph) -> None:
    order = order_nodes(small_graph, np.zeros(60, np.int32), "degree")
    pairs = {frozenset(pair) for pair in small_graph.edge_index.T.tolist() if pair[0] != pair[1]}
    degrees = [sum(node in pair for pair in pairs) for node in order]
    assert degrees == sorted(degrees, reverse=True)
