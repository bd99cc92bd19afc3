"""Block: the edges of one rank of a grid, from the nodes of its column group to those of its row group.

Nodes have a place: their number when the rows of all ranks stand one after the other. The ranks of one line along j
share a block of places. Row group i is the blocks of all (i, k), column group k those of all (i, k): the block of
(i, k) is in both, and in a rank's numbering of rows and of columns its nodes come first, then those of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.grid import Arrangement, Grid, Place
from laconic.graph import Adjacency
from laconic.kernels.compress import compress_edges
from laconic.sharded.chunk_map import ChunkMap
from laconic.store import Chunk

# Shapes: N nodes of the own block, R rows, C columns, E edges, P ranks

NODE_ARRAYS = ("node_ids", "x", "y", "train_mask", "val_mask", "test_mask")
EDGE_ARRAYS = (
    "intra_indptr",
    "intra_indices",
    "intra_weight",
    "bridge_ptr",
    "bridge_src",
    "bridge_dst",
    "bridge_weight",
)
# Where a table of all nodes would be larger than what it is for, numbers are sorted instead.
_TABLE_BYTES_PER_EDGE = 16

# The places of sources and destinations, and the weights, as read.
Edges = tuple[NDArray[np.int64], NDArray[np.int64], Tensor | None]


@final
@dataclass(frozen=True, eq=False)
class Quarters:
    """The edges of a block in four, by whether their row and their column is in the own block.

    Args:
        own_own, own_other, other_own, other_other: rows first: `own_other` has own rows and columns of others.
        masks: for each of them, which edges of the whole block it has.
    """

    own_own: Adjacency
    own_other: Adjacency
    other_own: Adjacency
    other_other: Adjacency
    masks: tuple[NDArray[np.bool_], ...]

    @staticmethod
    def of(adjacency: Adjacency, num_own: int) -> "Quarters":
        rows, columns = adjacency.row_of_edge, adjacency.indices
        num_rows, num_columns = adjacency.num_rows - num_own, adjacency.num_columns - num_own
        is_other_row, is_other_column = rows >= num_own, columns >= num_own

        def compress(mask: NDArray[np.bool_], first: tuple[int, int], shape: tuple[int, int]) -> Adjacency:
            # Sorted already: compressing keeps the order, so values per edge can be split by the same mask.
            indptr, indices, _ = compress_edges(columns[mask] - first[1], rows[mask] - first[0], *shape)
            return Adjacency(indptr, indices, shape[1])

        masks = (
            ~is_other_row & ~is_other_column,
            ~is_other_row & is_other_column,
            is_other_row & ~is_other_column,
            is_other_row & is_other_column,
        )
        return Quarters(
            compress(masks[0], (0, 0), (num_own, num_own)),
            compress(masks[1], (0, num_own), (num_own, num_columns)),
            compress(masks[2], (num_own, 0), (num_rows, num_own)),
            compress(masks[3], (num_own, num_own), (num_rows, num_columns)),
            masks,
        )


@final
@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one rank.

    Args:
        num_own: N.
        other_rows, other_columns: places of the rows and columns beyond the own block, sorted.
        adjacency: (R x C).
        weight: of each edge, in the adjacency's order, or None.
    """

    num_own: int
    other_rows: NDArray[np.int64]
    other_columns: NDArray[np.int64]
    adjacency: Adjacency
    weight: Tensor | None


