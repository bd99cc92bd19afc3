import dataclasses

import numpy as np
import pytest
import torch

from laconic.datasets import load
from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.graph.stats import PartitionStats
from laconic.partitioners import Metis, assign_parts


@pytest.fixture
def two_rings() -> Graph:
    """A ring of 60 training nodes and a ring of 60 others, joined by one edge."""
    nodes = torch.arange(120)
    following = torch.where(nodes < 60, (nodes + 1) % 60, 60 + (nodes + 1) % 60)
    edge_index = torch.cat([torch.stack([nodes, following]), torch.tensor([[0], [60]])], dim=1)
    return Graph(
        edge_index=edge_index,
        x=torch.ones(120, 1),
        y=torch.zeros(120, dtype=torch.int64),
        train_mask=nodes < 60,
        val_mask=(nodes >= 60) & (nodes < 90),
        test_mask=nodes >= 90,
    )


def test_training_nodes_weigh_more_as_alpha_grows(two_rings: Graph) -> None:
    without = PartitionStats.of(two_rings, assign_parts(two_rings, Metis(alpha=0), 2, seed=0), 2)
    assert max(without.num_train) == pytest.approx(60, abs=6)  # one part has all of them
    much = PartitionStats.of(two_rings, assign_parts(two_rings, Metis(alpha=100), 2, seed=0), 2)
    assert max(much.num_train) <= 33


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 7.0])
@pytest.mark.parametrize("num_parts", [2, 5, 13, 70])
def test_no_part_outweighs_the_mean_by_more_than_said(two_rings: Graph, alpha: float, num_parts: int) -> None:
    parts = assign_parts(two_rings, Metis(alpha=alpha, imbalance=1.02), num_parts, seed=1)
    weights = 1 + alpha * two_rings.train_mask.numpy()
    loads = np.bincount(parts, weights, minlength=num_parts)
    mean = weights.sum() / num_parts
    assert loads.max() <= max(1.02 * mean, mean + weights.max() + 1) + 1e-9


def test_isolated_nodes_even_the_parts_out(two_rings: Graph) -> None:
    lonely = dataclasses.replace(two_rings, edge_index=two_rings.edge_index[:, :40])
    stats = PartitionStats.of(lonely, assign_parts(lonely, Metis(alpha=0), 4, seed=0), 4)
    assert max(stats.num_nodes) - min(stats.num_nodes) <= 1
    assert stats.cut_share <= 0.1


@pytest.mark.parametrize(("field", "value"), [("alpha", -1.0), ("alpha", float("nan")), ("imbalance", 1.0)])
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"metis: {field} should lie between"):
        Metis(**{field: value})


def test_of_several_tries_the_one_with_the_smallest_busiest_halo_is_taken() -> None:
    graph = load("sbm(nodes=600, degree=12.0)")

    def busiest_halo(tries: int, seed: int) -> int:
        parts = assign_parts(graph, Metis(tries=tries), 4, seed=seed)
        return max(PartitionStats.of(graph, parts, 4).num_halo_rows)

    # The first of several tries is the only one of a single try.
    once, best = ([busiest_halo(tries, seed) for seed in range(4)] for tries in (1, 4))
    assert all(few <= many for few, many in zip(best, once, strict=True))
    assert sum(best) < sum(once)
