"""Statistics against counts over plain sets, and laws that hold between them."""

import dataclasses

import numpy as np
import pytest
import torch

from laconic.graph import Graph
from laconic.graph.stats import GraphStats, PartitionStats


def edge_list(graph: Graph) -> list[tuple[int, int]]:
    return [(int(s), int(d)) for s, d in graph.edge_index.T]


def test_counts_agree_with_plain_sets(small_graph: Graph) -> None:
    edges = edge_list(small_graph)
    between = [(s, d) for s, d in edges if s != d]
    y = small_graph.y.tolist()
    stats = GraphStats.of(small_graph)
    assert stats.num_nodes == 60
    assert stats.num_edges == len(edges)
    assert stats.num_self_loops == len(edges) - len(between) > 0
    assert stats.num_duplicates == len(edges) - len(set(edges)) > 0
    assert stats.num_isolated == 60 - len({end for edge in between for end in edge}) > 0
    assert stats.max_degree == max(sum(d == node for _, d in edges) for node in range(60))
    assert stats.mean_degree == 5
    assert stats.homophily == pytest.approx(sum(y[s] == y[d] for s, d in between) / len(between))
    assert (stats.num_train, stats.num_val, stats.num_test) == (30, 15, 15)
    assert not stats.is_symmetric


def test_a_graph_and_its_reverse_together_are_symmetric(small_graph: Graph) -> None:
    both = torch.cat([small_graph.edge_index, small_graph.edge_index.flip(0)], dim=1)
    assert GraphStats.of(dataclasses.replace(small_graph, edge_index=both)).is_symmetric
    # One edge more in one direction only: a different multiplicity is not symmetric.
    uneven = torch.cat([both, torch.tensor([[1], [2]])], dim=1)
    assert not GraphStats.of(dataclasses.replace(small_graph, edge_index=uneven)).is_symmetric


def test_nodes_without_a_label_do_not_count_for_homophily(small_graph: Graph) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    y = torch.zeros(60, dtype=torch.int64)
    y[2] = -1
    masks = {name: torch.zeros(60, dtype=torch.bool) for name in ("train_mask", "val_mask", "test_mask")}
    for node, mask in zip((0, 1, 3), masks.values(), strict=True):
        mask[node] = True
    stats = GraphStats.of(dataclasses.replace(small_graph, edge_index=edges, y=y, **masks))
    assert stats.homophily == 1


def test_homophily_is_none_where_it_means_nothing(small_graph: Graph) -> None:
    no_edges = dataclasses.replace(small_graph, edge_index=torch.empty((2, 0), dtype=torch.int64))
    assert GraphStats.of(no_edges).homophily is None
    assert GraphStats.of(no_edges).num_isolated == 60
    several = dataclasses.replace(small_graph, y=torch.ones(60, 4), num_classes=4)
    assert GraphStats.of(several).homophily is None
    assert GraphStats.of(several).is_multilabel


@pytest.mark.parametrize("num_parts", [1, 3, 8])
def test_parts_agree_with_plain_sets(small_graph: Graph, num_parts: int) -> None:
    parts = np.random.default_rng(0).integers(num_parts, size=60).astype(np.int32)
    stats = PartitionStats.of(small_graph, parts, num_parts)
    edges = edge_list(small_graph)
    for part in range(num_parts):
        arriving = [(s, d) for s, d in edges if parts[d] == part]
        from_elsewhere = [s for s, _ in arriving if parts[s] != part]
        assert stats.num_nodes[part] == (parts == part).sum()
        assert stats.num_train[part] == small_graph.train_mask.numpy()[parts == part].sum()
        assert stats.num_edges[part] == len(arriving)
        assert stats.num_cut_edges[part] == len(from_elsewhere)
        assert stats.num_halo_rows[part] == len(set(from_elsewhere))


def test_parts_add_up_to_the_graph(small_graph: Graph) -> None:
    stats = PartitionStats.of(small_graph, np.arange(60) % 7, 7)
    assert sum(stats.num_nodes) == 60
    assert sum(stats.num_train) == 30
    assert sum(stats.num_edges) == small_graph.num_edges
    assert stats.cut_share == sum(stats.num_cut_edges) / small_graph.num_edges
    assert all(halo <= cut for halo, cut in zip(stats.num_halo_rows, stats.num_cut_edges, strict=True))


def test_one_part_has_no_cut_and_no_halo(small_graph: Graph) -> None:
    stats = PartitionStats.of(small_graph, np.zeros(60, np.int32), 1)
    assert stats.cut_share == 0
    assert stats.num_halo_rows == (0,)
