"""From the chunks that a rank reads to its shard: owned rows first, then halo rows, grouped by the rank that owns them.

Everything is agreed on here, once: who sends which rows to whom, the ids of the halo rows, and the sizes of the whole
that every rank has to decide by (a rank that went by its own sizes might decide otherwise than its neighbours).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.graph import Adjacency, Shard
from laconic.kernels.compress import compress_edges
from laconic.store import Chunk

# Shapes: N owned rows, H halo rows, E edges, C chunks, P ranks


@final
@dataclass(frozen=True)
class ChunkMap:
    """Which rank owns which chunk, and where its rows begin among the rank's rows.

    Args:
        num_nodes: nodes of each chunk, (C,).
        owner: rank of each chunk, (C,), never falling: a rank's chunks follow each other.
    """

    num_nodes: NDArray[np.int64]
    owner: NDArray[np.int64]

    @staticmethod
    def even(num_nodes: Sequence[int], num_ranks: int) -> "ChunkMap":
        """Gives each rank as many chunks as the others, or one more."""
        num_chunks = len(num_nodes)
        owner = np.repeat(
            np.arange(num_ranks),
            np.diff([num_chunks * rank // num_ranks for rank in range(num_ranks + 1)]),
        )
        return ChunkMap(np.asarray(num_nodes, np.int64), owner)

    def chunks_of(self, rank: int) -> list[int]:
        return [int(chunk) for chunk in np.flatnonzero(self.owner == rank)]

    @property
    def rank_starts(self) -> NDArray[np.int64]:
        """Where each rank's rows begin when all ranks' rows stand one after the other, (P + 1,)."""
        num_ranks = int(self.owner[-1]) + 1
        return np.append(0, np.cumsum(np.bincount(self.owner, weights=self.num_nodes, minlength=num_ranks))).astype(
            np.int64
        )

    @property
    def chunk_starts(self) -> NDArray[np.int64]:
        """The same for chunks, (C + 1,)."""
        return np.append(0, np.cumsum(self.num_nodes))


@final
@dataclass(frozen=True, eq=False)
class Placement:
    """What one rank holds.

    Args:
        shard: its rows and all edges that arrive at them.
        exchange: how halo rows come here.
        largest_num_rows: the most rows that any rank owns.
        largest_num_halo: the most halo rows that any rank has.
        num_nodes: nodes of the whole graph.
        num_train: training nodes of the whole graph.
        halo_x: features of the halo rows, (H, F), where they are kept: once the graph has changed.
    """

    shard: Shard
    exchange: RowExchange
    largest_num_rows: int
    largest_num_halo: int
    num_nodes: int
    num_train: int
    halo_x: Tensor | None = None

    @property
    def communicator(self) -> Communicator:
        return self.exchange.communicator


def place(chunks: Sequence[Chunk], chunk_map: ChunkMap, communicator: Communicator) -> Placement:
    """Returns the placement of this rank, which has read `chunks`, its own by `chunk_map`; all ranks call it together.

    A rank may have no node at all; it still takes part.
    """
    with communicator.ledger.phase("setup"):
        edges = _Edges.of(chunks, chunk_map, communicator.rank)
        num_owned = edges.num_owned
        exchange = RowExchange.agree(communicator, edges.wanted, num_owned)
        node_ids = _join([chunk.tensor("node_ids") for chunk in chunks])
        halo_ids = exchange.start(node_ids).wait()
        train_mask = _join([chunk.tensor("train_mask") for chunk in chunks])
        sizes = torch.tensor([num_owned, exchange.num_received])
        largest = communicator.all_reduce(sizes, op="max").tolist()
        num_train = communicator.all_reduce(torch.tensor([int(train_mask.sum())]))
    adjacency, weight = edges.compressed(num_owned + exchange.num_received)
    shard = Shard(
        x=_join([chunk.features() for chunk in chunks]),
        y=_join([chunk.tensor("y") for chunk in chunks]),
        edge_index=torch.from_numpy(np.stack([adjacency.indices, adjacency.row_of_edge]).astype(np.int64)),
        adjacency=adjacency,
        node_ids=node_ids,
        num_owned=num_owned,
        train_mask=train_mask,
        val_mask=_join([chunk.tensor("val_mask") for chunk in chunks]),
        test_mask=_join([chunk.tensor("test_mask") for chunk in chunks]),
        edge_weight=weight,
        halo_ids=halo_ids,
    )
    return Placement(
        shard=shard,
        exchange=exchange,
        largest_num_rows=largest[0],
        largest_num_halo=largest[1],
        num_nodes=int(chunk_map.num_nodes.sum()),
        num_train=int(num_train),
    )


@final
@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges that arrive at a rank's rows.

    Args:
        sources: numbered as columns: owned rows first, then halo rows, (E,).
        destinations: owned rows, (E,).
        weight: of each edge, or None.
        wanted: for each rank, the numbers it gives to the rows that are halo here.
    """

    num_owned: int
    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    weight: Tensor | None
    wanted: list[Tensor]

    @staticmethod
    def of(chunks: Sequence[Chunk], chunk_map: ChunkMap, rank: int) -> "_Edges":
        rank_starts, chunk_starts = chunk_map.rank_starts, chunk_map.chunk_starts
        first, end = int(rank_starts[rank]), int(rank_starts[rank + 1])
        # Sources by their place when all ranks' rows stand one after the other.
        places: list[NDArray[Any]] = [np.empty(0, np.int64)]
        destinations: list[NDArray[Any]] = [np.empty(0, np.int64)]
        weights: list[Tensor] = []
        for chunk in chunks:
            start = chunk_starts[chunk.number]
            source_chunk = np.repeat(np.arange(len(chunk_map.owner)), np.diff(chunk.bridge_ptr))
            places += [chunk.intra_indices + start, chunk.bridge_src + chunk_starts[source_chunk]]
            intra_rows = np.repeat(np.arange(chunk.num_nodes), np.diff(chunk.intra_indptr))
            destinations += [intra_rows + (start - first), chunk.bridge_dst + (start - first)]
            if chunk.has_weights:
                weights += [chunk.tensor("intra_weight"), chunk.tensor("bridge_weight")]
        place = np.concatenate(places)
        is_remote = (place < first) | (place >= end)
        # Marked in a table of all nodes: cheaper than sorting the edges, and the halo comes out grouped by owner.
        is_halo = np.zeros(rank_starts[-1], bool)
        is_halo[place[is_remote]] = True
        halo = np.flatnonzero(is_halo)
        column = np.cumsum(is_halo) + (end - first - 1)
        return _Edges(
            num_owned=end - first,
            sources=np.where(is_remote, column[place], place - first),
            destinations=np.concatenate(destinations),
            weight=torch.cat(weights) if weights else None,
            wanted=by_owner(halo, rank_starts),
        )

    def compressed(self, num_columns: int) -> tuple[Adjacency, Tensor | None]:
        """Returns the edges by destination and source, and their weights in that order."""
        indptr, indices, order = compress_edges(self.sources, self.destinations, self.num_owned, num_columns)
        weight = None if self.weight is None else self.weight[torch.from_numpy(order.astype(np.int64))]
        return Adjacency(indptr, indices, num_columns), weight


def by_owner(places: NDArray[np.int64], rank_starts: NDArray[np.int64]) -> list[Tensor]:
    """Returns, for each rank, the numbers that it gives to those of `places`, which rise, that are its."""
    ends = np.searchsorted(places, rank_starts)
    return [
        torch.from_numpy(places[first:end] - start)
        for first, end, start in zip(ends[:-1], ends[1:], rank_starts[:-1], strict=True)
    ]


def _join(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
