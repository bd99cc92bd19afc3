"""Edges between two ranks placed at one of the two: at the owner of their destination, of their source, or by a cover.

An edge u -> v at the owner of v needs the row of u fetched; at the owner of u it adds to a partial sum for v, which is
folded. One vector travels for each fetched row and for each sum, so who holds which edges decides how much travels:

    destination    every edge at the owner of v: halo exchange
    source         every edge at the owner of u
    cover          whichever is the fewest vectors, pair of ranks by pair of ranks (`laconic.sharded.cover`)

The edges are read at their destination. Those that move are told to the owner of their source, once.
"""

import logging
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.comm.splits import Splits
from laconic.graph import Adjacency
from laconic.graph.operators.linear import FloatArray
from laconic.kernels.compress import as_indices
from laconic.sharded.axis import AxisExchange
from laconic.sharded.block import as_numbers, compressed
from laconic.sharded.cover import Covers, EdgePlace, by_rank, cover_bytes
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.placement import Placement, at_destinations
from laconic.sharded.plan import EDGE_BYTES, NODE_BYTES, memory_limit
from laconic.units import format_bytes

# Shapes: N owned rows, H halo rows, E edges from halo rows, P ranks

logger = logging.getLogger(__name__)

IntArray = NDArray[np.int64]


def with_edges_at(placement: Placement, edges: EdgePlace) -> Placement:
    """Returns a placement of one axis with its edges between ranks placed by `edges`; all ranks call it together."""
    return with_covers(placement, find_covers(placement, edges))


def find_covers(placement: Placement, edges: EdgePlace) -> Covers | None:
    """Returns who serves the edges between ranks, or None: their destinations; all ranks call it together.

    The edges stay with their destinations where a cover saves no vector on any rank, or would not fit into the memory
    of one, which is told.
    """
    shard, communicator = placement.shard, placement.communicator
    with communicator.ledger.phase("setup"):
        if edges == "destination" or (edges == "cover" and not _fits(placement)):
            return None
        remote = shard.adjacency.part(_is_cut(placement), slice(shard.num_rows), slice(shard.num_rows, None))
        chosen = Covers.of(remote, placement.exchange.splits.receive, edges)
        saved = torch.tensor([placement.exchange.num_received - int(chosen.counts[:2].sum())])
        return None if edges == "cover" and communicator.all_reduce(saved, op="max") <= 0 else chosen


def with_covers(placement: Placement, covers: Covers | None) -> Placement:
    """Returns a placement of one axis with its edges between ranks placed by `covers`; all ranks call it together.

    The shard, its edges and the way to their sources stay: attention reads them. What changes are the matrices of fixed
    operators.

    Traffic, phase "setup": a number for each row that is still fetched, and for each edge that moves; its weight.
    """
    with placement.communicator.ledger.phase("setup"):
        if covers is None:
            return at_destinations(placement, placement.shard, placement.exchange)
        return _placed(placement, covers)


def _is_cut(placement: Placement) -> NDArray[np.bool_]:
    """Returns which edges come from another rank's row, (E,)."""
    return placement.shard.adjacency.indices >= placement.shard.num_rows


def _fits(placement: Placement) -> bool:
    """Whether the cover fits into the memory of every rank, beside what is held there; the same on all ranks."""
    shard, communicator = placement.shard, placement.communicator
    held = shard.adjacency.num_edges * EDGE_BYTES + shard.num_sources * NODE_BYTES + shard.x.nbytes
    needed = held + cover_bytes(int(_is_cut(placement).sum()), shard.num_sources)
    most, limit = int(communicator.all_reduce(torch.tensor([needed]), op="max")), memory_limit(communicator)
    if most > limit and communicator.rank == 0:
        logger.warning(
            "The cover of the edges between ranks would need %s on a rank, and %s may be used. An exchange on one axis "
            "leaves edges with their destinations then, and moves more rows. Use more ranks or machines to have one.",
            format_bytes(most),
            format_bytes(limit),
        )
    return most <= limit


