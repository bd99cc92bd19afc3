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

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Coordinates, Grid
from laconic.graph import Adjacency
from laconic.graph.operators.linear import FloatArray
from laconic.kernels.compress import compress_edges
from laconic.sharded.axis import AxisExchange, PlacedAxis, wanted_of_line
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.product import ShardedOperators
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

# Opens a chunk by its number.
Read = Callable[[int], Chunk]
# The places of sources and destinations, and the weights, as read.
Edges = tuple[NDArray[np.int64], NDArray[np.int64], Tensor | None]


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
class HeldEdges:
    """The edges of a rank, and the ids of their ends.

    Args:
        operators: makes matrices of the edges.
        sources: how the rows of others come that the edges begin at; None where edges travel.
        weight: of each edge, in the order of the operators' adjacency, or None.
        row_ids, column_ids: id of each row and column of the matrices.
        num_columns: the columns that a product has in memory.
    """

    operators: ShardedOperators
    sources: PlacedAxis | None
    weight: Tensor | None
    row_ids: Tensor
    column_ids: Tensor
    num_columns: int


@dataclass(frozen=True, eq=False)
class BlockMap:
    """Which places belong to whom, and who holds which edges: blocks that stay where they are.

    Args:
        grid: the ranks.
        chunks: the chunks of each rank.
    """

    grid: Grid
    chunks: ChunkMap

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
        return self.places_of([peer for peer in self.grid.line(rank, axis) if peer != rank])

    def places_of(self, ranks: Sequence[int]) -> NDArray[np.int64]:
        """Returns the places of the blocks of `ranks`, in their order."""
        blocks = self.blocks
        return np.concatenate([np.empty(0, np.int64), *(np.arange(*blocks[rank], dtype=np.int64) for rank in ranks)])

    def has_columns_of(self, mine: Coordinates, other: Coordinates) -> bool:
        """Whether the block of the rank at `mine` has the edges from the rows of the rank at `other`."""
        return other.k == mine.k

    def chunks_where(self, is_meant: Callable[[Coordinates], bool]) -> list[int]:
        """Returns the chunks of all ranks at such places."""
        owners = enumerate(self.chunks.owner)
        return [number for number, owner in owners if is_meant(self.grid.coordinates_of(int(owner)))]

    def arrays_of(self, rank: int) -> dict[int, Sequence[str]]:
        """Returns the arrays that a rank reads, by chunk: all of its own, edges of its row group, ids of its line.

        Where pi = 1, every rank reads the edges of all chunks.
        """
        mine = self.grid.coordinates_of(rank)
        needed: dict[int, Sequence[str]] = dict.fromkeys(
            self.chunks_where(lambda place: place.i == mine.i), EDGE_ARRAYS
        )
        for peer in self.grid.line(rank, "j"):
            needed |= dict.fromkeys(self.chunks.chunks_of(peer), (*EDGE_ARRAYS, "node_ids"))
        return needed | dict.fromkeys(self.chunks.chunks_of(rank), (*EDGE_ARRAYS, *NODE_ARRAYS))

    def edges_of(self, read: Read, rank: int) -> Edges:
        """Returns the edges of a rank's block, reading of each chunk of its row group its column group's edges."""
        mine = self.grid.coordinates_of(rank)
        senders = self.chunks_where(lambda place: self.has_columns_of(mine, place))
        return edges_between(read, self.chunks, senders, self.chunks_where(lambda place: place.i == mine.i))

    def hold(
        self, read: Read, communicator: Communicator, line_ids: Tensor, *, is_sparse: bool, is_staged: bool
    ) -> HeldEdges:
        """Returns the edges that this rank holds; all ranks call it together.

        Args:
            line_ids: of the nodes of the own block.
        """
        block = make_block(self.edges_of(read, communicator.rank), self, communicator.rank, is_sparse=is_sparse)
        columns = self.columns_of(block, communicator, is_sparse=is_sparse)
        rows = self.along("k", block, communicator, is_sparse=is_sparse)
        column_ids, row_ids = (
            torch.cat([line_ids, axis.start_expand(line_ids.unsqueeze(1), 1).wait().squeeze(1)])
            for axis in (columns, rows)
        )
        operators = BlockOperators(block.adjacency, block.num_own, as_numbers(block.weight), columns, rows, is_staged)
        return HeldEdges(operators, columns, block.weight, row_ids, column_ids, block.adjacency.num_columns)

    def columns_of(self, block: Block, communicator: Communicator, *, is_sparse: bool) -> PlacedAxis:
        """Returns how rows for the columns of a block are gathered."""
        return self.along("i", block, communicator, is_sparse=is_sparse)

    def along(
        self, axis: Literal["i", "k"], block: Block, communicator: Communicator, *, is_sparse: bool
    ) -> AxisExchange:
        """Returns how rows for columns are gathered, along i, or sums for rows are scattered, along k."""
        grid, rank = self.grid, communicator.rank
        if not is_sparse:
            return AxisExchange.dense(communicator, grid, axis, self.block_sizes)
        wanted = wanted_of_line(grid, rank, axis, block.other_columns if axis == "i" else block.other_rows, self.blocks)
        return AxisExchange.sparse(communicator, wanted, block.num_own, grid.line(rank, axis))


def make_block(edges: Edges, block_map: BlockMap, rank: int, *, is_sparse: bool) -> Block:
    """Returns the block of `rank` with these edges.

    Args:
        is_sparse: number only those rows and columns of others that have an edge here.
    """
    sources, destinations, weight = edges
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
    shape = (num_own + len(other_rows), num_own + len(other_columns))
    return Block(num_own, other_rows, other_columns, *compressed((numbered[0], numbered[1], weight), shape))


def compressed(edges: Edges, shape: tuple[int, int]) -> tuple[Adjacency, Tensor | None]:
    """Returns the adjacency, (R x C), of edges that are numbered from 0, and their weights in its order."""
    indptr, indices, order = compress_edges(*edges[:2], *shape)
    weight = None if edges[2] is None else edges[2][torch.from_numpy(order.astype(np.int64))]
    return Adjacency(indptr, indices, shape[1]), weight


def edges_between(read: Read, chunk_map: ChunkMap, senders: Sequence[int], receivers: Sequence[int]) -> Edges:
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


def as_numbers(weight: Tensor | None) -> FloatArray | None:
    """Returns the weights of edges as operators take them."""
    return None if weight is None else weight.detach().double().numpy()
