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
from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.graph import Adjacency, Shard
from laconic.kernels.compress import as_indices, compress_edges
from laconic.kernels.keyed import fold_key
from laconic.sharded.chunk_map import by_owner
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
    with placement.communicator.ledger.phase("setup"):
        known, hops = _KnownEdges.of(placement), 1
        if reach is None and known.sees_too_many(num_hops):
            limit = hops
        while hops < limit:
            further = known.with_rows_within(hops)
            if reach is None and further.sees_too_many(num_hops):
                break
            known, hops = further, hops + 1
        return KHopHalo(known.placed(), hops, is_whole=hops >= num_hops)


@final
@dataclass(frozen=True, eq=False)
class _KnownEdges:
    """Edges that arrive at the rank's own rows and at those taken in.

    Ends are named by their *place*: where they stand when the rows of all ranks stand one after the other.

    Args:
        before: the placement without rows taken in.
        starts: where each rank's rows begin among the places, (P + 1,).
        taken_in: places of the rows taken in, which never fall, (R,).
        sources, destinations: of each edge, (E,).
        weight: of each edge, or None, (E,).
    """

    before: Placement
    starts: NDArray[np.int64]
    taken_in: NDArray[np.int64]
    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    weight: Tensor | None

    @staticmethod
    def of(placement: Placement) -> "_KnownEdges":
        communicator, shard = placement.communicator, placement.shard
        sizes = communicator.all_gather(torch.tensor([shard.num_rows])).flatten().numpy()
        starts = np.append(0, np.cumsum(sizes))
        own = np.arange(starts[communicator.rank], starts[communicator.rank + 1])
        place_of = np.append(own, placement.exchange.start(torch.from_numpy(own)).wait().numpy())
        adjacency = shard.adjacency
        assert adjacency.edge_order is None, "a placement has its edges in compressed order"
        return _KnownEdges(
            before=placement,
            starts=starts,
            taken_in=own[:0],
            sources=place_of[adjacency.indices],
            destinations=own[adjacency.row_of_edge],
            weight=shard.edge_weight,
        )

    @property
    def _communicator(self) -> Communicator:
        return self.before.communicator

    @property
    def _own(self) -> slice:
        rank = self._communicator.rank
        return slice(int(self.starts[rank]), int(self.starts[rank + 1]))

    def _seen(self, num_hops: int) -> NDArray[np.bool_]:
        """Returns which places training rows see over known edges."""
        seen = np.zeros(self.starts[-1], bool)
        seen[self._own] = self.before.shard.train_mask.numpy()
        mark_seen(seen, self.sources, self.destinations, num_hops)
        return seen

    def sees_too_many(self, num_hops: int) -> bool:
        """Whether training rows of any rank see more rows of others than are worth being computed."""
        seen = self._seen(num_hops)
        num_own = self.before.shard.num_rows
        seen[self._own] = False
        # Where half of all rows are computed everywhere, more ranks are little help.
        most = min(MOST_OVER_OWNED * num_own, (len(seen) - num_own) // 2)
        is_too_many = int(seen.sum()) > most
        return bool(self._communicator.all_reduce(torch.tensor([int(is_too_many)]), op="max"))

    def with_rows_within(self, num_hops: int) -> "_KnownEdges":
        """Takes in the rows that training rows see, with the edges that arrive at them: their owners know those."""
        is_new = self._seen(num_hops)
        is_new[self._own] = False
        is_new[self.taken_in] = False
        new = np.flatnonzero(is_new)
        shard, communicator = self.before.shard, self._communicator
        exchange = RowExchange.agree(communicator, by_owner(new, self.starts), shard.num_rows)
        degrees = torch.from_numpy(shard.adjacency.row_degrees)
        asked = exchange.send_rows.numpy()
        num_sent = _sums(degrees.numpy()[asked], exchange.splits.send)
        num_edges = exchange.start(degrees).wait().numpy()
        splits = communicator.agree_on_splits(num_sent)
        assert list(splits.receive) == _sums(num_edges, exchange.splits.receive)
        edges = _edges_of(shard.adjacency, asked)
        # The first edges are those of the rank's own rows, in their order.
        places = as_indices(self.sources[edges], int(self.starts[-1]))
        sources = communicator.all_to_all(torch.from_numpy(places), splits).numpy().astype(np.int64)
        weight = self.weight
        if weight is not None:
            weight = torch.cat([weight, communicator.all_to_all(weight[torch.from_numpy(edges)], splits)])
        return _KnownEdges(
            self.before,
            self.starts,
            np.union1d(self.taken_in, new),
            np.append(self.sources, sources),
            np.append(self.destinations, np.repeat(new, num_edges)),
            weight,
        )

    def placed(self) -> Placement:
        if not self._communicator.all_reduce(torch.tensor([len(self.taken_in)]), op="max"):
            return self.before
        before, communicator = self.before.shard, self._communicator
        rows = np.append(np.arange(self._own.start, self._own.stop), self.taken_in)
        is_halo = np.zeros(self.starts[-1], bool)
        is_halo[self.sources] = True
        is_halo[rows] = False
        halo = np.flatnonzero(is_halo)
        column_of = np.empty(self.starts[-1], np.int64)
        column_of[rows], column_of[halo] = np.arange(len(rows)), np.arange(len(rows), len(rows) + len(halo))
        indptr, indices, order = compress_edges(
            column_of[self.sources], column_of[self.destinations], len(rows), len(rows) + len(halo)
        )
        adjacency = Adjacency(indptr, indices, len(rows) + len(halo))
        taken = RowExchange.agree(communicator, by_owner(self.taken_in, self.starts), before.num_rows)
        node_ids = torch.cat([before.node_ids, taken.start(before.node_ids).wait()])
        exchange = RowExchange.agree(communicator, by_owner(halo, self.starts), len(rows))
        largest = communicator.all_reduce(torch.tensor([len(rows) + len(halo)]), op="max")
        shard = Shard(
            x=torch.cat([before.x, taken.start(before.x).wait()]),
            y=before.y,
            edge_index=torch.from_numpy(np.stack([adjacency.indices, adjacency.row_of_edge]).astype(np.int64)),
            adjacency=adjacency,
            node_ids=node_ids,
            num_owned=before.num_owned,
            train_mask=before.train_mask,
            val_mask=before.val_mask,
            test_mask=before.test_mask,
            edge_weight=None if self.weight is None else self.weight[torch.from_numpy(order.astype(np.int64))],
            halo_ids=exchange.start(node_ids).wait(),
        )
        return at_destinations(
            shard,
            exchange,
            # Whether features are few enough to keep their sums is asked of own rows, with and without others.
            largest_num_rows=self.before.largest_num_rows,
            largest_num_columns=int(largest),
            num_nodes=self.before.num_nodes,
            num_train=self.before.num_train,
        )


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
        edge_index=torch.from_numpy(np.stack([extended.indices, extended.row_of_edge]).astype(np.int64)),
        adjacency=extended,
        node_ids=shard.source_ids,
        edge_weight=weight,
        halo_ids=shard.halo_ids[:0],
    )


def _edges_of(adjacency: Adjacency, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the numbers of the edges that arrive at `rows`, row after row."""
    counts = adjacency.row_degrees[rows]
    first_of_edge = np.repeat(adjacency.indptr[rows] - (np.cumsum(counts) - counts), counts)
    numbers: NDArray[np.int64] = first_of_edge + np.arange(counts.sum())
    return numbers


def _sums(values: NDArray[np.int64], sizes: tuple[int, ...]) -> list[int]:
    """Returns the sums of parts of such sizes, which follow each other."""
    before = np.append(0, np.cumsum(values))
    ends = np.cumsum(sizes)
    sums: list[int] = (before[ends] - before[ends - sizes]).tolist()
    return sums
