import dataclasses

import numpy as np
import torch

from laconic.graph import Graph
from laconic.partitioners import Hash, assign_parts


def test_a_node_keeps_its_part_when_others_come_or_the_order_changes(make_graph) -> None:
    many = make_graph(num_nodes=200)
    few: Graph = make_graph(num_nodes=50)
    chosen = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:50]
    few = dataclasses.replace(few, node_ids=many.node_ids[chosen])
    parts = assign_parts(many, Hash(), 6, seed=4)
    np.testing.assert_array_equal(assign_parts(few, Hash(), 6, seed=4), parts[chosen.numpy()])


def test_sizes_are_as_even_as_chance(make_graph) -> None:
    sizes = np.bincount(assign_parts(make_graph(num_nodes=8000), Hash(), 8, seed=0), minlength=8)
    # Binomial: mean 1000, standard deviation 29.6; five of those is one chance in a million per part.
    assert np.abs(sizes - 1000).max() < 148