def _placed(placement: Placement, chosen: Covers) -> Placement:
    communicator, shard, before = placement.communicator, placement.shard, placement.exchange
    num_own, starts, fetched, limit = shard.num_rows, chosen.starts, chosen.fetched, before.splits.largest
    places = [fetched[numbers] - first for numbers, first in zip(by_rank(fetched, starts), starts[:-1], strict=True)]
    asked, splits = _tell(communicator, places, limit)
    rows = RowExchange(communicator, _rows_at(before, asked, splits), splits, num_own, version=before.version)
    weight = None if shard.edge_weight is None else shard.edge_weight[torch.from_numpy(_is_cut(placement))]
    came, came_weight, folding = _tell_edges(communicator, chosen, weight, before, limit)
    summed = torch.from_numpy(np.concatenate(chosen.summed))
    sums = RowExchange(communicator, summed, folding, num_own, version=before.version)
    block, weights = _block(placement, chosen, fetched, came, came_weight, sum(folding.receive))
    return replace(
        placement,
        operators=BlockOperators(block, num_own, weights, AxisExchange(rows), AxisExchange(sums)),
        row_ids=torch.cat([shard.node_ids, sums.start(shard.node_ids).wait()]),
        column_ids=torch.cat([shard.node_ids, shard.halo_ids[torch.from_numpy(fetched)]]),
    )


def _tell_edges(
    communicator: Communicator, chosen: Covers, weight: Tensor | None, before: RowExchange, limit: int
) -> tuple[tuple[IntArray, IntArray], Tensor | None, Splits]:
    """Tells the owners of sources the edges that they will hold.

    Returns the edges that this rank will hold (the number of the sum, counted over all ranks, and the owned source
    row), their weights, and how sums travel: `send` counts the owned rows whose sums others make.
    """
    rows, indices = chosen.remote.row_of_edge, chosen.remote.indices
    sums, sources, weights = [], [], []
    moved = np.flatnonzero(chosen.is_summed_edge)
    for peer, numbers in enumerate(by_rank(indices[moved], chosen.starts)):
        meant = moved[numbers]
        sums.append(np.searchsorted(chosen.summed[peer], rows[meant]))
        sources.append(indices[meant].astype(np.int64) - chosen.starts[peer])
        if weight is not None:
            weights.append(weight[torch.from_numpy(meant)])
    folding = communicator.agree_on_splits([len(rows) for rows in chosen.summed])
    came_sums, splits = _tell(communicator, sums, max(folding.largest, 1))
    came_sources, _ = _tell(communicator, sources, limit, splits.reversed)
    came_weight = None if weight is None else communicator.all_to_all(torch.cat(weights), splits.reversed)
    first_sum = np.repeat(np.append(0, np.cumsum(folding.receive))[:-1], splits.send)
    return (came_sums + first_sum, _rows_at(before, came_sources, splits).numpy()), came_weight, folding


def _tell(
    communicator: Communicator, numbers: list[IntArray], limit: int, splits: Splits | None = None
) -> tuple[IntArray, Splits]:
    """Tells each rank some numbers below `limit`; returns the numbers told here, and the way back of this message."""
    splits = splits or communicator.agree_on_splits([len(part) for part in numbers])
    told = torch.from_numpy(as_indices(np.concatenate(numbers), limit))
    return communicator.all_to_all(told, splits).numpy().astype(np.int64), splits.reversed


def _rows_at(exchange: RowExchange, places: IntArray, splits: Splits) -> Tensor:
    """Returns the owned rows at `places` in the lists of rows that go to each rank; `splits.send` places for each."""
    first = np.append(0, np.cumsum(exchange.splits.send))[:-1]
    return exchange.send_rows[torch.from_numpy(places + np.repeat(first, splits.send))]


def _block(
    placement: Placement,
    chosen: Covers,
    fetched: IntArray,
    came: tuple[IntArray, IntArray],
    came_weight: Tensor | None,
    num_sums: int,
) -> tuple[Adjacency, FloatArray | None]:
    """Returns the edges that this rank holds, and their weights: edges within, edges that stayed, edges that came."""
    shard = placement.shard
    num_own = shard.num_rows
    adjacency = shard.adjacency
    is_kept = ~_is_cut(placement)
    is_kept[~is_kept] = ~chosen.is_summed_edge
    column_of = np.full(shard.num_sources, -1)
    column_of[:num_own] = np.arange(num_own)
    column_of[num_own + fetched] = num_own + np.arange(len(fetched))
    sums, sources = came
    all_rows = np.append(adjacency.row_of_edge[is_kept].astype(np.int64), num_own + sums)
    all_columns = np.append(column_of[adjacency.indices[is_kept]], sources)
    weight = None
    if shard.edge_weight is not None and came_weight is not None:
        weight = torch.cat([shard.edge_weight[torch.from_numpy(is_kept)], came_weight])
    block, weight = compressed((all_columns, all_rows, weight), (num_own + num_sums, num_own + len(fetched)))
    return block, as_numbers(weight)
