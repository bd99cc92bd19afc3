"""hash: the part of a node from its id alone, so that it stays where it is when other nodes come or go."""

from dataclasses import dataclass
from typing import final

import numpy as np

from laconic.graph import Graph
from laconic.kernels.stream_parts import hash_parts
from laconic.partitioners.base import Partitioner, Parts


@final
@dataclass(frozen=True, slots=True)
class Hash(Partitioner):
    """Hashes the id that each node has in its data (`Graph.node_ids`) with a key drawn from the seed.

    Sizes are as even as chance makes them: N / P give or take a few times sqrt(N / P). No bound is promised.
    """

    def assign(self, graph: Graph, num_parts: int, rng: np.random.Generator) -> Parts:
        parts = np.empty(graph.num_nodes, np.int32)
        key = rng.integers(2**64, dtype=np.uint64)
        hash_parts(key, graph.node_ids.numpy(), num_parts, parts)
        return parts

    def max_part_size(self, num_nodes: int, num_parts: int) -> int | None:
        return None