@final
@dataclass(frozen=True, eq=False)
class BlockMap:
    """Which places belong to whom.

    Args:
        grid: the ranks.
        chunks: the chunks of each rank.
        arrangement: who holds which edges.
    """

    grid: Grid
    chunks: ChunkMap
    arrangement: Arrangement = "blocks"

    @staticmethod
    def one_axis(chunks: ChunkMap) -> "BlockMap":
        """Returns the map where each rank has all edges into its own rows: halo exchange."""
        return BlockMap(Grid(pi=len(chunks.rank_starts) - 1), chunks)

    @property
    def own_sizes(self) -> list[int]:
        """Own rows of each rank."""
        return [int(size) for size in np.diff(self.chunks.rank_starts)]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Where the block of each rank's line begins and ends, (P, 2)."""
        starts = self.chunks.rank_starts
        first = np.arange(self.grid.num_ranks) // self.grid.pj * self.grid.pj
        return np.stack([starts[first], starts[first + self.grid.pj]], axis=1)

    @property
    def block_sizes(self) -> list[int]:
        """Rows of the block of each rank's line."""
        return [int(end - first) for first, end in self.blocks]

    def others(self, rank: int, axis: Literal["i", "k"]) -> NDArray[np.int64]:
        """Returns the places of all blocks along `axis` but the own one, sorted."""
        blocks = self.blocks
        line = [peer for peer in self.grid.line(rank, axis) if peer != rank]
        if self.arrangement == "replicated" and axis == "i":
            # The other rows of the own group, and all rows of the groups that the block has columns of.
            mine = self.grid.place_of(rank)
            line = [
                peer
                for peer in range(self.grid.num_ranks)
                for place in [self.grid.place_of(peer)]
                if peer != rank and (place.i == mine.i or self.has_columns_of(mine, place))
            ]
        return np.concatenate([np.empty(0, np.int64), *(np.arange(*blocks[peer], dtype=np.int64) for peer in line)])

    def has_columns_of(self, mine: Place, other: Place) -> bool:
        """Whether the block of the rank at `mine` has the edges from the rows of the rank at `other`."""
        if self.arrangement == "replicated":
            return other.i * self.grid.pk // self.grid.pi == mine.k
        return other.i == mine.j if self.arrangement == "summa" else other.k == mine.k

    def chunks_where(self, is_meant: Callable[[Place], bool]) -> list[int]:
        """Returns the chunks of all ranks at such places."""
        owners = enumerate(self.chunks.owner)
        return [number for number, owner in owners if is_meant(self.grid.place_of(int(owner)))]


def read_block(read: Callable[[int], Chunk], block_map: BlockMap, rank: int, *, is_sparse: bool) -> Block:
    """Returns the block of `rank`, reading of each chunk of its row group what comes from its column group.

    Args:
        read: opens a chunk by its number.
        is_sparse: number only those rows and columns of others that have an edge here.
    """
    sources, destinations, weight = edges_of_block(read, block_map, rank)
    if block_map.arrangement == "replicated":
        sources, destinations, weight = _loops_at_home(read, block_map, rank, (sources, destinations, weight))
    first, end = block_map.blocks[rank]
    num_own = int(end - first)
    if not is_sparse:
        other_rows, other_columns = block_map.others(rank, "k"), block_map.others(rank, "i")
    else:
        other_rows, other_columns = (
            _that_occur(places, first, end, int(block_map.chunks.rank_starts[-1])) for places in (destinations, sources)
        )
    numbered = [
        np.where(is_own, places - first, num_own + np.searchsorted(others, places))
        for places, others in ((sources, other_columns), (destinations, other_rows))
        for is_own in [(places >= first) & (places < end)]
    ]
    num_rows, num_columns = num_own + len(other_rows), num_own + len(other_columns)
    indptr, indices, order = compress_edges(numbered[0], numbered[1], num_rows, num_columns)
    if weight is not None:
        weight = weight[torch.from_numpy(order.astype(np.int64))]
    return Block(num_own, other_rows, other_columns, Adjacency(indptr, indices, num_columns), weight)


def read_tile(
    read: Callable[[int], Chunk], block_map: BlockMap, *, row: int, column: int
) -> tuple[Adjacency, Tensor | None]:
    """Returns the edges from one row group to another, both numbered from 0, and their weights."""
    receivers = block_map.chunks_where(lambda place: place.i == row)
    senders = block_map.chunks_where(lambda place: place.i == column)
    sources, destinations, weight = edges_between(read, block_map.chunks, senders, receivers)
    starts = [block_map.blocks[block_map.grid.rank_at(at, 0, 0)] for at in (row, column)]
    (first_row, end_row), (first_column, end_column) = starts
    num_rows, num_columns = int(end_row - first_row), int(end_column - first_column)
    indptr, indices, order = compress_edges(sources - first_column, destinations - first_row, num_rows, num_columns)
    if weight is not None:
        weight = weight[torch.from_numpy(order.astype(np.int64))]
    return Adjacency(indptr, indices, num_columns), weight


