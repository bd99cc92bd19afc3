"""Edges between two ranks placed at one of the two: at the owner of their destination, of their source, or by a cover.

An edge u -> v at the owner of v needs the row of u fetched; at the owner of u it adds to a partial sum for v, which is
folded. One vector travels for each fetched row and for each sum, so who holds which edges decides how much travels:

    destination    every edge at the owner of v: halo exchange
    source         every edge at the owner of u
    cover          whichever is the fewest vectors, pair of ranks by pair of ranks (`laconic.sharded.cover`)

The edges are read at their destination. Those that move are told to the owner of their source, once.
"""

from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.comm.splits import Splits
from laconic.graph import Adjacency
from laconic.kernels.compress import as_indices, compress_edges
from laconic.sharded.axis import AxisExchange
from laconic.sharded.cover import cover_of_pair
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.placement import Placement, at_destinations
from laconic.sharded.quarters import Quarters

# Shapes: N owned rows, H halo rows, E edges from halo rows, P ranks

EdgePlace = Literal["destination", "source", "cover"]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def with_edges_at(placement: Placement, edges: EdgePlace) -> Placement:
    """Returns a placement of one axis with its edges between ranks placed by `edges`; all ranks call it together.

    The shard, its edges and the way to their sources stay: attention reads them. What changes are the matrices of fixed
    operators. Where a cover saves no vector on any rank, the edges stay with their destinations.

    Traffic, phase "setup": a number for each row that is still fetched, and for each edge that moves; its weight.
    """
    if edges == "destination":
        return _at_destinations(placement)
    with placement.communicator.ledger.phase("setup"):
        chosen = _Chosen.of(placement, edges)
        if edges == "cover" and not chosen.saves_anything(placement):
            return _at_destinations(placement)
        return _placed(placement, chosen)


def _at_destinations(placement: Placement) -> Placement:
    return at_destinations(
        placement.shard,
        placement.exchange,
        largest_num_rows=placement.largest_num_rows,
        largest_num_columns=placement.largest_num_columns,
        num_nodes=placement.num_nodes,
        num_train=placement.num_train,
        halo_x=placement.halo_x,
    )


@final
@dataclass(frozen=True, eq=False)
class _Chosen:
    """Who serves the edges that arrive here from each rank.

    Args:
        remote: the edges from halo rows, (N x H).
        starts: where the halo rows of each rank begin, (P + 1,).
        summed: of each rank, the owned rows that get a partial sum from there, rising.
        is_summed_edge: which edges add to one of them, (E,).
        weight: of each edge, or None, (E,).
    """

    remote: Adjacency
    starts: IntArray
    summed: list[IntArray]
    is_summed_edge: BoolArray
    weight: Tensor | None

    @staticmethod
    def of(placement: Placement, edges: EdgePlace) -> "_Chosen":
        shard = placement.shard
        num_own = shard.num_rows
        quarters = Quarters.of(shard.adjacency, num_own)
        remote, is_remote = quarters.own_other, quarters.masks[1]
        weight = None if shard.edge_weight is None else shard.edge_weight[torch.from_numpy(is_remote)]
        starts = np.append(0, np.cumsum(placement.exchange.splits.receive))
        rows, columns = remote.row_of_edge, remote.indices
        summed = [np.empty(0, np.int64)] * (len(starts) - 1)
        is_summed_edge = np.zeros(remote.num_edges, bool)
        for peer, numbers in enumerate(_by_rank(columns, starts)):
            first, end = int(starts[peer]), int(starts[peer + 1])
            is_summed = _summed_destinations(rows[numbers], columns[numbers] - first, num_own, end - first, edges)
            summed[peer] = np.flatnonzero(is_summed)
            is_summed_edge[numbers] = is_summed[rows[numbers]]
        return _Chosen(remote, starts, summed, is_summed_edge, weight)

    @property
    def fetched(self) -> IntArray:
        """Halo rows that some edge still needs, rising."""
        is_fetched = np.zeros(int(self.starts[-1]), bool)
        is_fetched[self.remote.indices[~self.is_summed_edge]] = True
        return np.flatnonzero(is_fetched)

    def saves_anything(self, placement: Placement) -> bool:
        num_vectors = len(self.fetched) + sum(map(len, self.summed))
        saved = torch.tensor([int(self.starts[-1]) - num_vectors])
        return bool(placement.communicator.all_reduce(saved, op="max") > 0)


def _by_rank(columns: NDArray[np.integer], starts: IntArray) -> list[IntArray]:
    """Returns the numbers of the columns that belong to each rank, rising; `starts` as in _Chosen."""
    owner = np.searchsorted(starts, columns, side="right") - 1
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, len(starts) - 1)))


