"""On a graph with planted groups, those who look at edges find them."""

import numpy as np
import pytest
import torch

from laconic.graph import Graph
from laconic.graph.stats import PartitionStats
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.specs import parse_spec

NUM_GROUPS, GROUP_SIZE = 4, 80


@pytest.fixture(scope="module")
def planted() -> Graph:
    """Four groups of 80 nodes; 9 of 10 edges stay within a group; the groups are scattered over the node numbers."""
    rng = np.random.default_rng(0)
    num_nodes = NUM_GROUPS * GROUP_SIZE
    group = rng.permutation(np.arange(num_nodes) % NUM_GROUPS)
    members = [np.flatnonzero(group == k) for k in range(NUM_GROUPS)]
    sources = rng.integers(num_nodes, size=2400)
    inside = np.array([rng.choice(members[group[source]]) for source in sources])
    destinations = np.where(rng.random(2400) < 0.9, inside, rng.integers(num_nodes, size=2400))
    masks = torch.arange(num_nodes) % 3
    return Graph(
        edge_index=torch.from_numpy(np.stack([sources, destinations])),
        x=torch.ones(num_nodes, 1),
        y=torch.from_numpy(group),
        train_mask=masks == 0,
        val_mask=masks == 1,
        test_mask=masks == 2,
    )


@pytest.mark.parametrize("spec", ["metis", "ldg", "fennel", "ldg(slack=1.2)", "fennel(gamma=2)"])
def test_planted_groups_are_cut_far_less_than_at_random(planted: Graph, spec: str) -> None:
    # Random parts cut 3/4 of the edges; the planted ones cut 0.1 * 3/4.
    partitioner = parse_spec(spec, PARTITIONERS, family="partitioner")
    cuts = [
        PartitionStats.of(planted, assign_parts(planted, partitioner, NUM_GROUPS, seed=seed), NUM_GROUPS).cut_share
        for seed in range(3)
    ]
    assert max(cuts) < 0.4
    assert np.mean(cuts) < 0.25


def test_metis_finds_the_planted_groups_themselves(planted: Graph) -> None:
    parts = assign_parts(planted, PARTITIONERS["metis"](), NUM_GROUPS, seed=0)
    table = np.zeros((NUM_GROUPS, NUM_GROUPS), int)
    np.add.at(table, (parts, planted.y.numpy()), 1)
    assert table.max(axis=1).sum() >= 0.95 * planted.num_nodes


def test_more_passes_cut_less(planted: Graph) -> None:
    def cut(passes: int) -> float:
        partitioner = parse_spec(f"ldg(passes={passes})", PARTITIONERS, family="partitioner")
        parts = [assign_parts(planted, partitioner, NUM_GROUPS, seed=seed) for seed in range(3)]
        return sum(PartitionStats.of(planted, part, NUM_GROUPS).cut_share for part in parts)

    assert cut(5) < 0.8 * cut(1)
