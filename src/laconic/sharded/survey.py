"""What every grid would move and hold on a given graph, counted before one is chosen.

On one axis each rank has the edges into its own rows, and knows which of its rows others fetch. So it knows of each of
its nodes which ranks have an edge from it, and which ranks have an edge to it. From that the rows of every grid follow,
exactly.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.comm.grid import Grid, all_grids
from laconic.sharded.cover import Covers
from laconic.sharded.placement import Placement

# Shapes: N own rows, P ranks

IntArray = NDArray[np.int64]


@final
@dataclass(frozen=True)
class GridSizes:
    """What the busiest rank of a grid moves and holds.

    Args:
        grid: the ranks.
        words: words received in one product, for each feature; the mean of forward and backward.
        num_messages: messages received in one product.
        num_edges: edges of the largest block.
        num_rows: rows of the largest block and of the others that it gathers and sums, for a slice of the features.
        num_rows_staged: the same where others' rows travel in stages, so that those of two blocks are there at most.
        num_own: the most rows that a rank owns.
    """

    grid: Grid
    words: float
    num_messages: int
    num_edges: int
    num_rows: int
    num_rows_staged: int
    num_own: int


def survey(placement: Placement, covers: Covers | None, *, is_sparse: bool) -> list[GridSizes]:
    """Returns the sizes of every grid, the same on all ranks, which call it together.

    Args:
        placement: of one axis, all edges with their destinations.
        covers: who serves the edges between ranks, where the grid of one axis has its edges placed by a cover.
        is_sparse: exchange only rows that some edge needs.
    """
    communicator = placement.communicator
    grids = all_grids(communicator.num_ranks)
    counts = _Counts.of(placement, is_sparse=is_sparse)
    with communicator.ledger.phase("setup"):
        edges_PP = communicator.all_gather(torch.from_numpy(counts.num_edges)).numpy()
        found = communicator.all_gather(torch.from_numpy(np.stack([counts.along(grid) for grid in grids]))).numpy()
        own = communicator.all_gather(torch.tensor([placement.shard.num_rows])).flatten().numpy()
        covered = None if covers is None else communicator.all_gather(torch.from_numpy(covers.counts)).numpy()
    sizes = [_sizes(grid, found[:, number], edges_PP, own) for number, grid in enumerate(grids)]
    # The first grid has one axis.
    return sizes if covered is None else [_covered(sizes[0], covered, edges_PP, own), *sizes[1:]]


@final
@dataclass(frozen=True, eq=False)
class _Counts:
    """What a rank knows of its own nodes.

    Args:
        rank: whose nodes.
        has_edge_to: whether a node has an edge to a row of each rank, (N, P).
        has_edge_from: whether it has an edge from a row of each rank, (N, P).
        num_edges: edges from the rows of each rank, (P,).
    """

    rank: int
    has_edge_to: NDArray[np.bool_]
    has_edge_from: NDArray[np.bool_]
    num_edges: IntArray

    @staticmethod
    def of(placement: Placement, *, is_sparse: bool) -> "_Counts":
        shard, lists = placement.shard, placement.exchange
        rank, ranks = lists.communicator.rank, np.arange(lists.communicator.num_ranks)
        columns, rows = shard.adjacency.indices, shard.adjacency.row_of_edge
        owner = np.append(np.full(shard.num_rows, rank), np.repeat(ranks, lists.splits.receive))[columns]
        has_edge_to, has_edge_from = np.full((2, shard.num_rows, len(ranks)), not is_sparse)
        has_edge_from[rows, owner] = True
        has_edge_to[lists.send_rows.numpy(), np.repeat(ranks, lists.splits.send)] = True
        # Edges within the own rows are no rank's business but this one's.
        has_edge_to[columns[owner == rank], rank] = True
        return _Counts(rank, has_edge_to, has_edge_from, np.bincount(owner, minlength=len(ranks)))

    def along(self, grid: Grid) -> NDArray[np.int64]:
        """Returns how many own rows go to each place along i, and come as sums from each place along k, (2, P)."""
        place = grid.coordinates_of(self.rank)
        places = [grid.coordinates_of(rank) for rank in range(grid.num_ranks)]
        found = np.zeros((2, grid.num_ranks), np.int64)
        for i in set(range(grid.pi)) - {place.i}:
            found[0, i] = self.has_edge_to[:, [other.i == i for other in places]].any(1).sum()
        for k in set(range(grid.pk)) - {place.k}:
            found[1, k] = self.has_edge_from[:, [other.k == k for other in places]].any(1).sum()
        return found


def _sizes(grid: Grid, found: NDArray[np.int64], edges: NDArray[np.int64], own: NDArray[np.int64]) -> GridSizes:
    """Adds up what all ranks found for one grid: `found` is (P, 2, P), `edges` by destination and source, (P, P)."""
    blocks = own.reshape(grid.pi, grid.pk, grid.pj).sum(2)
    # Of the block (i, k): rows that go to each other i, and sums that come from each other k.
    per_block = found.reshape(grid.pi, grid.pk, grid.pj, 2, -1).sum(2)
    rows_out, sums_in = per_block[:, :, 0], per_block[:, :, 1]
    rows_in = rows_out.sum(0)[:, : grid.pi].T
    sums_out = sums_in.sum(1)[:, : grid.pk]
    moved = (rows_out.sum(2) + rows_in + sums_in.sum(2) + sums_out) / 2 / grid.pj
    line = own.reshape(grid.pi, grid.pk, grid.pj)
    sliced = ((blocks[:, :, None] - line) / grid.pj + line * (1 - 1 / grid.pj)).max(2)
    by_block = edges.reshape(grid.pi, grid.pk * grid.pj, grid.pi, grid.pk, grid.pj).sum((1, 2, 4))
    two_blocks = 2 * int(blocks.max())
    # A sum is whole when all rows have come: only where none come, sums are made block by block.
    staged = rows_in.clip(max=two_blocks) + sums_out if grid.pi > 1 else sums_out.clip(max=two_blocks)
    return GridSizes(
        grid=grid,
        words=float((moved + sliced).max()),
        num_messages=grid.pi - 1 + grid.pk - 1 + 2 * (grid.pj - 1),
        num_edges=int(by_block.max()),
        num_rows=int((blocks + rows_in + sums_out).max()),
        num_rows_staged=int((blocks + staged).max()),
        num_own=int(own.max()),
    )


def _covered(sizes: GridSizes, counts: IntArray, edges: IntArray, own: IntArray) -> GridSizes:
    """Returns the sizes of one axis under a cover: `counts` of every rank are those of Covers, (P, 3, P)."""
    rows, sums, moved = counts[:, 0], counts[:, 1], counts[:, 2]
    vectors, num_rows = rows + sums, int((own + rows.sum(1) + sums.sum(0)).max())
    return replace(
        sizes,
        words=float((vectors.sum(0) + vectors.sum(1)).max()) / 2,
        num_messages=sizes.num_messages * (1 + bool(sums.any())),
        num_edges=int((edges.sum(1) - moved.sum(1) + moved.sum(0)).max()),
        num_rows=num_rows,
        num_rows_staged=num_rows,
    )
