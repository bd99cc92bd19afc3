import numpy as np

from laconic.graph import Graph
from laconic.partitioners import Random, assign_parts


def test_sizes_differ_by_at_most_one(small_graph: Graph) -> None:
    for num_parts in (1, 7, 8, 60):
        sizes = np.bincount(assign_parts(small_graph, Random(), num_parts, seed=0), minlength=num_parts)
        assert sizes.max() - sizes.min() <= 1


def test_every_node_meets_every_part_over_many_seeds(small_graph: Graph) -> None:
    drawn = np.stack([assign_parts(small_graph, Random(), 3, seed=seed) for seed in range(60)])
    # 60 draws of 3 parts: a node that never meets one of them has a chance of 3 * (2/3)**60, about 1e-10.
    assert all(len(set(column)) == 3 for column in drawn.T)
