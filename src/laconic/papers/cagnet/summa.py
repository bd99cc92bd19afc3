"""SummaMatrix: CAGNET's 2D product: edges and rows travel (SUMMA with a stationary output).

    Z[i, :, j] = sum over q of A[i, q] X[q, :, j]      on rank (i, j); q runs over the row groups

A rank (i, j) holds the tile A[i, j], (rows of i) x (rows of j), and the slice X[i, :, j] of its
group's features, (rows of i, W). For a product, tiles are broadcast along the process row and
slices along the process column.

The layout is kept for comparison with the paper: the same tiles travel in every product. The
backward pass needs the tiles of the transpose. So a rank also holds A[j, i], unless the matrix is
its own transpose.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.attach.aggregator import Linear
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.graph import Adjacency
from laconic.graph.operators.dropout import drop_entries
from laconic.graph.operators.linear import FloatArray, LinearOperator
from laconic.kernels.compress import compress_edges
from laconic.sharded.axis import AxisExchange, LineAxis
from laconic.sharded.normalize import NormalisedOperators
from laconic.sharded.product import ShardedMatrix

# Shapes: N rows of the own group, M of all others, E edges of the tile, W features of a slice


@final
@dataclass(frozen=True, eq=False)
class SummaAxes:
    """How rows, tiles and the numbers of a group travel.

    Args:
        columns: along i, slices of all rows.
        tiles, mates: along j, the edges of a rank to its process row; a row of bytes for each.
        line: along j, numbers per row of the own group.
        across: between (i, j) and (j, i), numbers per row of their groups.
        process_row, process_column: the ranks along j and along i.
        rank: this one.
    """

    columns: LineAxis
    tiles: LineAxis
    mates: LineAxis
    line: LineAxis
    across: LineAxis
    process_row: tuple[int, ...]
    process_column: tuple[int, ...]
    rank: int

    @staticmethod
    def of(communicator: Communicator, grid: Grid, group_sizes: list[int], num_edges: NDArray[np.int64]) -> "SummaAxes":
        """Returns the axes of this rank.

        Args:
            group_sizes: rows of the group of each rank.
            num_edges: edges of the tile of each rank, and of its mate, (P, 2).
        """
        rank, place = communicator.rank, grid.coordinates_of(communicator.rank)
        partner = grid.rank_at(place.j, 0, place.i)
        send, receive = [0] * grid.num_ranks, [0] * grid.num_ranks
        if partner != rank:
            send[partner], receive[partner] = group_sizes[rank], group_sizes[partner]
        across = Splits(tuple(send), tuple(receive), max(group_sizes) if grid.pi > 1 else 0)

        def along_row(sizes: list[int]) -> AxisExchange:
            return AxisExchange.dense(communicator, grid, "j", sizes)

        tiles, mates = (along_row([int(size) for size in sizes]) for sizes in num_edges.T)
        return SummaAxes(
            columns=AxisExchange.dense(communicator, grid, "i", group_sizes),
            tiles=tiles,
            mates=mates,
            line=along_row(group_sizes),
            across=AxisExchange.of_blocks(communicator, across, group_sizes[rank]),
            process_row=tuple(grid.line(rank, "j")),
            process_column=tuple(grid.line(rank, "i")),
            rank=rank,
        )

    def booked(self, ledger: Ledger) -> "SummaAxes":
        alone = (ledger.rank,)
        return SummaAxes(
            columns=self.columns.booked(ledger),
            tiles=self.tiles.booked(ledger),
            mates=self.mates.booked(ledger),
            line=self.line.booked(ledger),
            across=self.across.booked(ledger),
            process_row=alone,
            process_column=alone,
            rank=ledger.rank,
        )

    @property
    def transposed(self) -> "SummaAxes":
        """Those of the transposed matrix."""
        return replace(self, tiles=self.mates, mates=self.tiles)

    def rows_of_groups(self, arriving: Pending[Tensor], own: Tensor) -> list[Tensor]:
        """Returns the rows of each group, in order, of which the own ones are at hand."""
        return _in_order(arriving, own, self.columns, self.process_column, self.rank)

    def tiles_of_groups(self, arriving: Pending[Tensor], own: Tensor) -> list[Tensor]:
        """Returns the edges from each group, in order."""
        return _in_order(arriving, own, self.tiles, self.process_row, self.rank)


@final
@dataclass(frozen=True, eq=False)
class SummaMatrix(ShardedMatrix):
    """One rank's tile of a matrix.

    Args:
        own: the diagonal of the own group's rows.
        tile: the entries from group j to group i, (rows of i x rows of j), the diagonal excepted.
        mate: those from group i to group j; None where the matrix is its own transpose.
        ids: of the rows of group i and of group j.
    """

    own: LinearOperator
    tile: LinearOperator
    mate: LinearOperator | None
    axes: SummaAxes
    ids: tuple[Tensor, Tensor]

    @cached_property
    def transposed(self) -> "SummaMatrix":
        if self.mate is None:
            return self
        return replace(self, tile=self.mate.transposed, mate=self.tile.transposed, axes=self.axes.transposed)

    def multiply(self, x: Tensor, widest: int) -> Tensor:
        entries = self._entries(x.dtype)
        gathering = self.axes.columns.start_expand(x, widest)
        broadcasting = self.axes.tiles.start_expand(entries, entries.shape[1])
        out = self.own.multiply(x)
        groups = self.axes.rows_of_groups(gathering, x)
        for rows, tile in zip(groups, self.axes.tiles_of_groups(broadcasting, entries), strict=True):
            _from_bytes(tile, len(out), len(rows), x.dtype).multiply(rows, add_to=out)
        return out

    def dropped(self, probability: float, key: np.uint64, row_ids: Tensor, column_ids: Tensor) -> "SummaMatrix":
        assert self.mate is not None, "`check` refuses to drop entries of a matrix that is to be its own transpose"
        here, there = self.ids

        def drop(operator: LinearOperator, rows: Tensor, columns: Tensor) -> LinearOperator:
            return drop_entries(operator, probability, key, columns, row_ids=rows)

        return replace(
            self, own=drop(self.own, here, here), tile=drop(self.tile, here, there), mate=drop(self.mate, there, here)
        )

    def _entries(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._entries_by_dtype:
            self._entries_by_dtype[dtype] = _to_bytes(self.tile, dtype)
        return self._entries_by_dtype[dtype]

    @cached_property
    def _entries_by_dtype(self) -> dict[torch.dtype, Tensor]:
        return {}


@final
@dataclass(frozen=True, eq=False)
class SummaOperators(NormalisedOperators):
    """Makes matrices of a tile of edges.

    Args:
        adjacency: the edges from group j to group i, each numbered from 0.
        mate: those from group i to group j, or None where they are the same.
        weights, mate_weights: of each edge, in the adjacency's order, or None.
        ids: of the rows of group i and of group j.
        is_on_diagonal: whether i and j are the same.
    """

    adjacency: Adjacency
    mate: Adjacency | None
    weights: FloatArray | None
    mate_weights: FloatArray | None
    ids: tuple[Tensor, Tensor]
    is_on_diagonal: bool
    axes: SummaAxes

    @property
    def num_own(self) -> int:
        return self.adjacency.num_rows

    def booked(self, adjacency: Adjacency, weights: FloatArray | None, ledger: Ledger) -> "SummaOperators":
        ids = torch.arange(adjacency.num_rows)
        mate = None if self.mate is None else adjacency
        return SummaOperators(adjacency, mate, weights, weights, (ids, ids), True, self.axes.booked(ledger))

    def of(self, aggregation: Linear) -> SummaMatrix:
        own = self.own_factors(aggregation, self.num_own)
        # Of group i, and of group j, whose rows the mate has.
        rows = (own.row_scale, None if own.row_scale is None else self._of_partner(own.row_scale))
        columns = (None, None) if own.column_scale is None else rows[::-1]
        skips_loops = aggregation.kind == "gcn" and aggregation.self_loops

        def operator(adjacency: Adjacency, weights: FloatArray | None, number: int) -> LinearOperator:
            values = weights if aggregation.weighted else None
            if skips_loops and self.is_on_diagonal:
                values = np.ones(adjacency.num_edges) if values is None else values
                values = np.where(self._is_loop(adjacency), 0.0, values)
            return LinearOperator(adjacency, values, rows[number], columns[number])

        nothing = Adjacency(np.zeros(self.num_own + 1, np.int64), np.empty(0, np.int32), self.num_own)
        return SummaMatrix(
            own=LinearOperator(nothing, diagonal=own.diagonal),
            tile=operator(self.adjacency, self.weights, 0),
            mate=None if self.mate is None else operator(self.mate, self.mate_weights, 1),
            axes=self.axes,
            ids=self.ids,
        )

    def _is_loop(self, adjacency: Adjacency) -> NDArray[np.bool_]:
        is_loop: NDArray[np.bool_] = (adjacency.row_of_edge == adjacency.indices) & self.is_on_diagonal
        return is_loop

    def _of_loops(self, here: FloatArray, loop_weight: float) -> FloatArray:
        # Only the rank on the diagonal has loops; all of its process row need them.
        return loop_weight + self._summed(here - loop_weight)

    def _summed(self, partial: FloatArray) -> FloatArray:
        # Over the process row.
        arrived = self.axes.line.start_expand(torch.from_numpy(partial).unsqueeze(1), 1).wait()
        others = arrived.numpy().reshape(len(arrived) // max(self.num_own, 1), self.num_own)
        whole: FloatArray = partial + others.sum(axis=0)
        return whole

    def _of_partner(self, own: FloatArray) -> FloatArray:
        """Returns the numbers that group j has, for those of group i."""
        arrived = self.axes.across.start_expand(torch.from_numpy(own).unsqueeze(1), 1).wait()
        return own if self.is_on_diagonal else arrived.squeeze(1).numpy()


def _in_order(arriving: Pending[Tensor], own: Tensor, axis: LineAxis, line: tuple[int, ...], rank: int) -> list[Tensor]:
    """Returns what came from each rank of a line, the own in its place."""
    others = [peer for peer in line if peer != rank]
    sizes = [axis.splits.receive[peer] for peer in others]
    pieces = dict(zip(others, arriving.wait().split_with_sizes(sizes), strict=True))
    return [own if peer == rank else pieces[peer] for peer in line]


def _to_bytes(tile: LinearOperator, dtype: torch.dtype) -> Tensor:
    """Returns the entries as they travel: for each two numbers and a value, (E, 8 + itemsize)."""
    rows, columns = tile.adjacency.row_of_edge, tile.adjacency.indices
    values = np.ones(len(rows)) if tile.values is None else tile.values
    for scale, ends in ((tile.row_scale, rows), (tile.column_scale, columns)):
        values = values if scale is None else values * scale[ends]
    parts = (torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(values).to(dtype))
    return torch.cat([_copy(part).view(torch.uint8).view(len(rows), part.itemsize) for part in parts], dim=1)


def _from_bytes(entries: Tensor, num_rows: int, num_columns: int, dtype: torch.dtype) -> LinearOperator:
    """Returns the matrix whose entries came from a rank."""
    rows, columns, values = (_copy(part) for part in entries.split_with_sizes([4, 4, dtype.itemsize], dim=1))
    sources, destinations = columns.view(torch.int32).flatten().numpy(), rows.view(torch.int32).flatten().numpy()
    indptr, indices, order = compress_edges(sources, destinations, num_rows, num_columns)
    numbers = values.view(dtype).flatten().to(torch.float64 if dtype == torch.float64 else torch.float32).numpy()
    return LinearOperator(Adjacency(indptr, indices, num_columns), numbers[order])


def _copy(part: Tensor) -> Tensor:
    # Of a single entry, torch calls any strides contiguous, and then cannot see it as another type.
    return part.clone(memory_format=torch.contiguous_format)
