"""metis: the fewest cut edges that METIS finds, with nodes and training nodes balanced together.

Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM J. Sci. Comput.
1998; the library is pymetis.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.graph.neighbours import plain_neighbours
from laconic.kernels.part_counts import count_by_part
from laconic.kernels.stream_parts import fill_lightest, hold_of_part, unload_parts
from laconic.partitioners._streaming import fill_empty_parts
from laconic.partitioners.base import Partitioner, Parts

Ints = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Metis(Partitioner):
    """Cuts few edges between parts of equal weight; a node weighs 1, a training node 1 + alpha.

    METIS takes one weight per node, so that both balances come out of one number: `laconic info` shows each. No part
    weighs more than `imbalance` times the mean (or than the mean and one node more, where parts are that small).
    Directions, self-loops and duplicates do not count; nodes without neighbours go to the lightest parts.

    Args:
        alpha: extra weight of a training node; 0 balances nodes alone.
        imbalance: how much heavier than the mean a part may become; 1.05 is 5%.
        tries: so many divisions are made, from different seeds, and the one is taken whose busiest part has the
            smallest halo: ranks wait for the one that receives most.
    """

    alpha: float = 1.0
    imbalance: float = 1.05
    # Four tries take four times as long (debian.npz in 4 parts: 5.8 s for 1.5 s) and found at best a busiest halo that
    # is 0.4% smaller, over 3 seeds: METIS finds much the same division from every seed. So one is the default.
    tries: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1000:
            raise ConfigError(f"partitioner metis: alpha should lie between 0 and 1000, got {self.alpha}.")
        if not 1.001 <= self.imbalance <= 10:
            raise ConfigError(f"partitioner metis: imbalance should lie between 1.001 and 10, got {self.imbalance}.")
        if self.tries < 1:
            raise ConfigError(f"partitioner metis: tries should be 1 or more, got {self.tries}.")

    def assign(self, graph: Graph, num_parts: int, rng: np.random.Generator) -> Parts:
        if num_parts == 1:
            return np.zeros(graph.num_nodes, np.int32)
        if num_parts >= graph.num_nodes:
            return rng.permutation(num_parts)[: graph.num_nodes].astype(np.int32)
        neighbours, weights = plain_neighbours(graph.adjacency), self._weights(graph)
        candidates = [self._divide(neighbours, weights, num_parts, rng) for _ in range(self.tries)]
        return min(candidates, key=lambda parts: _busiest_halo(graph, parts, num_parts) if self.tries > 1 else 0)

    def _divide(self, neighbours: tuple[Ints, Ints], weights: Ints, num_parts: int, rng: np.random.Generator) -> Parts:
        indptr, indices = neighbours
        seed = int(rng.integers(2**31 - 1))
        parts = np.full(len(weights), -1, np.int32)
        linked = np.flatnonzero(np.diff(indptr))
        if len(linked) >= num_parts:
            parts[linked] = self._run_metis(indptr, indices, linked, weights, num_parts, seed)
        loads = np.bincount(parts[parts >= 0], weights[parts >= 0], minlength=num_parts).astype(np.int64)
        fill_lightest(rng.permutation(np.flatnonzero(parts < 0)), weights, loads, parts)
        limit = self._limit(int(weights.sum()), int(weights.max()), num_parts)
        # Moves nothing in most cases, and then costs little beside METIS; asking first would leave the kernels that it
        # takes uncompiled until the day they are needed.
        order = np.argsort(hold_of_part(indptr, indices, parts), kind="stable")
        unload_parts(order, indptr, indices, weights, limit, loads, parts)
        return fill_empty_parts(parts, num_parts)

    def max_part_size(self, num_nodes: int, num_parts: int) -> int:
        if num_parts >= num_nodes:
            return 1
        # At worst a part holds no training node while all others are full of them.
        extra = self._extra_weight(num_nodes)
        heaviest = extra.denominator + extra.numerator
        return min(num_nodes, self._limit(num_nodes * heaviest, heaviest, num_parts) // extra.denominator)

    def _run_metis(self, indptr: Ints, indices: Ints, linked: Ints, weights: Ints, num_parts: int, seed: int) -> Parts:
        # A run on one rank, or on a store, divides nothing.
        import pymetis

        # METIS crowds nodes without neighbours into one part, so it never sees them.
        number = np.cumsum(np.diff(indptr) > 0) - 1
        starts = np.append(indptr[linked], indptr[-1])
        width = pymetis.zero_copy_dtype()
        found = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(starts.astype(width, copy=False), number[indices].astype(width, copy=False)),
            vweights=weights[linked].astype(width, copy=False),
            # Bisecting balances better and cuts no more, up to where it takes longer than dividing at once.
            recursive=num_parts <= 64,
            options=pymetis.Options(seed=seed, ufactor=max(1, round((self.imbalance - 1) * 1000))),
        )
        return np.asarray(found.vertex_part, dtype=np.int32)

    def _weights(self, graph: Graph) -> Ints:
        extra = self._extra_weight(graph.num_nodes)
        return extra.denominator + extra.numerator * graph.train_mask.numpy().astype(np.int64)

    def _extra_weight(self, num_nodes: int) -> Fraction:
        # METIS wants whole numbers whose sum fits its integers, 32 bits in some builds.
        return Fraction(self.alpha).limit_denominator(max(1, min(100, int(2**30 / (num_nodes * (1 + self.alpha))))))

    def _limit(self, total: int, heaviest: int, num_parts: int) -> int:
        return max(int(self.imbalance * total / num_parts), -(-total // num_parts) + heaviest)


def _busiest_halo(graph: Graph, parts: Parts, num_parts: int) -> int:
    rows = graph.adjacency
    return int(count_by_part(rows.indptr, rows.indices, parts, num_parts)[2].max())
