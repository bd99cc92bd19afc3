"""From the chunks that a rank reads to what it trains on: its own rows, and its block of the edges.

A rank reads the features, labels and masks of its own chunks alone, and of the chunks of its row group those edges that
come from its column group: no rank holds the whole graph, unless pi = pk = 1, where every rank has all edges.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.graph import Shard
from laconic.grids.axis import Axis, AxisExchange, wanted_of_line
from laconic.grids.block import Block, BlockMap, Quarters, read_block
from laconic.grids.normalize import BlockOperators
from laconic.grids.swap import NoSwap, Swap, SwapExchange
from laconic.store import Chunk

# Shapes: N own rows, B nodes of the own block (B = N where pj = 1), E edges


@final
@dataclass(frozen=True, eq=False)
class GridPlacement:
    """What one rank holds.

    Args:
        shard: its own rows; `edge_index` and `adjacency` are its block's edges, numbered within the block.
        grid: the ranks.
        own_sizes: own rows of each rank.
        operators: makes operators on the block.
        row_ids, column_ids: id of each row and column of the block.
        swap: how features are sliced along j.
        largest_num_rows: the most rows that any rank owns.
        largest_num_columns: the most columns that any block has.
        num_nodes, num_train: nodes, and training nodes, of the whole graph.
    """

    shard: Shard
    communicator: Communicator
    grid: Grid
    own_sizes: list[int]
    operators: BlockOperators
    row_ids: Tensor
    column_ids: Tensor
    swap: Swap
    largest_num_rows: int
    largest_num_columns: int
    num_nodes: int
    num_train: int

    @property
    def columns(self) -> Axis:
        return self.operators.columns

    @property
    def rows(self) -> Axis:
        return self.operators.rows


def place(
    read: Callable[[int], Chunk], block_map: BlockMap, communicator: Communicator, *, is_sparse: bool
) -> GridPlacement:
    """Returns the placement of this rank; all ranks call it together.

    Args:
        read: opens a chunk by its number.
        is_sparse: exchange only rows that some edge needs.
    """
    grid, rank = block_map.grid, communicator.rank
    block = read_block(read, block_map, rank, is_sparse=is_sparse)
    chunks = [read(number) for number in block_map.chunks.chunks_of(rank)]
    with communicator.ledger.phase("setup"):
        columns, rows = _axes(block, block_map, communicator, is_sparse=is_sparse)
        line = [number for peer in grid.line(rank, "j") for number in block_map.chunks.chunks_of(peer)]
        ids = _join([read(number).tensor("node_ids") for number in line])
        column_ids, row_ids = (torch.cat([ids, _gather_ids(axis, ids)]) for axis in (columns, rows))
        train_mask = _join([chunk.tensor("train_mask") for chunk in chunks])
        num_train = communicator.all_reduce(torch.tensor([int(train_mask.sum())]))
        largest = communicator.all_reduce(torch.tensor([block.adjacency.num_columns]), op="max")
    adjacency = block.adjacency
    shard = Shard(
        x=_join([chunk.features() for chunk in chunks]),
        y=_join([chunk.tensor("y") for chunk in chunks]),
        edge_index=torch.from_numpy(np.stack([adjacency.indices, adjacency.row_of_edge]).astype(np.int64)),
        adjacency=adjacency,
        node_ids=_join([chunk.tensor("node_ids") for chunk in chunks]),
        num_owned=block_map.own_sizes[rank],
        train_mask=train_mask,
        val_mask=_join([chunk.tensor("val_mask") for chunk in chunks]),
        test_mask=_join([chunk.tensor("test_mask") for chunk in chunks]),
        edge_weight=block.weight,
        halo_ids=column_ids[block.num_own :],
    )
    weights = None if block.weight is None else block.weight.detach().double().numpy()
    return GridPlacement(
        shard=shard,
        communicator=communicator,
        grid=grid,
        own_sizes=block_map.own_sizes,
        operators=BlockOperators(
            adjacency, Quarters.of(adjacency, block.num_own), block.num_own, weights, columns, rows
        ),
        row_ids=row_ids,
        column_ids=column_ids,
        swap=SwapExchange(communicator, grid, block_map.own_sizes) if grid.pj > 1 else NoSwap(),
        largest_num_rows=max(block_map.own_sizes),
        largest_num_columns=int(largest),
        num_nodes=sum(block_map.own_sizes),
        num_train=int(num_train),
    )


def _axes(
    block: Block, block_map: BlockMap, communicator: Communicator, *, is_sparse: bool
) -> tuple[AxisExchange, AxisExchange]:
    """Returns how rows for columns are gathered, along i, and how sums for rows are scattered, along k."""
    grid, rank, blocks = block_map.grid, communicator.rank, block_map.blocks
    if not is_sparse:
        return (
            AxisExchange.dense(communicator, grid, "i", block_map.block_sizes),
            AxisExchange.dense(communicator, grid, "k", block_map.block_sizes),
        )
    columns = wanted_of_line(grid, rank, "i", block.other_columns, blocks)
    rows = wanted_of_line(grid, rank, "k", block.other_rows, blocks)
    return (
        AxisExchange.sparse(communicator, columns, block.num_own),
        AxisExchange.sparse(communicator, rows, block.num_own),
    )


def _gather_ids(axis: Axis, ids: Tensor) -> Tensor:
    return axis.start_expand(ids.unsqueeze(1), 1).wait().squeeze(1)


def _join(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
