"""From a placement and a change of the graph to the next placement; only what changes is agreed on anew.

Every rank gives the whole change, so only three things travel: who owns the nodes that it speaks of, which halo rows
are no longer wanted, and which are wanted now. Rows that stay keep their order, here and in the lists of what is sent,
and new ones follow them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.attach.remembered import REMEMBERED_BYTES_LIMIT
from laconic.comm.exchange import RowExchange
from laconic.comm.splits import Splits
from laconic.graph import Adjacency, Shard
from laconic.graph.change import GraphChange, check_change, refuse_change
from laconic.launching.agreement import check_agreement
from laconic.sharded.block import compressed
from laconic.sharded.node_owners import NodeOwners, Numbers
from laconic.sharded.placement import Placement, at_destinations

# Shapes: N owned rows, H halo rows, E edges, P ranks

IntArray = NDArray[np.int64]
_SPLITS = ("train_mask", "val_mask", "test_mask")


def change_placement(
    placement: Placement,
    change: GraphChange,
    num_classes: int,
    prepare: Callable[[Tensor], Tensor],
    *,
    keep_features: bool,
) -> Placement:
    """Returns the placement of this rank after `change`; all ranks call it together, with the same change.

    It is of the next version, and leaves the placement before as it is. What cannot be done raises the same error on
    all ranks.
    Traffic: as in `NodeOwners.find`, 8 bytes for each halo row that is new or goes, and a few numbers; with
    `keep_features` the features of new halo rows, or of all of them at the first change. Phase "setup".

    Args:
        num_classes: of the graph.
        prepare: does to features of new nodes what was done to those that are there.
        keep_features: bring the features of halo rows here and keep them, so that the next change brings new ones only;
            not where they are larger than what is remembered.
    """
    communicator = placement.communicator
    facts = {**change.facts(), "change.plan_version": str(placement.exchange.version)}
    check_agreement(communicator, facts, remedy="Give all ranks the same change, and all changes to all ranks.")
    check_change(change, placement.shard, num_classes)
    if change.is_empty:
        return placement
    with communicator.ledger.phase("setup"):
        own = Numbers(placement.shard.node_ids.numpy())
        owners = NodeOwners.find(change, own, placement.shard.num_owned, communicator)
        step = _Step(placement, change, owners)
        sizes = step.check_splits()
        exchange = step.agree_on_exchange()
        own_sizes = torch.tensor([exchange.num_owned, exchange.num_received])
        largest = communicator.all_reduce(own_sizes, op="max").tolist()
        shard = step.shard(prepare)
        num_bytes = sum(largest) * shard.x.shape[1] * shard.x.element_size()
        halo_x = (
            step.halo_features(shard.x, exchange) if keep_features and num_bytes <= REMEMBERED_BYTES_LIMIT else None
        )
    num_left = placement.num_nodes - len(change.remove_nodes)
    return replace(
        at_destinations(placement, shard, exchange),
        largest_num_rows=largest[0],
        largest_num_columns=sum(largest),
        num_nodes=num_left + len(change.new_ids),
        num_train=sizes[0],
        halo_x=halo_x,
    )


@final
class _Step:
    """One change of one rank's share: what stays, what comes, and its new numbers."""

    def __init__(self, placement: Placement, change: GraphChange, owners: NodeOwners) -> None:
        self._placement = placement
        self._change = change
        self._owners = owners
        self._rank = placement.communicator.rank
        shard = placement.shard
        self._columns = Numbers(shard.source_ids.numpy())
        is_leaving = np.isin(shard.source_ids.numpy(), change.remove_nodes.numpy())
        self._kept_rows = np.flatnonzero(~is_leaving[: shard.num_owned])
        self._new_here = np.flatnonzero(owners.of(change.new_ids.numpy()) == self._rank)
        self._node_ids = np.concatenate(
            [shard.node_ids.numpy()[self._kept_rows], change.new_ids.numpy()[self._new_here]]
        )
        self._edge_is_kept = self._find_kept_edges(is_leaving)
        self._added = np.flatnonzero(owners.of(change.add_edges.numpy()[1]) == self._rank)
        self._number_columns()

    def _find_kept_edges(self, is_leaving: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns which edges stay, (E,); raises on all ranks if one that is to be removed is not there."""
        adjacency = self._placement.shard.adjacency
        rows, columns = adjacency.row_of_edge.astype(np.int64), adjacency.indices
        is_kept = ~is_leaving[rows] & ~is_leaving[columns]
        edges = self._change.remove_edges.numpy()
        here = np.flatnonzero(self._owners.of(edges[1]) == self._rank)
        places = self._columns.of(edges[0][here]), self._columns.of(edges[1][here])
        found = _find_each(rows * adjacency.num_columns + columns, places[1] * adjacency.num_columns + places[0])
        missing = here[(found < 0) | (places[0] < 0)]
        none = edges.shape[1]
        first = torch.tensor([int(missing.min()) if len(missing) else none])
        entry = int(self._placement.communicator.all_reduce(first, op="min")) if none else none
        if entry < none:
            source, destination = edges[:, entry]
            times = int((edges == edges[:, entry : entry + 1]).all(axis=0).sum())
            often = "there is none" if times == 1 else f"there are fewer than the {times} that are listed"
            refuse_change(f"remove_edges holds {source} -> {destination}, but {often} in the graph")
        is_kept[found] = False
        return is_kept

    def _number_columns(self) -> None:
        """Numbers the columns anew: owned rows, then for each rank the halo rows that stay, then those that come."""
        shard, splits = self._placement.shard, self._placement.exchange.splits
        num_owned, num_ranks = shard.num_owned, len(splits.receive)
        sources = self._change.add_edges.numpy()[0][self._added]
        is_used = np.zeros(shard.num_sources, bool)
        is_used[shard.adjacency.indices[self._edge_is_kept]] = True
        places = self._columns.of(sources)
        is_used[places[places >= 0]] = True
        is_new = (places < 0) & (self._owners.of(sources) != self._rank)
        new_ids = np.unique(sources[is_new])
        new_ranks = self._owners.of(new_ids)
        ends = num_owned + np.append(0, np.cumsum(splits.receive))
        self._kept_received = [np.flatnonzero(is_used[ends[peer] : ends[peer + 1]]) for peer in range(num_ranks)]
        old_ids = np.split(shard.halo_ids.numpy(), np.cumsum(splits.receive)[:-1])
        self._dropped = [np.delete(ids, kept) for ids, kept in zip(old_ids, self._kept_received, strict=True)]
        self._wanted = [new_ids[new_ranks == peer] for peer in range(num_ranks)]
        parts = zip(old_ids, self._kept_received, self._wanted, strict=True)
        self._halo_ids = np.concatenate([np.append(ids[kept], wanted) for ids, kept, wanted in parts])

    def check_splits(self) -> list[int]:
        """Returns the sizes of the three splits; raises on all ranks if one of them would be left without a node."""
        shard, rows = self._placement.shard, torch.from_numpy(self._kept_rows)
        before = [int(getattr(shard, name).sum()) for name in _SPLITS]
        after = [int(getattr(shard, name)[rows].sum()) for name in _SPLITS]
        if self._change.add_nodes is not None:
            masks = self._change.add_nodes.masks
            after = [size + int(masks[name][self._new_here].sum()) for size, name in zip(after, _SPLITS, strict=True)]
        sums = self._placement.communicator.all_reduce(torch.tensor([*before, *after])).tolist()
        for name, were, are in zip(_SPLITS, sums[:3], sums[3:], strict=True):
            if were and not are:
                refuse_change(f"remove_nodes takes all {were} nodes of {name}. Leave some, or add others to it")
        return list(sums[3:])

    def agree_on_exchange(self) -> RowExchange:
        """Tells each rank which of its rows are no longer wanted here and which are now, and learns the same of ours.

        Returns the next exchange.
        """
        before, communicator = self._placement.exchange, self._placement.communicator
        dropped, _ = self._tell(self._dropped)
        wanted, self._new_splits = self._tell(self._wanted)
        rows_before = np.split(before.send_rows.numpy(), np.cumsum(before.splits.send)[:-1])
        row_of_old = np.full(before.num_owned, -1)
        row_of_old[self._kept_rows] = np.arange(len(self._kept_rows))
        old_ids, own = self._placement.shard.node_ids.numpy(), Numbers(self._node_ids)
        parts = []
        for peer, rows in enumerate(rows_before):
            kept = rows[~np.isin(old_ids[rows], dropped[peer])]
            parts.append(np.append(row_of_old[kept], own.of(wanted[peer])))
        send_rows = np.concatenate(parts)
        assert not len(send_rows) or send_rows.min() >= 0, "a row is wanted of a rank that does not own it"
        splits = communicator.agree_on_splits([len(part) for part in parts])
        assert sum(splits.receive) == len(self._halo_ids)
        version = before.version + 1
        return RowExchange(communicator, torch.from_numpy(send_rows), splits, len(self._node_ids), version=version)

    def halo_features(self, x: Tensor, exchange: RowExchange) -> Tensor:
        """Returns the features of the halo rows after the change: those that are here, and new ones from their owners.

        Args:
            x: features of the owned rows after the change.
            exchange: the next one.
        """
        before = self._placement.halo_x
        if before is None:
            return exchange.start(x).wait()
        splits = self._new_splits.reversed
        # New rows are the last of each list.
        parts = exchange.send_rows.split_with_sizes(list(exchange.splits.send))
        new_rows = [part[len(part) - size :] for part, size in zip(parts, splits.send, strict=True)]
        came = RowExchange(exchange.communicator, torch.cat(new_rows), splits, exchange.num_owned).start(x).wait()
        old = before.split_with_sizes(list(self._placement.exchange.splits.receive))
        kept = [rows[torch.from_numpy(places)] for rows, places in zip(old, self._kept_received, strict=True)]
        new = came.split_with_sizes(list(splits.receive))
        return torch.cat([rows for pair in zip(kept, new, strict=True) for rows in pair])

    def _tell(self, ids: list[IntArray]) -> tuple[list[IntArray], Splits]:
        """Tells each rank some ids, and returns those that each tells here."""
        communicator = self._placement.communicator
        splits = communicator.agree_on_splits([len(part) for part in ids])
        came = communicator.all_to_all(torch.from_numpy(np.concatenate(ids)), splits).numpy()
        return np.split(came, np.cumsum(splits.receive)[:-1]), splits

    def shard(self, prepare: Callable[[Tensor], Tensor]) -> Shard:
        """Returns the rows and edges after the change."""
        shard, change = self._placement.shard, self._change
        rows = torch.from_numpy(self._kept_rows)
        columns = {name: getattr(shard, name)[rows] for name in ("x", "y", *_SPLITS)}
        if change.add_nodes is not None:
            here = torch.from_numpy(self._new_here)
            new = {"x": prepare(change.add_nodes.x).to(shard.x.dtype), "y": change.add_nodes.labels(shard.y)}
            new |= change.add_nodes.masks
            columns = {name: torch.cat([values, new[name][here]]) for name, values in columns.items()}
        adjacency, weight = self._edges()
        return replace(
            shard,
            **columns,
            edge_index=adjacency.edge_index,
            adjacency=adjacency,
            node_ids=torch.from_numpy(self._node_ids),
            num_owned=len(self._node_ids),
            edge_weight=weight,
            halo_ids=torch.from_numpy(self._halo_ids),
        )

    def _edges(self) -> tuple[Adjacency, Tensor | None]:
        shard, change = self._placement.shard, self._change
        source_ids = np.concatenate([self._node_ids, self._halo_ids])
        numbers = Numbers(source_ids)
        column_of_old = numbers.of(shard.source_ids.numpy())
        kept, adjacency = self._edge_is_kept, shard.adjacency
        added = numbers.of(change.add_edges.numpy()[:, self._added].ravel()).reshape(2, -1)
        # Old edges first: of equal ones, the oldest stays the first.
        sources = np.append(column_of_old[adjacency.indices[kept]], added[0])
        rows = np.append(column_of_old[adjacency.row_of_edge[kept]], added[1])
        weight = shard.edge_weight
        if weight is not None:
            weight = weight[torch.from_numpy(kept)]
            if change.add_weights is not None:
                weight = torch.cat([weight, change.add_weights[torch.from_numpy(self._added)].to(weight.dtype)])
        return compressed((sources, rows, weight), (len(self._node_ids), len(source_ids)))


def _find_each(keys: IntArray, wanted: IntArray) -> IntArray:
    """Returns a place in `keys`, which rise, for each wanted one, a different one each time; -1 where there is none."""
    order = np.argsort(wanted, kind="stable")
    begin = np.searchsorted(wanted[order], wanted[order])
    places = np.searchsorted(keys, wanted[order]) + np.arange(len(wanted)) - begin
    is_there = places < len(keys)
    is_there[is_there] = keys[places[is_there]] == wanted[order][is_there]
    found = np.empty(len(wanted), np.int64)
    found[order] = np.where(is_there, places, -1)
    return found
