"""random: each node to a part by chance, parts of equal size. The baseline of every cut, and Grappa's chunks."""

from dataclasses import dataclass
from typing import final

import numpy as np

from laconic.graph import Graph
from laconic.partitioners.base import Partitioner, Parts


@final
@dataclass(frozen=True, slots=True)
class Random(Partitioner):
    """Deals shuffled nodes out to the parts in turn; sizes differ by at most one."""

    def assign(self, graph: Graph, num_parts: int, rng: np.random.Generator) -> Parts:
        parts = np.arange(graph.num_nodes, dtype=np.int32) % np.int32(num_parts)
        rng.shuffle(parts)
        return parts

    def max_part_size(self, num_nodes: int, num_parts: int) -> int:
        return -(-num_nodes // num_parts)
