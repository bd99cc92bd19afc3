"""TileMap: the edges of `2d_summa`, a tile for each rank, and how this rank comes to hold its own.

    rank (i, j)    holds the edges from row group j to row group i, (rows of i) x (rows of j)

For the backward pass it holds the edges from group i to group j too, unless the matrix is its own
transpose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Coordinates
from laconic.errors import ConfigError
from laconic.graph import Adjacency
from laconic.papers.cagnet.summa import SummaAxes, SummaOperators
from laconic.papers.cagnet.symmetry import check_symmetric
from laconic.sharded.block import (
    EDGE_ARRAYS,
    NODE_ARRAYS,
    BlockMap,
    HeldEdges,
    Read,
    as_numbers,
    compressed,
    edges_between,
)

# Edges travel as numbers of 32 bits within groups.
LARGEST_GROUP = 2**31 - 1


@final
@dataclass(frozen=True, eq=False)
class TileMap(BlockMap):
    """Which tiles belong to whom.

    Args:
        is_for_symmetric: the backward pass takes the matrix for its own transpose.
    """

    is_for_symmetric: bool = False

    def __post_init__(self) -> None:
        if max(self.block_sizes) > LARGEST_GROUP:
            raise ConfigError(
                f"In 2d_summa edges travel as numbers of 32 bits within groups of rows, and with pi={self.grid.pi} a "
                f"group has {max(self.block_sizes)} rows, more than 2^31 - 1. "
                f'Use grid="2d", whose edges stay, or more ranks.'
            )

    def has_columns_of(self, mine: Coordinates, other: Coordinates) -> bool:
        return other.i == mine.j

    def arrays_of(self, rank: int) -> dict[int, Sequence[str]]:
        mine, own = self.grid.coordinates_of(rank), self.chunks.chunks_of(rank)
        tiles = self.chunks_where(lambda place: place.i in (mine.i, mine.j))
        return dict.fromkeys(tiles, (*EDGE_ARRAYS, "node_ids")) | dict.fromkeys(own, (*EDGE_ARRAYS, *NODE_ARRAYS))

    def hold(
        self, read: Read, communicator: Communicator, line_ids: Tensor, *, is_sparse: bool, is_staged: bool
    ) -> HeldEdges:
        mine = self.grid.coordinates_of(communicator.rank)
        if self.is_for_symmetric:
            check_symmetric(self.edges_of(read, communicator.rank), communicator)
        block, weight = _read_tile(read, self, row=mine.i, column=mine.j)
        mate, mate_weight = (None, None) if self.is_for_symmetric else _read_tile(read, self, row=mine.j, column=mine.i)
        column_ids = torch.cat([read(n).tensor("node_ids") for n in self.chunks_where(lambda place: place.i == mine.j)])
        sizes = communicator.all_gather(torch.tensor([block.num_edges, 0 if mate is None else mate.num_edges]))
        operators = SummaOperators(
            adjacency=block,
            mate=mate,
            weights=as_numbers(weight),
            mate_weights=as_numbers(mate_weight),
            ids=(line_ids, column_ids),
            is_on_diagonal=mine.i == mine.j,
            axes=SummaAxes.of(communicator, self.grid, self.block_sizes, sizes.numpy()),
        )
        num_columns = int(self.chunks.rank_starts[-1])
        # The shard's edges are those from one column group: the ids of that one.
        return HeldEdges(operators, None, weight, line_ids, torch.cat([line_ids, column_ids]), num_columns)


def _read_tile(read: Read, block_map: BlockMap, *, row: int, column: int) -> tuple[Adjacency, Tensor | None]:
    """Returns the edges from one row group to another, both numbered from 0, and their weights."""
    receivers = block_map.chunks_where(lambda place: place.i == row)
    senders = block_map.chunks_where(lambda place: place.i == column)
    sources, destinations, weight = edges_between(read, block_map.chunks, senders, receivers)
    starts = [block_map.blocks[block_map.grid.rank_at(at, 0, 0)] for at in (row, column)]
    (first_row, end_row), (first_column, end_column) = starts
    shape = (int(end_row - first_row), int(end_column - first_column))
    return compressed((sources - first_column, destinations - first_row, weight), shape)