def arrays_of_block(block_map: BlockMap, rank: int) -> dict[int, Sequence[str]]:
    """Returns the arrays that a rank reads, by chunk: all of its own, edges of its row group, ids of its line along j.

    Args:
        block_map: where pi = 1, every rank reads the edges of all chunks.
    """
    mine = block_map.grid.place_of(rank)
    is_tile = block_map.arrangement == "summa"
    rows = block_map.chunks_where(lambda place: place.i == mine.i or (is_tile and place.i == mine.j))
    needed: dict[int, Sequence[str]] = dict.fromkeys(rows, EDGE_ARRAYS)
    for peer in block_map.grid.line(rank, "j"):
        needed |= dict.fromkeys(block_map.chunks.chunks_of(peer), (*EDGE_ARRAYS, "node_ids"))
    if is_tile:
        needed = dict.fromkeys(needed, (*EDGE_ARRAYS, "node_ids"))
    return needed | dict.fromkeys(block_map.chunks.chunks_of(rank), (*EDGE_ARRAYS, *NODE_ARRAYS))


def edges_of_block(read: Callable[[int], Chunk], block_map: BlockMap, rank: int) -> Edges:
    """Returns the edges of a rank's block."""
    mine = block_map.grid.place_of(rank)
    senders = block_map.chunks_where(lambda place: block_map.has_columns_of(mine, place))
    return edges_between(read, block_map.chunks, senders, block_map.chunks_where(lambda place: place.i == mine.i))


def edges_between(
    read: Callable[[int], Chunk], chunk_map: ChunkMap, senders: Sequence[int], receivers: Sequence[int]
) -> Edges:
    """Returns the edges from chunks to chunks, reading no others of them."""
    starts = chunk_map.chunk_starts
    sources, destinations = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    weights: list[Tensor] = []
    for number in receivers:
        chunk = read(number)
        if number in senders:
            sources.append(chunk.intra_indices + starts[number])
            destinations.append(np.repeat(np.arange(chunk.num_nodes), np.diff(chunk.intra_indptr)) + starts[number])
            if chunk.has_weights:
                weights.append(chunk.tensor("intra_weight"))
        for first, last in _runs(senders):
            bridge = slice(int(chunk.bridge_ptr[first]), int(chunk.bridge_ptr[last + 1]))
            of_chunk = np.repeat(np.arange(first, last + 1), np.diff(chunk.bridge_ptr[first : last + 2]))
            sources.append(chunk.bridge_src[bridge] + starts[of_chunk])
            destinations.append(chunk.bridge_dst[bridge] + starts[number])
            if chunk.has_weights:
                weights.append(chunk.tensor("bridge_weight")[bridge])
    return np.concatenate(sources), np.concatenate(destinations), torch.cat(weights) if weights else None


def _loops_at_home(read: Callable[[int], Chunk], block_map: BlockMap, rank: int, edges: Edges) -> Edges:
    """Returns the edges with the loops of the own rows, wherever those belong, and without those of others' rows."""
    own = block_map.chunks.chunks_of(rank)
    at_home = edges_between(read, block_map.chunks, own, own)

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


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and last of each run of numbers that follow each other."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _that_occur(places: NDArray[np.int64], first: int, end: int, num_places: int) -> NDArray[np.int64]:
    if num_places > _TABLE_BYTES_PER_EDGE * max(len(places), 1 << 16):
        return np.unique(places[(places < first) | (places >= end)])
    # Marked in a table of all nodes: cheaper than sorting the edges.
    occurs = np.zeros(num_places, bool)
    occurs[places] = True
    occurs[first:end] = False
    return np.flatnonzero(occurs)
