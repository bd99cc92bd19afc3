"""ReplicatedAxis: the columns of `1.5d_replicated`, gathered in a row group, then among groups.

    group      along k: ranks of a process row exchange all rows, (N, W) -> (G, W)
    column     along i: a rank fetches the row groups of its block's columns, (G, W) -> (M, W),
               from the ranks of its process column

Folding is the way back. CAGNET's 1.5D keeps row groups replicated by an all-reduce after each
product. The scattering half of that all-reduce is our fold along k. The gathering half is the step
`group` here. Both together move as many words as the all-reduce.
"""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Coordinates
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.sharded.axis import AxisExchange, PlacedAxis
from laconic.sharded.block import Block, BlockMap, Edges, Read, edges_between

# Shapes: N rows of the own block, G rows of the own group, M columns beyond the own block, W features


@final
@dataclass(frozen=True, eq=False)
class ReplicatedAxis(PlacedAxis):
    """The two steps, as one axis.

    Args:
        group: along k, all rows.
        column: along i, rows of groups.
        num_own: N.
        first: where the own block begins in its group.
        near: rows of the own group that are columns here, those of the own block excepted.
        num_before: columns from groups before the own one.
    """

    group: PlacedAxis
    column: PlacedAxis
    num_own: int
    first: int
    near: Tensor
    num_before: int

    @staticmethod
    def of(
        communicator: Communicator, block_map: BlockMap, other_columns: NDArray[np.int64], *, is_sparse: bool
    ) -> "ReplicatedAxis":
        """Returns the axis of this rank; all ranks call it together.

        Args:
            other_columns: places of the columns beyond the own block, sorted.
        """
        rank, grid, blocks = communicator.rank, block_map.grid, block_map.blocks
        mine = grid.coordinates_of(rank)
        groups = [(grid.rank_at(q, 0, 0), grid.rank_at(q, grid.pk - 1, 0)) for q in range(grid.pi)]
        spans = {q: (blocks[leader, 0], blocks[last, 1]) for q, (leader, last) in enumerate(groups)}
        start, end = spans[mine.i]
        wanted = [torch.empty(0, dtype=torch.int64) for _ in range(grid.num_ranks)]
        for q, (first, last) in spans.items():
            if q != mine.i:
                at = np.searchsorted(other_columns, (first, last))
                wanted[grid.rank_at(q, mine.k, 0)] = torch.from_numpy(other_columns[slice(*at)] - first)
        if is_sparse:
            column = AxisExchange.sparse(communicator, wanted, int(end - start))
        else:
            column = AxisExchange.of_blocks(communicator, _splits(block_map, rank), int(end - start))
        near = other_columns[(other_columns >= start) & (other_columns < end)]
        return ReplicatedAxis(
            AxisExchange.dense(communicator, grid, "k", block_map.block_sizes),
            column,
            num_own=block_map.block_sizes[rank],
            first=int(blocks[rank, 0] - start),
            near=torch.from_numpy(near - start),
            num_before=int((other_columns < start).sum()),
        )

    @property
    def num_others(self) -> int:
        return len(self.near) + self.column.num_others

    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        rest = self.group.start_expand(x, widest).wait()
        group = torch.cat([rest[: self.first], x.detach(), rest[self.first :]])
        far = self.column.start_expand(group, widest).wait()
        near = group.index_select(0, self.near)
        return Pending.done(torch.cat([far[: self.num_before], near, far[self.num_before :]]))

    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        num_near, before = len(self.near), self.num_before
        near = partial[before : before + num_near]
        far = torch.cat([partial[:before], partial[before + num_near :]])
        arriving = self.column.start_fold(far, widest)
        group = partial.new_zeros(self.num_own + self.group.num_others, partial.shape[1])
        group.index_add_(0, self.near, near)
        self.column.add_folded(arriving.wait(), group)
        end = self.first + self.num_own
        own, rest = group[self.first : end], torch.cat([group[: self.first], group[end:]])
        return Pending.done(torch.cat([own, self.group.start_fold(rest, widest).wait()]))

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        into[: self.num_own] += arrived[: self.num_own]
        self.group.add_folded(arrived[self.num_own :], into)

    def booked(self, ledger: Ledger) -> "ReplicatedAxis":
        nothing = torch.empty(0, dtype=torch.int64)
        return ReplicatedAxis(self.group.booked(ledger), self.column.booked(ledger), 0, 0, nothing, 0)


@final
@dataclass(frozen=True, eq=False)
class ReplicatedMap(BlockMap):
    """Edges into a row group, cut by row groups of sources: block k has those of pi / pk groups."""

    def others(self, rank: int, axis: Literal["i", "k"]) -> NDArray[np.int64]:
        if axis == "k":
            return super().others(rank, axis)
        # The other rows of the own group, and all rows of the groups that the block has columns of.
        mine = self.grid.coordinates_of(rank)
        places = [self.grid.coordinates_of(peer) for peer in range(self.grid.num_ranks)]
        wanted = [place.i == mine.i or self.has_columns_of(mine, place) for place in places]
        return self.places_of([peer for peer, is_wanted in enumerate(wanted) if is_wanted and peer != rank])

    def has_columns_of(self, mine: Coordinates, other: Coordinates) -> bool:
        return other.i * self.grid.pk // self.grid.pi == mine.k

    def edges_of(self, read: Read, rank: int) -> Edges:
        own = self.chunks.chunks_of(rank)
        return _loops_at_home(super().edges_of(read, rank), edges_between(read, self.chunks, own, own))

    def columns_of(self, block: Block, communicator: Communicator, *, is_sparse: bool) -> ReplicatedAxis:
        return ReplicatedAxis.of(communicator, self, block.other_columns, is_sparse=is_sparse)


def _loops_at_home(edges: Edges, at_home: Edges) -> Edges:
    """Returns the edges without their loops, and with those of `at_home`, between own rows."""

    def where(edges: Edges, chosen: NDArray[np.bool_]) -> Edges:
        sources, destinations, weight = edges
        return sources[chosen], destinations[chosen], None if weight is None else weight[torch.from_numpy(chosen)]

    others = where(edges, edges[0] != edges[1])
    loops = where(at_home, at_home[0] == at_home[1])
    weights = [weight for weight in (others[2], loops[2]) if weight is not None]
    return (
        np.concatenate([others[0], loops[0]]),
        np.concatenate([others[1], loops[1]]),
        torch.cat(weights) if weights else None,
    )


def _splits(block_map: BlockMap, rank: int) -> Splits:
    """Returns how many rows of groups go to, and come from, each rank."""
    grid = block_map.grid
    places = [grid.coordinates_of(peer) for peer in range(grid.num_ranks)]
    mine, sizes = places[rank], block_map.block_sizes
    group_sizes = [sum(size for size, place in zip(sizes, places, strict=True) if place.i == q) for q in range(grid.pi)]

    def travels(of: int, to: int) -> bool:
        return of != to and places[of].k == places[to].k and block_map.has_columns_of(places[to], places[of])

    return Splits(
        tuple(group_sizes[mine.i] * travels(rank, peer) for peer in range(grid.num_ranks)),
        tuple(group_sizes[place.i] * travels(peer, rank) for peer, place in enumerate(places)),
        max(group_sizes) if grid.pi > 1 else 0,
    )
