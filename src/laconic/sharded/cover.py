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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from laconic.graph import Adjacency
from laconic.kernels.cover import greedy_cover, minimum_cover

# Shapes: N owned rows, H halo rows, E edges from halo rows, P ranks

EdgePlace = Literal["destination", "source", "cover"]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Pairs with more edges than this get a greedy cover. CPU seconds for random edges, 1.3 to 10 for each source, on a busy
# machine: 1e5 edges 0.01 to 0.02, 1e6 0.2 to 0.5, 1e7 3.1 to 6.6 with 72 to 317 MB beside the edges. Greedy took 1.6 to
# 6.7 there and no less memory. The limit is for graphs that are hard to match: 4e6 edges of a shuffled torus took 9.
EXACT_EDGES = 10_000_000


def cover_of_pair(
    indptr: IntArray, indices: NDArray[np.integer], num_sources: int, *, exact_edges: int = EXACT_EDGES
) -> tuple[BoolArray, BoolArray]:
    """Returns which destinations get a partial sum, (D,), and which sources' rows are sent, (S,).

    An edge whose destination is summed is served by that sum, else by a row. The same edges give the same cover on
    every rank. It is never larger than the rows of all sources that have an edge (halo exchange), nor than the sums of
    all destinations that have one. If it is not greedy, no cover is smaller, and none as small has fewer sums.

    Args:
        indptr: where the edges of each destination start, (D + 1,).
        indices: the source of each edge, below `num_sources`, sorted within a destination, (E,).
        num_sources: S; sources without an edge are never sent.
        exact_edges: with more edges than this the cover is greedy.
    """
    if len(indices) > exact_edges:
        return greedy_cover(indptr, indices, num_sources)[:2]
    return minimum_cover(indptr, indices, num_sources)


def cover_bytes(num_cut_edges: int, num_vertices: int) -> int:
    """Returns the memory that finding the covers of a rank takes for a while, beside the edges themselves.

        64 bytes an edge from a halo row: its row (4), the edges sorted by rank (32), those of one pair in both
        directions (24), masks (4)
        16 bytes a row or halo row: partner, edges left, order, leaves; later level, path and cursor

    Measured on debian with reverse edges (peak of a process): four random parts, 533,048 such edges and 90,451 rows and
    halo rows of a rank, 29 MB (the formula says 36); two parts 45 MB (49); eight copies of debian in four parts 221 MB
    (285). A greedy cover has the same arrays, so it is no way out where memory is short.
    """
    return 64 * num_cut_edges + 16 * num_vertices


@final
@dataclass(frozen=True, eq=False)
class Covers:
    """Who serves the edges that arrive at a rank from each other rank.

    Args:
        remote: the edges from halo rows, (N x H).
        starts: where the halo rows of each rank begin, (P + 1,).
        summed: of each rank, the owned rows that get a partial sum from there, rising.
        is_summed_edge: which edges add to one of them, (E,).
    """

    remote: Adjacency
    starts: IntArray
    summed: list[IntArray]
    is_summed_edge: BoolArray

    @staticmethod
    def of(remote: Adjacency, num_halo: Sequence[int], edges: EdgePlace) -> "Covers":
        """Places the edges.

        Args:
            num_halo: halo rows of each rank, which stand in the order of ranks, (P,).
        """
        starts = np.append(0, np.cumsum(num_halo))
        rows, columns = remote.row_of_edge, remote.indices
        found, is_summed_edge = [], np.zeros(remote.num_edges, bool)
        for peer, numbers in enumerate(by_rank(columns, starts)):
            is_summed = np.zeros(remote.num_rows, bool)
            if edges == "source":
                is_summed[rows[numbers]] = True
            else:
                indptr = np.append(0, np.cumsum(np.bincount(rows[numbers], minlength=remote.num_rows)))
                # Only rows that have an edge: most have none from a given rank.
                occurring = np.flatnonzero(np.diff(indptr))
                pair = indptr[np.append(occurring, remote.num_rows)], columns[numbers] - starts[peer]
                is_summed[occurring], _ = cover_of_pair(*pair, int(num_halo[peer]))
            found.append(np.flatnonzero(is_summed))
            is_summed_edge[numbers] = is_summed[rows[numbers]]
        return Covers(remote, starts, found, is_summed_edge)

    @property
    def fetched(self) -> IntArray:
        """Halo rows that some edge still needs, rising."""
        is_fetched = np.zeros(int(self.starts[-1]), bool)
        is_fetched[self.remote.indices[~self.is_summed_edge]] = True
        return np.flatnonzero(is_fetched)

    @property
    def counts(self) -> IntArray:
        """Rows and sums that come from each rank, and edges that go there, (3, P)."""
        num_moved = map(len, by_rank(self.remote.indices[self.is_summed_edge], self.starts))
        num_fetched = map(len, by_rank(self.fetched, self.starts))
        return np.array([[*num_fetched], [*map(len, self.summed)], [*num_moved]])


def by_rank(columns: NDArray[np.integer], starts: IntArray) -> list[IntArray]:
    """Returns the numbers of the columns that belong to each rank, rising; `starts` as in Covers."""
    owner = np.searchsorted(starts, columns, side="right") - 1
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, len(starts) - 1)))
