"""KHopHalo: rows of other ranks within k hops of a rank's training rows, computed here.

With T the training rows of a rank, S_0 = T and S_(l+1) = S_l + the sources of edges into S_l:

    rows within k - 1 hops     S_(k-1)           all their edges are here: they are computed in full
    rows at the k-th hop       S_k - S_(k-1)     the halo: a historical sum, or row, stands for their neighbours

Where k is as far as the model sees, nothing that the loss depends on is old: losses and gradients are exact, and there
is nothing to refresh. What that costs in memory depends on the labels: a few see little of the graph, many see all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.cached.turns import MOST_OVER_OWNED, mark_seen
from laconic.comm.exchange import RowExchange
from laconic.graph import Adjacency, Shard
from laconic.kernels.keyed import fold_key
from laconic.sharded.hops import KnownEdges
from laconic.sharded.placement import Placement, at_destinations

# Shapes: N owned rows, R rows of others that are computed in full, H halo rows, E edges, P ranks, F features

# What a key is for, so that equal numbers elsewhere draw something else.
_REMOTE = 0x5253


@final
@dataclass(frozen=True, eq=False)
class KHopHalo:
    """The rows that a rank computes in training.

    Args:
        placement: the rank's own rows and behind them rows of others, (N + R), all edges that arrive at them, and as
            halo the rows from which these edges come, (H).
        reach: k, the same on all ranks.
        is_whole: whether k is as far as the model sees.
    """

    placement: Placement
    reach: int
    is_whole: bool

    def describe(self, *, keeps_sums: bool) -> str:
        """Returns in a sentence what is computed here of other ranks' rows."""
        if self.is_whole and keeps_sums:
            return "All that training nodes see on other ranks is computed here: losses are exact (keep=sums)."
        num_hops = self.reach if keeps_sums else self.reach - 1
        hops = "a hop" if num_hops == 1 else f"{num_hops} hops"
        beyond = "sums of what lies" if keeps_sums else "historical rows"
        return f"What training nodes see on other ranks within {hops} is computed here, from {beyond} beyond."


def expand_halo(placement: Placement, num_hops: int, reach: int | None = None) -> KHopHalo:
    """Returns the halo of `reach` hops; all ranks call it together.

    Args:
        num_hops: as far as the model sees what changes.
        reach: how far to go at most. By default as far as the rows of others that are computed then are at most twice
            as many as a rank has, and at most half of all that others have, on every rank.
    """
    limit = num_hops if reach is None else min(num_hops, reach)
    if limit <= 1 or placement.communicator.num_ranks == 1:
        return KHopHalo(placement, limit, is_whole=limit >= num_hops)
    shard, communicator = placement.shard, placement.communicator
    with communicator.ledger.phase("setup"):
        known, hops = KnownEdges.of(placement.exchange, shard.adjacency, shard.edge_weight), 1
        ways: list[RowExchange] = []
        if reach is None and _sees_too_many(known, placement, num_hops):
            limit = hops
        while hops < limit:
            new = np.setdiff1d(np.flatnonzero(_seen(known, shard, hops)), known.place_of)
            way = known.way_to(new, communicator)
            further = replace(known, place_of=np.append(known.place_of, new)).with_edges_into(way)
            if reach is None and _sees_too_many(further, placement, num_hops):
                break
            ways.append(way)
            known, hops = further, hops + 1
        return KHopHalo(_placed(placement, known, ways), hops, is_whole=hops >= num_hops)


def _seen(known: KnownEdges, shard: Shard, num_hops: int) -> NDArray[np.bool_]:
    """Returns which places training rows see over known edges."""
    seen = np.zeros(known.starts[-1], bool)
    seen[known.place_of[: shard.num_rows]] = shard.train_mask.numpy()
    mark_seen(seen, known.sources, known.destinations, num_hops)
    return seen


def _sees_too_many(known: KnownEdges, placement: Placement, num_hops: int) -> bool:
    """Whether training rows of any rank see more rows of others than are worth being computed."""
    seen, num_own = _seen(known, placement.shard, num_hops), placement.shard.num_rows
    seen[known.place_of[:num_own]] = False
    # Where half of all rows are computed everywhere, more ranks are little help.
    most = min(MOST_OVER_OWNED * num_own, (len(seen) - num_own) // 2)
    is_too_many = torch.tensor([int(seen.sum() > most)])
    return bool(placement.communicator.all_reduce(is_too_many, op="max"))


def _placed(placement: Placement, known: KnownEdges, ways: list[RowExchange]) -> Placement:
    """Returns the placement with the rows that `ways` bring behind the owned ones, and their edges."""
    communicator, shard = placement.communicator, placement.shard
    num_rows, halo = len(known.place_of), known.beyond
    largest = communicator.all_reduce(torch.tensor([num_rows - shard.num_rows, num_rows + len(halo)]), op="max")
    if not largest[0]:
        return placement
    x, node_ids = shard.x, shard.node_ids
    for way in ways:
        x, node_ids = (torch.cat([rows, way.start(rows).wait()]) for rows in (x, node_ids))
    exchange = known.way_to(halo, communicator)
    adjacency, weight = replace(known, place_of=np.append(known.place_of, halo)).compressed(num_rows)
    further = replace(
        shard,
        x=x,
        edge_index=adjacency.edge_index,
        adjacency=adjacency,
        node_ids=node_ids,
        edge_weight=weight,
        halo_ids=exchange.start(node_ids).wait(),
    )
    # The most rows stay those of ranks: whether features are few enough to keep their sums is asked of own rows.
    return replace(at_destinations(placement, further, exchange), largest_num_columns=int(largest[1]))


def with_halo_rows(shard: Shard, halo_features: Tensor, *, share: float, key: Sequence[int]) -> Shard:
    """Returns `shard` with its halo as rows that no edge arrives at: what mini-batches are drawn from, (N + H) rows.

    Args:
        halo_features: features of the halo rows, (H, F).
        share: how many of the edges from halo rows are there to be drawn, from 0 to 1.
        key: decides which.
    """
    num_owned, num_halo = shard.num_rows, len(shard.halo_ids)
    adjacency = shard.adjacency
    weight = shard.edge_weight
    indptr, indices = adjacency.indptr, adjacency.indices
    if share < 1.0:
        draw = np.random.Generator(np.random.Philox(key=int(fold_key(_REMOTE, *key)))).random(len(indices))
        is_kept = (indices < num_owned) | (draw < share)
        counts = np.bincount(adjacency.row_of_edge[is_kept], minlength=num_owned)
        indptr, indices = np.append(0, np.cumsum(counts)), indices[is_kept]
        weight = None if weight is None else weight[torch.from_numpy(is_kept)]
    indptr = np.concatenate([indptr, np.full(num_halo, indptr[-1])])
    extended = Adjacency(indptr, indices, num_owned + num_halo)
    return replace(
        shard,
        x=torch.cat([shard.x, halo_features]),
        edge_index=extended.edge_index,
        adjacency=extended,
        node_ids=shard.source_ids,
        edge_weight=weight,
        halo_ids=shard.halo_ids[:0],
    )
