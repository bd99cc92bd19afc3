"""Cover: each cut edge is served by its source's row or by its destination's partial sum, with the fewest vectors.

    y_v = sum over fetched rows u of a_vu h_u + sum over ranks q of s_qv
    s_qv = sum over rows u of q of a_vu h_u, made by q: the partial sum of destination v

The edges from rows of rank q to rows of rank p are a bipartite graph of S sources and D destinations.
Vectors that serve all these edges are a vertex cover of the graph. A source in the cover travels as a
row, a destination in the cover as a partial sum.

Why no choice is better:

1. Each edge of a matching needs a vector of its own, and Koenig's cover is as small as the largest
   matching, so no other rows and sums of this pair are fewer.
2. Rows and sums of the pair both travel from q to p in the forward pass and their gradients from p to
   q in the backward pass, so only the number of vectors loads the link, and it is the same each way.
3. A vector serves edges of one ordered pair only, so all pairs, and hence all ranks, reach their minimum
   together: no trade between pairs makes the busiest link less busy, and a tie only decides who
   multiplies.

Of equally small covers, the one with the fewest sums is taken, which costs nothing. Rows can leave
before anything is multiplied, sums cannot. Where cover gains nothing for a pair, this is halo exchange.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.cover import greedy_cover, minimum_cover

# Pairs with more edges than this get a greedy cover. CPU seconds for random edges, 1.3 to 10 for each source, on a busy
# machine: 1e5 edges 0.01 to 0.02, 1e6 0.2 to 0.5, 1e7 3.1 to 6.6 with 72 to 317 MB beside the edges. Greedy took 1.6 to
# 6.7 there and no less memory. The limit is for graphs that are hard to match: 4e6 edges of a shuffled torus took 9.
EXACT_EDGES = 10_000_000


@final
@dataclass(frozen=True, slots=True, eq=False)
class PairCover:
    """What travels from one rank to another; an edge whose destination is summed is served by that sum, else by a row.

    Args:
        is_summed: destinations that get a partial sum, bool (D,).
        is_fetched: sources whose row is sent, bool (S,).
        is_exact: whether no cover is smaller, and none as small has fewer sums.
    """

    is_summed: NDArray[np.bool_]
    is_fetched: NDArray[np.bool_]
    is_exact: bool

    @property
    def num_vectors(self) -> int:
        """Rows and sums together."""
        return int(self.is_summed.sum() + self.is_fetched.sum())


def cover_of_pair(
    indptr: NDArray[np.int64], indices: NDArray[np.integer], num_sources: int, *, exact_edges: int = EXACT_EDGES
) -> PairCover:
    """Returns which rows and sums serve the edges from one rank's rows to another's.

    The same edges give the same cover on every rank. It is never larger than the rows of all sources that have an edge
    (halo exchange), nor than the sums of all destinations that have one.

    Args:
        indptr: where the edges of each destination start, (D + 1,).
        indices: the source of each edge, below `num_sources`, sorted within a destination, (E,).
        num_sources: S; sources without an edge are never sent.
        exact_edges: with more edges than this the cover is greedy.
    """
    if len(indices) > exact_edges:
        is_summed, is_fetched, _ = greedy_cover(indptr, indices, num_sources)
        return PairCover(is_summed, is_fetched, is_exact=False)
    is_summed, is_fetched = minimum_cover(indptr, indices, num_sources)
    return PairCover(is_summed, is_fetched, is_exact=True)
