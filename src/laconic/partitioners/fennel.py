"""fennel: streaming, to the part with most neighbours less a price that rises with its size.

Tsourakakis, Gkantsidis, Radunovic and Vojnovic, "FENNEL: streaming graph partitioning for massive scale graphs",
WSDM 2014; several passes: Nishimura and Ugander, KDD 2013.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.partitioners._streaming import check_stream, full_size, num_links, stream
from laconic.partitioners.base import Partitioner, Parts


@final
@dataclass(frozen=True, slots=True)
class Fennel(Partitioner):
    """Scores a part by links - alpha * gamma * size ** (gamma - 1).

    alpha = M * P ** (gamma - 1) / N ** gamma for M links, N nodes and P parts: the paper's, for any gamma.

    Args:
        slack: how much larger than the mean a part may become; 1.05 is 5%.
        gamma: how steeply the price rises: 1 ignores sizes below full, 2 balances most.
        passes: how often the nodes are streamed; later passes know where the neighbours went.
        order: "random", or "given" for the graph's own order.
    """

    slack: float = 1.05
    gamma: float = 1.5
    passes: int = 5
    order: str = "random"

    def __post_init__(self) -> None:
        check_stream("fennel", self.slack, self.passes, self.order)
        if not 1 <= self.gamma <= 3:
            raise ConfigError(f"partitioner fennel: gamma should lie between 1 and 3, got {self.gamma}.")

    def assign(self, graph: Graph, num_parts: int, rng: np.random.Generator) -> Parts:
        full = full_size(graph.num_nodes, num_parts, self.slack)
        alpha = num_links(graph) * num_parts ** (self.gamma - 1) / graph.num_nodes**self.gamma
        price = alpha * self.gamma * np.arange(full) ** (self.gamma - 1)
        return stream(graph, num_parts, rng, gain=np.ones(full), price=price, passes=self.passes, order=self.order)

    def max_part_size(self, num_nodes: int, num_parts: int) -> int:
        return full_size(num_nodes, num_parts, self.slack)
