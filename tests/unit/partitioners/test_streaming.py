"""The loop that ldg and fennel share, against a plain Python one that follows the papers word for word."""

import numpy as np
import pytest

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.partitioners import Fennel, Ldg, Partitioner, assign_parts
from laconic.partitioners._streaming import fill_empty_parts, full_size


def neighbours(graph: Graph, node: int) -> list[int]:
    sources, destinations = graph.edge_index.tolist()
    ends = [(s, d) for s, d in zip(sources, destinations, strict=True) if s != d and node in (s, d)]
    return [s if d == node else d for s, d in ends]


@pytest.mark.parametrize("kind", ["ldg", "fennel"])
def test_every_node_went_where_its_score_is_highest(small_graph: Graph, kind: str) -> None:
    num_parts, num_nodes = 4, small_graph.num_nodes
    partitioner: Partitioner = Ldg(order="given", passes=1) if kind == "ldg" else Fennel(order="given", passes=1)
    full = full_size(num_nodes, num_parts, 1.05)
    sources, destinations = small_graph.edge_index
    alpha = int((sources != destinations).sum()) * num_parts**0.5 / num_nodes**1.5

    def score(links: int, size: int) -> float:
        return links * (1 - size / full) if kind == "ldg" else links - alpha * 1.5 * size**0.5

    parts = assign_parts(small_graph, partitioner, num_parts, seed=0)
    sizes, placed = [0] * num_parts, {}
    for node in range(num_nodes):
        links = [sum(placed.get(other) == part for other in neighbours(small_graph, node)) for part in range(num_parts)]
        scores = [score(links[k], sizes[k]) if sizes[k] < full else -np.inf for k in range(num_parts)]
        assert scores[parts[node]] == pytest.approx(max(scores), abs=1e-9), node
        placed[node] = parts[node]
        sizes[parts[node]] += 1


def test_a_second_pass_fills_the_parts_anew_knowing_where_neighbours_were(small_graph: Graph) -> None:
    num_parts, full = 4, full_size(60, 4, 1.05)
    before = assign_parts(small_graph, Ldg(order="given", passes=1), num_parts, seed=0)
    after = assign_parts(small_graph, Ldg(order="given", passes=2), num_parts, seed=0)
    now, sizes = before.copy(), np.zeros(num_parts)
    for node in range(60):
        links = np.array([sum(now[other] == part for other in neighbours(small_graph, node)) for part in range(4)])
        scores = np.where(sizes < full, links * (1 - sizes / full), -np.inf)
        assert scores[after[node]] == pytest.approx(scores.max(), abs=1e-9), node
        now[node] = after[node]
        sizes[now[node]] += 1
    assert (before != after).any()


def test_without_edges_nodes_are_dealt_out_evenly(make_graph) -> None:
    graph = make_graph(num_nodes=50, num_edges=0)
    for partitioner in (Ldg(), Fennel()):
        sizes = np.bincount(assign_parts(graph, partitioner, 7, seed=0), minlength=7)
        assert sizes.max() - sizes.min() <= 1


def test_empty_parts_are_filled_from_the_largest() -> None:
    parts = np.array([0, 0, 0, 2, 2, 0], np.int32)
    filled = fill_empty_parts(parts, 4)
    assert np.bincount(filled, minlength=4).tolist() == [2, 1, 2, 1]
    np.testing.assert_array_equal(parts, [0, 0, 0, 2, 2, 0])


def test_with_too_few_nodes_each_keeps_a_part_of_its_own() -> None:
    filled = fill_empty_parts(np.array([1, 1, 1], np.int32), 5)
    assert len(set(filled.tolist())) == 3


@pytest.mark.parametrize("kind", [Ldg, Fennel])
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("slack", 0.9, "1 or more"), ("passes", 0, "1 or more"), ("order", "upwards", "random, given; got 'upwards'")],
)
def test_settings_out_of_range_are_refused(kind: type, field: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} should be .*{said}"):
        kind(**{field: value})


def test_a_gamma_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gamma should lie between 1 and 3, got 0\.5"):
        Fennel(gamma=0.5)
