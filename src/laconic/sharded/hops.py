"""Hop: rows of other ranks that are computed here too, as their owners compute them, so that they need not travel.

For a row u that another rank owns, a layer computes h_u = act(W s_u) with s_u = sum of a_uw x_w over its neighbours.
Where the x_w are features, s_u is constant: it comes once, and from then on h_u is computed here, with today's W and
the dropout of its owner. The messages of the next layer vanish, forward and backward, exactly: the gradients of the
copies end in W, whose gradient is summed over ranks anyway.

A rank holds the rows within k hops of its own. Rows stand hop by hop, n_0 < n_1 < ... < n_k of them:

    A_j    the edges into the rows within j - 1 hops, (n_{j-1} x n_j): all edges that arrive at them

A layer turns n_j rows into n_{j-1}, and rows are exchanged only when none but the owned ones are left. So that the
number of rows tells the hop on every rank, a hop without a row has an empty one.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.graph import Adjacency, Shard
from laconic.graph.operators.dropout import drop_entries
from laconic.graph.operators.linear import FloatArray, LinearOperator
from laconic.kernels.compress import as_indices
from laconic.sharded.axis import AxisExchange, PlacedAxis
from laconic.sharded.block import as_numbers, compressed
from laconic.sharded.chunk_map import by_owner
from laconic.sharded.node_owners import Numbers
from laconic.sharded.normalize import BlockOperators

# Shapes: N owned rows, n_j rows within j hops, E edges, P ranks

IntArray = NDArray[np.int64]


@final
class HopAxis(PlacedAxis):
    """Brings the rows of one hop from their owners.

    Args:
        rows: the exchange of the rows.
        num_empty: rows without meaning behind them, copies of the first: one where no row comes. Of zeros, a layer
            such as x / x.norm() would make NaN.
    """

    def __init__(self, rows: PlacedAxis, num_empty: int) -> None:
        self._rows = rows
        self._num_empty = num_empty

    @property
    def num_others(self) -> int:
        return self._rows.num_others + self._num_empty

    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        coming = self._rows.start_expand(x, widest)
        empty = x.detach()[:1].expand(self._num_empty, -1)
        return coming.then(lambda rows: torch.cat([rows, empty])) if self._num_empty else coming

    def expand_features(self, x: Tensor) -> Tensor:
        """Returns the rows of features, (M, F), which travel sparse where that is smaller for all ranks together."""
        if isinstance(self._rows, AxisExchange):
            communicator, lists = self._rows.lists.communicator, self._rows.lists
            rows = x.index_select(0, lists.send_rows)
            sizes = communicator.all_reduce(torch.tensor([rows.nbytes, sparse_bytes(rows)]))
            if sizes[1] < sizes[0]:
                came = _all_to_all_sparse(communicator, rows, lists.splits)
                return torch.cat([came, x[:1].expand(self._num_empty, -1)])
        return self.start_expand(x, x.shape[1]).wait()

    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        raise AssertionError("sums of rows that are computed here stay here")

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        raise AssertionError("sums of rows that are computed here stay here")

    def booked(self, ledger: Ledger) -> "HopAxis":
        return HopAxis(self._rows.booked(ledger), 1)


@final
class HopMatrix:
    """A matrix (n_{j-1} x n_j) whose products need no other rank, forward and backward.

    Args:
        whole: with a diagonal of its n_{j-1} rows, or none.
    """

    def __init__(self, whole: LinearOperator) -> None:
        self.whole = whole
        # Apart: a transposed matrix has more rows than the diagonal.
        self._edges = replace(whole, diagonal=None)
        self._diagonal = None if whole.diagonal is None else torch.from_numpy(whole.diagonal).unsqueeze(1)

    def __matmul__(self, x: Tensor) -> Tensor:
        """Returns M x, (n_{j-1}, F), differentiable in x, (n_j, F)."""
        out = self._edges @ x
        if self._diagonal is None:
            return out
        return torch.addcmul(out, self._diagonal.to(device=x.device, dtype=x.dtype), x[: len(out)])

    def dropped(self, probability: float, key: np.uint64, ids: Tensor) -> "HopMatrix":
        """Returns the matrix with a share of its entries zeroed and the rest scaled up; keyed as edges.

        Args:
            ids: of the rows within j hops, (n_j,).
        """
        num_rows = self.whole.adjacency.num_rows
        return HopMatrix(drop_entries(self.whole, probability, key, ids, row_ids=ids[:num_rows]))


@final
@dataclass(frozen=True, eq=False)
class Hop:
    """The edges A_j of one hop, and how its rows come from their owners.

    Args:
        block: makes matrices (n_{j-1} x n_j).
        ids: of the rows of this hop, (n_j - n_{j-1},).
    """

    block: BlockOperators
    ids: Tensor

    @property
    def num_rows(self) -> int:
        """n_j."""
        return self.block.adjacency.num_columns

    def with_features(self, x: Tensor) -> Tensor:
        """Returns features, (n_{j-1}, F), with those of this hop from their owners behind them, (n_j, F)."""
        assert isinstance(self.block.columns, HopAxis)
        return torch.cat([x, self.block.columns.expand_features(x)])

    def with_rows(self, x: Tensor) -> Tensor:
        """Returns x, (n_{j-1}, F), with the rows of this hop from their owners behind it, (n_j, F)."""
        return torch.cat([x, self.block.columns.start_expand(x, x.shape[1]).wait()])

    def booked(self, before: Adjacency, weights: FloatArray | None, ledger: Ledger) -> "Hop":
        """Returns the hop of a miniature, of one empty row.

        Args:
            before: the edges of the hop before it in the miniature, or those of the miniature.
        """
        num_rows = before.num_columns
        indptr = np.append(before.indptr, np.full(num_rows - before.num_rows, before.indptr[-1]))
        adjacency = Adjacency(indptr, before.indices, num_rows + 1)
        axes = (self.block.columns.booked(ledger), self.block.rows.booked(ledger))
        return Hop(BlockOperators(adjacency, num_rows, weights, *axes), torch.tensor([num_rows]))


def find_hops(
    lists: RowExchange, adjacency: Adjacency, weight: Tensor | None, node_ids: Tensor, reach: int
) -> tuple[Hop, ...]:
    """Returns the hops of this rank; all ranks call it together.

    Traffic, phase "setup": for each hop after the first, the edges into the rows of the hop before it.

    Args:
        lists: who sends which halo rows, which are the first hop, to whom.
        adjacency, weight: the edges into the owned rows, and their weights.
        node_ids: of the owned rows.
        reach: k.
    """
    if not reach:
        return ()
    communicator = lists.communicator
    with communicator.ledger.phase("setup"):
        edges, ids, found = KnownEdges.of(lists, adjacency, weight), node_ids, []
        for number in range(1, reach + 1):
            num_before = len(edges.place_of)
            is_empty = int(lists.num_received == 0)
            came = torch.cat([lists.start(ids).wait(), ids[:is_empty]])
            places = lists.start(torch.from_numpy(edges.place_of)).wait().numpy()
            edges = replace(edges, place_of=np.concatenate([edges.place_of, places, np.full(is_empty, -number)]))
            nothing = AxisExchange(RowExchange.of_nothing(communicator, num_before))
            block, weights = edges.compressed(num_before)
            axes = HopAxis(AxisExchange(lists), is_empty), nothing
            found.append(Hop(BlockOperators(block, num_before, as_numbers(weights), *axes), came))
            if number < reach:
                ids = torch.cat([ids, came])
                edges = edges.with_edges_into(lists)
                lists = edges.way_to(edges.beyond, communicator)
        return tuple(found)


@final
@dataclass(frozen=True, eq=False)
class KnownEdges:
    """Edges into the rows within some hops. Ends are named by their *place* among the rows of all ranks.

    Args:
        starts: where each rank's rows begin among the places, (P + 1,).
        adjacency: the edges into the owned rows, which are the first edges, in this order.
        place_of: of each row, hop by hop; an empty row has a negative one of its own.
        sources, destinations: places of the ends of each edge, (E,).
        weight: of each edge, or None, (E,).
    """

    starts: IntArray
    adjacency: Adjacency
    place_of: IntArray
    sources: IntArray
    destinations: IntArray
    weight: Tensor | None

    @staticmethod
    def of(lists: RowExchange, adjacency: Adjacency, weight: Tensor | None) -> "KnownEdges":
        communicator = lists.communicator
        sizes = communicator.all_gather(torch.tensor([adjacency.num_rows])).flatten().numpy()
        starts = np.append(0, np.cumsum(sizes))
        own = np.arange(starts[communicator.rank], starts[communicator.rank + 1])
        place_of = np.append(own, lists.start(torch.from_numpy(own)).wait().numpy())
        return KnownEdges(starts, adjacency, own, place_of[adjacency.indices], own[adjacency.row_of_edge], weight)

    def compressed(self, num_rows: int) -> tuple[Adjacency, Tensor | None]:
        """Returns the edges by rows, and their weights in that order."""
        numbers = Numbers(self.place_of)
        edges = numbers.of(self.sources), numbers.of(self.destinations), self.weight
        return compressed(edges, (num_rows, len(self.place_of)))

    @property
    def beyond(self) -> IntArray:
        """Places of the sources of edges that are no rows here."""
        return np.setdiff1d(self.sources, self.place_of)

    def way_to(self, places: IntArray, communicator: Communicator) -> RowExchange:
        """Returns the exchange that brings the rows at `places`, which rise; all ranks call it together."""
        return RowExchange.agree(communicator, by_owner(places, self.starts), len(self.place_of))

    def with_edges_into(self, lists: RowExchange) -> "KnownEdges":
        """Returns the edges with those into the last rows, which their owners tell; all ranks call it together.

        Args:
            lists: who sends which of the last rows to whom.
        """
        communicator = lists.communicator
        asked, num_owned = lists.send_rows.numpy(), self.adjacency.num_rows
        degrees = np.append(self.adjacency.row_degrees, np.zeros(lists.num_owned - num_owned, np.int64))
        num_edges = lists.start(torch.from_numpy(degrees)).wait().numpy()
        splits = communicator.agree_on_splits(_sums(degrees[asked], lists.splits.send))
        edges = _edges_of(self.adjacency, asked)
        told = as_indices(self.sources[edges], int(self.starts[-1]))
        sources = communicator.all_to_all(torch.from_numpy(told), splits).numpy().astype(np.int64)
        weight = self.weight
        if weight is not None:
            weight = torch.cat([weight, communicator.all_to_all(weight[torch.from_numpy(edges)], splits)])
        last = self.place_of[lists.num_owned : lists.num_owned + lists.num_received]
        return replace(
            self,
            sources=np.append(self.sources, sources),
            destinations=np.append(self.destinations, np.repeat(last, num_edges)),
            weight=weight,
        )


def _edges_of(adjacency: Adjacency, rows: IntArray) -> IntArray:
    """Returns the numbers of the edges that arrive at `rows`, row after row."""
    counts = adjacency.row_degrees[rows]
    first_of_edge = np.repeat(adjacency.indptr[rows] - (np.cumsum(counts) - counts), counts)
    numbers: IntArray = first_of_edge + np.arange(counts.sum())
    return numbers


def _sums(values: NDArray[np.integer], sizes: tuple[int, ...]) -> list[int]:
    """Returns the sums of parts of such sizes, which follow each other."""
    before = np.append(0, np.cumsum(values))
    ends = np.cumsum(sizes)
    sums: list[int] = (before[ends] - before[ends - sizes]).tolist()
    return sums


def with_hops(shard: Shard, hops: tuple[Hop, ...], ledger: Ledger) -> Shard:
    """Returns a shard with the rows of its hops behind the owned ones; all ranks call it together.

    Traffic, phase "setup": the features of these rows, dense or as `sparse_bytes` says, whichever is smaller.
    """
    if not hops:
        return shard
    x = shard.x
    with ledger.phase("setup"):
        for hop in hops:
            x = hop.with_features(x)
    node_ids = torch.cat([shard.node_ids, *(hop.ids for hop in hops)])
    return replace(shard, x=x, node_ids=node_ids, rows_within=tuple(hop.num_rows for hop in hops))


def sparse_bytes(rows: Tensor) -> int:
    """Returns the bytes of rows, (n, F), that travel sparse: how many nonzeros each has, their columns and values."""
    return 4 * len(rows) + int(rows.count_nonzero()) * (_column_dtype(rows).itemsize + rows.element_size())


def _column_dtype(rows: Tensor) -> torch.dtype:
    return torch.int16 if rows.shape[1] <= 1 << 15 else torch.int32


def _all_to_all_sparse(communicator: Communicator, rows: Tensor, splits: Splits) -> Tensor:
    """Sends `splits.send[r]` of the rows to each rank r, as `sparse_bytes` counts; returns what came, dense."""
    is_there = rows != 0
    counts, columns = is_there.sum(1, dtype=torch.int32), is_there.nonzero()[:, 1].to(_column_dtype(rows))
    of_values = communicator.agree_on_splits(_sums(counts.numpy(), splits.send))
    num_there = communicator.all_to_all(counts, splits)
    at_column = communicator.all_to_all(columns, of_values).long()
    came = rows.new_zeros(len(num_there), rows.shape[1])
    came[torch.arange(len(came)).repeat_interleave(num_there), at_column] = communicator.all_to_all(
        rows[is_there], of_values
    )
    return came
