"""Placement: the rows that a rank owns, the edges that it holds, and how rows and sums travel for them.

Where an edge u -> v lies decides the algorithm. A rank that holds it and owns neither end fetches the row of u and
sends a partial sum for v to its owner:

    M x = own_own x + own_other fetch(x) + fold(other_own x + other_other fetch(x))

Edges at the owner of v are halo exchange (nothing to fold), edges at the owner of u are 1D by columns (nothing to
fetch), edges in blocks are the process grids.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.exchange import Route, RowExchange
from laconic.comm.grid import Grid
from laconic.graph import Shard
from laconic.sharded.axis import AxisExchange, LineAxis, PlacedAxis
from laconic.sharded.block import BlockMap, Read, as_numbers
from laconic.sharded.hops import Hop
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.product import ShardedOperators
from laconic.sharded.swap import NoSwap, Swap, SwapExchange
from laconic.store import Chunk

# Shapes: N own rows, B nodes of the own block (B = N where pj = 1), H halo rows, E edges


@final
@dataclass(frozen=True, eq=False)
class Placement:
    """What one rank holds.

    Args:
        shard: its own rows. `edge_index` and `adjacency` are the edges that it holds.
        grid: the ranks; halo exchange is a grid of one axis.
        operators: makes matrices of the edges.
        sources: how the rows of others come that the shard's edges begin at; None where edges travel.
        row_ids, column_ids: id of each row and column of the matrices.
        swap: how features are sliced along j.
        largest_num_rows: the most rows that any rank owns.
        largest_num_columns: the most columns that the edges of any rank have.
        num_nodes, num_train: nodes, and training nodes, of the whole graph.
        halo_x: features of the halo rows, (H, F), where they are kept: once the graph has changed.
        hops: rows of others that are computed here too.
    """

    shard: Shard
    communicator: Communicator
    grid: Grid
    operators: ShardedOperators
    sources: PlacedAxis | None
    row_ids: Tensor
    column_ids: Tensor
    swap: Swap
    largest_num_rows: int
    largest_num_columns: int
    num_nodes: int
    num_train: int
    halo_x: Tensor | None = None
    hops: tuple[Hop, ...] = ()

    @property
    def block(self) -> BlockOperators:
        """Makes matrices of edges that stay where they are."""
        assert isinstance(self.operators, BlockOperators), "where features are whole, edges do not travel"
        return self.operators

    @property
    def columns(self) -> PlacedAxis:
        """How rows for the columns of the matrices are fetched."""
        return self.block.columns

    @property
    def rows(self) -> LineAxis:
        """How partial sums for the rows of the matrices are folded."""
        return self.block.rows

    @property
    def is_covered(self) -> bool:
        """Whether edges on one axis lie elsewhere than with their destinations."""
        operators = self.operators
        return isinstance(operators, BlockOperators) and operators.columns is not self.sources

    @property
    def halo_route(self) -> Route:
        """How halo rows come, and what was made of them goes back."""
        route = self.sources.lists if isinstance(self.sources, AxisExchange) else self.sources
        assert isinstance(route, Route), "for placements on one axis, and their miniatures"
        return route

    @property
    def exchange(self) -> RowExchange:
        """Who sends which rows to whom for the shard's edges."""
        assert isinstance(self.sources, AxisExchange)
        return self.sources.lists


def sharing_features(placement: Placement, shard: Shard) -> Placement:
    """Returns the placement with the features of `shard`, whose first rows are its own: they are held once."""
    if not placement.hops:
        return placement
    return replace(placement, shard=replace(placement.shard, x=shard.x[: placement.shard.num_rows]))


def at_destinations(before: Placement, shard: Shard, exchange: RowExchange) -> Placement:
    """Returns a placement of one axis with a shard that has all edges into its rows: halo exchange.

    Sizes of the whole graph and `halo_x` stay as they were: whoever changes the graph changes them too.

    Args:
        exchange: brings the shard's halo rows.
    """
    columns = AxisExchange(exchange)
    rows = AxisExchange(RowExchange.of_nothing(exchange.communicator, shard.num_rows))
    return replace(
        before,
        shard=shard,
        operators=BlockOperators(shard.adjacency, shard.num_rows, as_numbers(shard.edge_weight), columns, rows),
        sources=columns,
        row_ids=shard.node_ids,
        column_ids=shard.source_ids,
        hops=(),
    )


def place(
    read: Read,
    block_map: BlockMap,
    communicator: Communicator,
    *,
    is_sparse: bool = True,
    is_staged: bool = False,
) -> Placement:
    """Returns the placement of this rank; all ranks call it together. A rank may have no node at all.

    A rank reads the features, labels and masks of its own chunks alone, and of the chunks of its row group the edges
    that come from its column group: no rank holds the whole graph, unless pi = pk = 1, where every rank has all edges.

    Args:
        read: opens a chunk by its number.
        block_map: which rows and edges are whose; a paper's layout has a map of its own.
        is_sparse: exchange only rows that some edge needs.
        is_staged: rows travel from rank to rank, one block after the other, so that only two are in memory.
    """
    grid, rank = block_map.grid, communicator.rank
    own = {number: read(number) for number in block_map.chunks.chunks_of(rank)}
    chunks = list(own.values())

    def read_once(number: int) -> Chunk:
        return own[number] if number in own else read(number)

    line = [number for peer in grid.line(rank, "j") for number in block_map.chunks.chunks_of(peer)]
    line_ids = _join([read_once(number).tensor("node_ids") for number in line])
    with communicator.ledger.phase("setup"):
        held = block_map.hold(read_once, communicator, line_ids, is_sparse=is_sparse, is_staged=is_staged)
        train_mask = _join([chunk.tensor("train_mask") for chunk in chunks])
        num_train = communicator.all_reduce(torch.tensor([int(train_mask.sum())]))
        largest = communicator.all_reduce(torch.tensor([held.num_columns]), op="max")
    adjacency = held.operators.adjacency
    shard = Shard(
        x=_join([chunk.features() for chunk in chunks]),
        y=_join([chunk.tensor("y") for chunk in chunks]),
        edge_index=adjacency.edge_index,
        adjacency=adjacency,
        node_ids=_join([chunk.tensor("node_ids") for chunk in chunks]),
        num_owned=block_map.own_sizes[rank],
        train_mask=train_mask,
        val_mask=_join([chunk.tensor("val_mask") for chunk in chunks]),
        test_mask=_join([chunk.tensor("test_mask") for chunk in chunks]),
        edge_weight=held.weight,
        halo_ids=held.column_ids[len(line_ids) :],
    )
    return Placement(
        shard=shard,
        communicator=communicator,
        grid=grid,
        operators=held.operators,
        sources=held.sources,
        row_ids=held.row_ids,
        column_ids=held.column_ids,
        swap=SwapExchange(communicator, grid, block_map.own_sizes) if grid.pj > 1 else NoSwap(),
        largest_num_rows=max(block_map.own_sizes),
        largest_num_columns=int(largest),
        num_nodes=sum(block_map.own_sizes),
        num_train=int(num_train),
    )


def _join(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
