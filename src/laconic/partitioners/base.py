"""What a partitioner is: a Graph and a number of parts in, the part of each node out. Knows no files and no ranks.

A new one is a frozen dataclass in a file of its own and a line in the table of `partitioners/__init__.py`.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ConfigError
from laconic.graph import Graph

Parts = NDArray[np.int32]


class Partitioner(ABC):
    """Divides the nodes of a graph into parts. The fields of a member are its whole configuration."""

    uses_seed: ClassVar[bool] = True
    """Whether another seed may give other parts."""

    @abstractmethod
    def assign(self, graph: Graph, num_parts: int, rng: np.random.Generator) -> Parts:
        """Returns the part of each node, 0 to num_parts - 1, int32, (N,); all chance comes from `rng`."""

    @abstractmethod
    def max_part_size(self, num_nodes: int, num_parts: int) -> int | None:
        """Returns the most nodes that a part can get, or None where nothing is promised.

        A member that promises a size also leaves no part empty when there are as many nodes as parts.
        """


def assign_parts(graph: Graph, partitioner: Partitioner, num_parts: int, *, seed: int) -> Parts:
    """Returns the part of each node of `graph`, deterministic by `seed`; what `laconic partition` does first."""
    if num_parts < 1:
        raise ConfigError(f"The number of parts should be 1 or more, got {num_parts}.")
    return partitioner.assign(graph, num_parts, np.random.default_rng(seed))
