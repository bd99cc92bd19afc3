import dataclasses

import torch

from laconic.graph import Graph
from laconic.graph.neighbours import missing_directions, plain_neighbours


def as_sets(indptr, indices) -> list[list[int]]:
    return [indices[indptr[node] : indptr[node + 1]].tolist() for node in range(len(indptr) - 1)]


def expected(graph: Graph) -> list[list[int]]:
    found: list[set[int]] = [set() for _ in range(graph.num_nodes)]
    for source, destination in graph.edge_index.T.tolist():
        if source != destination:
            found[source].add(destination)
            found[destination].add(source)
    return [sorted(names) for names in found]


def test_plain_neighbours_are_those_of_either_direction_once(small_graph: Graph) -> None:
    assert as_sets(*plain_neighbours(small_graph.adjacency)) == expected(small_graph)


def test_a_symmetric_graph_has_the_same_and_needs_no_transpose(small_graph: Graph) -> None:
    both = torch.cat([small_graph.edge_index, small_graph.edge_index.flip(0)], dim=1)
    graph = dataclasses.replace(small_graph, edge_index=both)
    assert as_sets(*plain_neighbours(graph.adjacency)) == expected(graph)
    assert len(missing_directions(graph.adjacency)[0]) == 0
    assert "transposed" not in graph.adjacency.__dict__


def test_a_directed_graph_is_missing_its_reverse(small_graph: Graph) -> None:
    indptr, _ = missing_directions(small_graph.adjacency)
    assert indptr[-1] == small_graph.num_edges