def _summed_destinations(
    rows: NDArray[np.integer], columns: NDArray[np.integer], num_rows: int, num_columns: int, edges: EdgePlace
) -> BoolArray:
    """Returns which destinations of the edges of a pair of ranks get a partial sum, (num_rows,)."""
    if edges == "source":
        is_summed = np.zeros(num_rows, bool)
        is_summed[rows] = True
        return is_summed
    indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=num_rows)))
    # Only rows that have an edge: most have none from a given rank.
    occurring = np.flatnonzero(np.diff(indptr))
    is_summed = np.zeros(num_rows, bool)
    is_summed[occurring] = cover_of_pair(indptr[np.append(occurring, num_rows)], columns, num_columns).is_summed
    return is_summed


def _placed(placement: Placement, chosen: _Chosen) -> Placement:
    """Returns the placement with the edges moved; all ranks call it together."""
    communicator, shard, before = placement.communicator, placement.shard, placement.exchange
    num_own, line, starts = shard.num_rows, range(communicator.num_ranks), chosen.starts
    limit = before.splits.largest
    fetched = chosen.fetched
    places = [fetched[numbers] - first for numbers, first in zip(_by_rank(fetched, starts), starts[:-1], strict=True)]
    asked, splits = _tell(communicator, places, limit)
    columns = AxisExchange(RowExchange(communicator, _rows_at(before, asked, splits), splits, num_own), line)
    columns.lists.version = before.version
    came, came_weight, folding = _tell_edges(communicator, chosen, before, limit)
    rows = AxisExchange(
        RowExchange(communicator, torch.from_numpy(np.concatenate(chosen.summed)), folding, num_own), line
    )
    block, weights = _block(placement, chosen, fetched, came, came_weight, sum(folding.receive))
    other_ids = rows.start_expand(shard.node_ids.unsqueeze(1), 1).wait().squeeze(1)
    return replace(
        placement,
        operators=BlockOperators(block, num_own, weights, columns, rows),
        row_ids=torch.cat([shard.node_ids, other_ids]),
        column_ids=torch.cat([shard.node_ids, shard.halo_ids[torch.from_numpy(fetched)]]),
    )


def _tell_edges(
    communicator: Communicator, chosen: _Chosen, before: RowExchange, limit: int
) -> tuple[tuple[IntArray, IntArray], Tensor | None, Splits]:
    """Tells the owners of sources the edges that they will hold.

    Returns the edges that this rank will hold (the number of the sum, counted over all ranks, and the owned source
    row), their weights, and how sums travel: `send` counts the owned rows whose sums others make.
    """
    rows, indices = chosen.remote.row_of_edge, chosen.remote.indices
    sums, sources, weights = [], [], []
    moved = np.flatnonzero(chosen.is_summed_edge)
    for peer, numbers in enumerate(_by_rank(indices[moved], chosen.starts)):
        meant = moved[numbers]
        sums.append(np.searchsorted(chosen.summed[peer], rows[meant]))
        sources.append(indices[meant].astype(np.int64) - chosen.starts[peer])
        if chosen.weight is not None:
            weights.append(chosen.weight[torch.from_numpy(meant)])
    folding = communicator.agree_on_splits([len(rows) for rows in chosen.summed])
    came_sums, splits = _tell(communicator, sums, max(folding.largest, 1))
    came_sources, _ = _tell(communicator, sources, limit, splits.reversed)
    weight = None if chosen.weight is None else communicator.all_to_all(torch.cat(weights), splits.reversed)
    first_sum = np.repeat(np.append(0, np.cumsum(folding.receive))[:-1], splits.send)
    return (came_sums + first_sum, _rows_at(before, came_sources, splits).numpy()), weight, folding


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
    chosen: _Chosen,
    fetched: IntArray,
    came: tuple[IntArray, IntArray],
    came_weight: Tensor | None,
    num_sums: int,
) -> tuple[Adjacency, NDArray[np.float64] | None]:
    """Returns the edges that this rank holds, and their weights: edges within, edges that stayed, edges that came."""
    shard = placement.shard
    num_own = shard.num_rows
    adjacency = shard.adjacency
    is_kept = adjacency.indices < num_own
    is_kept[np.flatnonzero(~is_kept)] = ~chosen.is_summed_edge
    column_of = np.full(shard.num_sources, -1)
    column_of[:num_own] = np.arange(num_own)
    column_of[num_own + fetched] = num_own + np.arange(len(fetched))
    sums, sources = came
    all_rows = np.append(adjacency.row_of_edge[is_kept].astype(np.int64), num_own + sums)
    all_columns = np.append(column_of[adjacency.indices[is_kept]], sources)
    num_rows = num_own + num_sums
    num_columns = num_own + len(fetched)
    indptr, indices, order = compress_edges(all_columns, all_rows, num_rows, num_columns)
    weights = None
    if shard.edge_weight is not None:
        assert came_weight is not None
        together = torch.cat([shard.edge_weight[torch.from_numpy(is_kept)], came_weight])
        weights = together[torch.from_numpy(order.astype(np.int64))].detach().double().numpy()
    return Adjacency(indptr, indices, num_columns), weights
