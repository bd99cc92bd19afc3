"""The graphs that benchmarks run on: one with even and one with power-law degrees, both undirected, 128 features."""

import numpy as np
import torch

from laconic.graph import Graph

NUM_FEATURES, NUM_CLASSES = 128, 40


def random_graph(num_nodes: int, mean_degree: int, *, power_law: bool, seed: int = 0) -> Graph:
    """An undirected graph of about `num_nodes * mean_degree` directed edges, without duplicates or loops.

    The power-law one draws both ends of an edge by weights of a Pareto distribution (exponent 2.2).
    """
    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.2, num_nodes) + 1 if power_law else np.ones(num_nodes)
    cumulative = np.cumsum(weights / weights.sum())
    codes = np.empty(0, np.int64)
    wanted = num_nodes * mean_degree // 2
    while len(codes) < wanted:
        # Duplicates are many among hubs: draw again until there are enough distinct pairs.
        ends = np.searchsorted(cumulative, rng.random((2, wanted)))
        low, high = np.minimum(*ends), np.maximum(*ends)
        codes = np.unique(np.concatenate([codes, (low * num_nodes + high)[low != high]]))
    codes = rng.permutation(codes)[:wanted]
    low, high = np.divmod(codes, num_nodes)
    edge_index = torch.from_numpy(np.stack([np.concatenate([low, high]), np.concatenate([high, low])]))
    masks = torch.from_numpy(rng.permutation(np.arange(num_nodes) % 3))
    return Graph(
        edge_index=edge_index,
        x=torch.from_numpy(rng.standard_normal((num_nodes, NUM_FEATURES), dtype=np.float32)),
        y=torch.from_numpy(rng.integers(0, NUM_CLASSES, num_nodes)),
        train_mask=masks == 0,
        val_mask=masks == 1,
        test_mask=masks == 2,
        num_classes=NUM_CLASSES,
        name="power-law" if power_law else "uniform",
    )
