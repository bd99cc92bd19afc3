"""Miniature: three rows that stand for a placement. Its axes move nothing; they note every exchange and book its bytes.

    bytes of an exchange between ranks p and q = rows_pq (or partial sums_pq) x width x bytes of a number

The width is the model's, and the same on three rows as on all of them. The rows and sums between two ranks are the
placement's. So the miniature's ledger counts what the rank's ledger will count.
"""

import dataclasses
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.arriving import Arrived
from laconic.comm.codecs.base import Direction
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport.silent import SilentTransport
from laconic.graph import Adjacency, Shard
from laconic.sharded.axis import Arrival, Axis, LineAxis, PlacedAxis
from laconic.sharded.cut import Way
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.placement import Placement
from laconic.sharded.rates import Exchanged

_NUM_ROWS = 3


@final
@dataclasses.dataclass(frozen=True)
class Note:
    """One exchange on a miniature.

    Args:
        phase: of the ledger.
        exchanged: which rows or sums, and how wide they are.
        is_coded: whether a codec writes them, so that their bytes depend on its rate; the miniature does not book them.
    """

    phase: str
    exchanged: Exchanged
    is_coded: bool


@final
class NotedAxis(LineAxis):
    """An axis of a miniature; also the route of rows to those who need them.

    Args:
        way: what goes forward along it.
        notes: gets a note of each exchange.
        ledger: says in which phase, and for which layer, an exchange is.
        booked: books an exchange at the size that it has in the placement; None where a codec decides on it.
    """

    def __init__(self, way: Way, notes: list[Note], ledger: Ledger, booked: PlacedAxis | None) -> None:
        self._way = way
        self._notes = notes
        self._ledger = ledger
        self._booked = booked

    @property
    def num_others(self) -> int:
        return 0 if self._booked is None else self._booked.num_others

    def start_expand(self, x: Tensor, widest: int) -> Arrival:
        self._note(x, "forward" if self._way == "fetch" else "backward")
        return _nothing(x) if self._booked is None else self._booked.start_expand(x, widest)

    def start_fold(self, partial: Tensor, widest: int) -> Arrival:
        self._note(partial, "backward" if self._way == "fetch" else "forward")
        return _nothing(partial) if self._booked is None else self._booked.start_fold(partial, widest)

    def start(self, x: Tensor) -> Arrival:
        """Rows go to those who need them."""
        return self.start_expand(x, 0)

    def start_back(self, halo: Tensor) -> Arrival:
        """What was made of the rows goes back."""
        return self.start_fold(halo, 0)

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        if self._booked is not None:
            self._booked.add_folded(arrived, into)

    def keep_largest(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def _note(self, rows: Tensor, direction: Direction) -> None:
        phase, layer = self._ledger.position
        exchanged = Exchanged(layer, direction, rows.shape[1:].numel(), rows.dtype, self._way)
        self._notes.append(Note(phase, exchanged, self._booked is None))


@final
@dataclasses.dataclass(frozen=True)
class NotingCoder:
    """Stands for the coders of products and of refreshes: what they would code is noted.

    Args:
        fetch, fold: the axes of what is coded.
    """

    fetch: NotedAxis
    fold: NotedAxis

    def begin(self, *, is_training: bool) -> None:
        """Needs nothing."""

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        return self.fetch, self.fold

    def route(self, layer: int) -> NotedAxis:
        return self.fetch


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Miniature:
    """Stands for a placement.

    Args:
        placement: of three rows.
        notes: of the exchanges up to now, in order.
        coder: for exchanges through a codec.
    """

    placement: Placement
    notes: list[Note]
    coder: NotingCoder

    @property
    def ledger(self) -> Ledger:
        """Counts all exchanges but coded ones."""
        return self.placement.communicator.ledger


def miniature_of(placement: Placement) -> Miniature:
    """Returns the miniature of a placement, on the same rank of as many ranks."""
    real, notes = placement.communicator, list[Note]()
    communicator = Communicator(SilentTransport(real.rank, real.num_ranks), Ledger(real.rank))
    ledger = communicator.ledger
    shard = few_rows(placement.shard.x, placement.shard.edge_weight)
    weights = None if shard.edge_weight is None else shard.edge_weight.double().numpy()

    def noted(way: Way, axis: PlacedAxis | None) -> NotedAxis:
        return NotedAxis(way, notes, ledger, axis)

    hops, edges = [], shard.adjacency
    for hop in placement.hops:
        hops.append(hop.booked(edges, weights, ledger))
        edges = hops[-1].block.adjacency
    operators, sources = placement.operators.booked(shard.adjacency, weights, ledger), None
    if isinstance(operators, BlockOperators):
        sources = columns = noted("fetch", operators.columns)
        operators = dataclasses.replace(operators, columns=columns, rows=noted("fold", operators.rows))
        if placement.is_covered and placement.sources is not None:
            sources = noted("fetch", placement.sources.booked(ledger))
    return Miniature(
        dataclasses.replace(
            placement,
            shard=shard,
            communicator=communicator,
            operators=operators,
            sources=sources,
            row_ids=shard.node_ids,
            column_ids=shard.node_ids,
            swap=placement.swap.booked(ledger),
            halo_x=None if placement.halo_x is None else shard.x[:0],
            hops=tuple(hops),
        ),
        notes,
        NotingCoder(noted("fetch", None), noted("fold", None)),
    )


def few_rows(x: Tensor, edge_weight: Tensor | None) -> Shard:
    """Returns a shard of three rows, all connected, as wide as x and of its type; weighted if weights are given."""
    sources, rows = np.meshgrid(np.arange(_NUM_ROWS), np.arange(_NUM_ROWS))
    adjacency = Adjacency.from_edges(sources.ravel(), rows.ravel(), _NUM_ROWS, _NUM_ROWS)
    adjacency = dataclasses.replace(adjacency, edge_order=None)
    everyone = torch.ones(_NUM_ROWS, dtype=torch.bool)
    return Shard(
        x=(torch.arange(1, _NUM_ROWS + 1)[:, None] * torch.ones(_NUM_ROWS, x.shape[1])).to(x.dtype),
        y=torch.zeros(_NUM_ROWS, dtype=torch.int64),
        edge_index=torch.from_numpy(np.stack([adjacency.indices, adjacency.row_of_edge]).astype(np.int64)),
        adjacency=adjacency,
        node_ids=torch.arange(_NUM_ROWS),
        num_owned=_NUM_ROWS,
        train_mask=everyone,
        val_mask=~everyone,
        test_mask=~everyone,
        edge_weight=None if edge_weight is None else edge_weight.new_ones(adjacency.num_edges),
    )


def _nothing(rows: Tensor) -> Arrival:
    return Arrived(rows.new_empty(0, *rows.shape[1:]))
