"""ldg: streaming, to the part with most neighbours, damped as it fills. Little memory, one pass or a few.

Linear Deterministic Greedy: Stanton and Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012;
several passes: Nishimura and Ugander, "Restreaming graph partitioning", KDD 2013.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from laconic.graph import Graph
from laconic.partitioners._streaming import check_stream, full_size, stream
from laconic.partitioners.base import Partitioner, Parts


@final
@dataclass(frozen=True, slots=True)
class Ldg(Partitioner):
    """Scores a part by links * (1 - size / full size).

    Args:
        slack: how much larger than the mean a part may become; 1.05 is 5%.
        passes: how often the nodes are streamed; later passes know where the neighbours went.
        order: "random", or "given" for the graph's own order.
    """

    slack: float = 1.05
    passes: int = 5
    order: str = "random"

    def __post_init__(self) -> None:
        check_stream("ldg", self.slack, self.passes, self.order)

    def assign(self, graph: Graph, num_parts: int, rng: np.random.Generator) -> Parts:
        full = full_size(graph.num_nodes, num_parts, self.slack)
        gain = 1 - np.arange(full) / full
        return stream(graph, num_parts, rng, gain=gain, price=np.zeros(full), passes=self.passes, order=self.order)

    def max_part_size(self, num_nodes: int, num_parts: int) -> int:
        return full_size(num_nodes, num_parts, self.slack)
