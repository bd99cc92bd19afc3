"""Edge lists of undirected graphs: both directions, sorted, without duplicates. Knows arrays only."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Shapes: M pairs, E edges


def sorted_unique(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the distinct keys in order; by sorting, which for millions is far faster than np.unique, which hashes."""
    ordered = np.sort(keys)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def distinct_pairs(ends: NDArray[np.int64], others: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """Returns the distinct unordered pairs (ends, others) without loops, as sorted keys low * num_nodes + high."""
    low, high = np.minimum(ends, others), np.maximum(ends, others)
    keys = low * num_nodes + high
    return sorted_unique(keys[low != high])


def edges_of_pairs(keys_M: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """Returns both directions of each pair as an edge index (2, 2M), in no order that a caller may rely on."""
    low, high = np.divmod(keys_M, num_nodes)
    return np.stack([np.concatenate([low, high]), np.concatenate([high, low])])


def with_reverse_edges(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Returns the edges with the reverse of each, duplicates merged, sorted by (source, destination).

    A reverse edge takes its edge's weight, unless it was given itself; of duplicates the first one's weight stays.
    """
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1).numpy()
    keys = both[0] * num_nodes + both[1]
    if edge_weight is None:
        merged = np.stack(np.divmod(sorted_unique(keys), num_nodes))
        return torch.from_numpy(merged), None
    unique, first = np.unique(keys, return_index=True)
    merged = np.stack(np.divmod(unique, num_nodes))
    return torch.from_numpy(merged), torch.cat([edge_weight, edge_weight])[torch.from_numpy(first)]
