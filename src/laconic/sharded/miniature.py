"""A miniature: three rows that stand for a placement. Its axes move nothing, and book the bytes of every exchange.

    bytes of an exchange between ranks p and q = rows_pq (or partial sums_pq) x width x bytes of a number

The width is the model's, and the same on three rows as on all of them. The rows and sums between two ranks are the
placement's. So the miniature's ledger counts what the rank's ledger will count.
"""

import dataclasses
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs.base import Direction
from laconic.comm.communicator import Communicator
from laconic.comm.exchange import Route
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.comm.transport.silent import SilentTransport
from laconic.graph import Adjacency, Shard
from laconic.sharded.axis import Axis, BookedAxis
from laconic.sharded.cut import Way
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.placement import Placement
from laconic.sharded.rates import Exchanged

NUM_ROWS = 3
"""Rows of the miniature that a rank owns."""


@final
class NotingCoder:
    """Stands for the coders of products and of refreshes: it notes what they would code, and moves nothing.

    Args:
        ledger: says for which layer an exchange is.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.exchanges: list[Exchanged] = []
        """Those up to now, in order."""
        self._fetch = _NotedAxis("fetch", self.exchanges, ledger)
        self._fold = _NotedAxis("fold", self.exchanges, ledger)

    def begin(self, *, is_training: bool) -> None:
        """Needs nothing."""

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        return self._fetch, self._fold

    def route(self, layer: int) -> Route:
        return self._fetch


@final
class _NotedAxis(BookedAxis):
    """Notes an exchange in place of booking it."""

    def __init__(self, way: Way, exchanges: list[Exchanged], ledger: Ledger) -> None:
        super().__init__(Splits((), (), 0), ledger)
        self._way = way
        self._exchanges = exchanges

    def _book(self, rows: Tensor, *, is_back: bool) -> Pending[Tensor]:
        _, layer = self._ledger.position
        # Sums are folded in the forward pass, and fetched in the backward pass.
        direction: Direction = "forward" if is_back == (self._way == "fold") else "backward"
        self._exchanges.append(Exchanged(layer, direction, rows.shape[1:].numel(), rows.dtype, self._way))
        return Pending.done(rows.new_empty(0, *rows.shape[1:]))


def miniature_of(placement: Placement) -> Placement:
    """Returns the miniature of a placement, on the same rank of as many ranks, with a ledger of its own."""
    real = placement.communicator
    communicator = Communicator(SilentTransport(real.rank, real.num_ranks), Ledger(real.rank))
    shard, ledger = few_rows(placement.shard.x, placement.shard.edge_weight), communicator.ledger
    weights = None if shard.edge_weight is None else shard.edge_weight.double().numpy()
    hops, edges = [], shard.adjacency
    for hop in placement.hops:
        hops.append(hop.booked(edges, weights, ledger))
        edges = hops[-1].block.adjacency
    operators = placement.operators.booked(shard.adjacency, weights, ledger)
    sources = None if placement.sources is None else placement.sources.booked(ledger)
    if isinstance(operators, BlockOperators) and not placement.is_covered:
        sources = operators.columns
    return dataclasses.replace(
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
    )


def few_rows(x: Tensor, edge_weight: Tensor | None) -> Shard:
    """Returns a shard of three rows, all connected, as wide as x and of its type; weighted if weights are given."""
    sources, rows = np.meshgrid(np.arange(NUM_ROWS), np.arange(NUM_ROWS))
    adjacency = Adjacency.from_edges(sources.ravel(), rows.ravel(), NUM_ROWS, NUM_ROWS)
    adjacency = dataclasses.replace(adjacency, edge_order=None)
    everyone = torch.ones(NUM_ROWS, dtype=torch.bool)
    return Shard(
        x=(torch.arange(1, NUM_ROWS + 1)[:, None] * torch.ones(NUM_ROWS, x.shape[1])).to(x.dtype),
        y=torch.zeros(NUM_ROWS, dtype=torch.int64),
        edge_index=adjacency.edge_index,
        adjacency=adjacency,
        node_ids=torch.arange(NUM_ROWS),
        num_owned=NUM_ROWS,
        train_mask=everyone,
        val_mask=~everyone,
        test_mask=~everyone,
        edge_weight=None if edge_weight is None else edge_weight.new_ones(adjacency.num_edges),
    )
