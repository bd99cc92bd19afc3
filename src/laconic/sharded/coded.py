"""Grids through codecs: in training, rows that are gathered and sums that are scattered are written in fewer bytes.

A product has two exchanges, and each its gradients: rows come along i and their gradients go back, sums go along k and
the gradients of rows come back. Each is a coded exchange of its own (`laconic.comm.coded_exchange`), at the rates of
one schedule. No two ranks share both a line along i and one along k, so what is known of a pair is of one of the two.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.arriving import Arrived
from laconic.comm.codecs import Codec
from laconic.comm.codecs.base import Direction
from laconic.comm.codecs.identity import Identity
from laconic.comm.coded_exchange import CodedExchange
from laconic.comm.exchange import Route, RowExchange
from laconic.comm.gather import gather_unequal_tensors
from laconic.comm.ledger import Ledger
from laconic.comm.message_sizes import Counts, Rates
from laconic.comm.schedules import Costs, Line, Measured
from laconic.gradients.shared import SharedGradients
from laconic.sharded.axis import Arrival, Axis, AxisExchange
from laconic.sharded.coder import Exchanged, HaloCoder, RatePlan, costs_of
from laconic.sharded.grid_placement import GridPlacement

# Shapes: N rows of the own block, M rows of the others, P ranks

# Those of a training step along i, and along k.
Exchanges = tuple[list[Exchanged], list[Exchanged]]


class ProductCoder(Protocol):
    """What a GridAggregator asks for the ways of each product in training."""

    def begin(self, *, is_training: bool) -> None:
        """Told when a forward pass begins."""

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        """Returns how rows for columns, and sums for rows, travel in the next product of a layer."""


@final
@dataclass(frozen=True, eq=False)
class GridCut:
    """What lies between ranks, agreed on by all of them.

    Args:
        columns: rows that go from each rank to each, forward, (P, P).
        rows: sums that do.
        remote_share: share of all edges whose source is not in the own block.
        degree: edges per node.
    """

    columns: Counts
    rows: Counts
    remote_share: float
    degree: float

    @staticmethod
    def of(placement: GridPlacement) -> "GridCut":
        """Adds up the shares of all ranks, which call it together. Traffic: an all_gather of 16 (P + 1) bytes."""
        communicator, block = placement.communicator, placement.block
        columns, rows = lists_of(placement)
        num_remote = int((block.adjacency.indices >= block.num_own).sum())
        own = torch.tensor([*columns.splits.send, *rows.splits.send, block.adjacency.num_edges, num_remote])
        with communicator.ledger.phase("setup"):
            table = communicator.all_gather(own).numpy()
        num_edges, num_remote = table[:, -2:].sum(axis=0)
        num_ranks = communicator.num_ranks
        share, degree = float(num_remote / max(num_edges, 1)), float(num_edges / max(placement.num_nodes, 1))
        return GridCut(table[:, :num_ranks], table[:, num_ranks : 2 * num_ranks], share, degree)

    @property
    def counts(self) -> Counts:
        """What goes from each rank to each in one product."""
        return self.columns + self.rows

    def costs(self, codec: Codec, exchanges: Exchanges) -> Costs:
        """Returns what the lines of an epoch cost, given its exchanges along both axes."""
        nothing: frozenset[int] = frozenset()
        of_columns, of_rows = (
            costs_of(codec, counts, found, nothing)
            for counts, found in zip((self.columns, self.rows), exchanges, strict=True)
        )

        def num_bytes(line: Line, rate: float) -> int:
            is_of_columns = self.columns[line.sender, line.receiver] > 0
            return (of_columns if is_of_columns else of_rows).num_bytes(line, rate)

        return Costs((*of_columns.lines, *of_rows.lines), num_bytes)


def lists_of(placement: GridPlacement) -> tuple[RowExchange, RowExchange]:
    """Returns who sends which rows, and which sums, to whom, forward."""
    columns, rows = placement.columns, placement.rows
    assert isinstance(columns, AxisExchange)
    assert isinstance(rows, AxisExchange)
    # Sums go the way that rows are expanded by in reverse, all of them.
    others = torch.arange(rows.num_others)
    sums = RowExchange(placement.communicator, others, rows.splits.reversed, rows.num_others)
    return columns.lists, sums


@final
class GridCoder:
    """Codes the products of one run."""

    def __init__(
        self, placement: GridPlacement, cut: GridCut, plan: RatePlan, seed: int, gradients: SharedGradients
    ) -> None:
        columns, sums = lists_of(placement)
        rows = placement.rows
        assert isinstance(rows, AxisExchange)
        num_own = placement.block.num_own
        column_ids, row_ids = placement.column_ids, placement.row_ids
        sent = column_ids[:num_own][columns.send_rows].numpy()
        self._columns = CodedExchange(columns, plan.codec, cut.columns, sent, column_ids[num_own:].numpy())
        received = row_ids[:num_own][rows.lists.send_rows].numpy()
        self._rows = CodedExchange(sums, plan.codec, cut.rows, row_ids[num_own:].numpy(), received)
        self._lists = rows.lists
        self._coder = HaloCoder(self._columns, plan, seed, gradients)
        # Of any pair of ranks: those of the two axes are never the same.
        self._rows.errors = self._columns.errors
        self._is_same_ranks = False

    @property
    def measured(self) -> tuple[Measured, ...]:
        """What each finished epoch showed, if the schedule goes by it."""
        return self._coder.measured

    def start_epoch(self, epoch: int, step: int) -> None:
        """Moves on; all ranks call it together."""
        self._coder.start_epoch(epoch, step)
        self._rows.errors = self._columns.errors

    def begin(self, *, is_training: bool) -> None:
        self._coder.begin(is_training=is_training)

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        place, rates = self._coder.next_place(layer)
        gathering = _Gathering(self._columns.route(place, rates), self._columns.exchange.num_received)
        return gathering, _Scattering(self._rows.route(place, rates), self._lists)

    def state(self) -> dict[str, Any]:
        """Returns what says for whom `tensors` are."""
        return self._coder.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave, before `load_tensors`."""
        self._coder.load_state(state)
        self._is_same_ranks = state.get("num_ranks") == self._rows.communicator.num_ranks

    def tensors(self) -> dict[str, Tensor]:
        """Returns what is remembered, of all ranks on rank 0; all ranks call it together."""
        tensors = self._coder.tensors()
        self._rows.errors = self._columns.errors
        if self._rows.codec.has_memory:
            communicator = self._rows.communicator
            with communicator.ledger.phase("checkpoint"):
                of_ranks = gather_unequal_tensors(communicator, self._rows.tensors())
            tensors |= {
                f"rows.{rank}.{name}": value for rank, own in enumerate(of_ranks) for name, value in own.items()
            }
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `tensors` gave on rank 0. On another number of ranks, memories begin anew."""
        self._coder.load_tensors(tensors)
        own = f"rows.{self._rows.communicator.rank}."
        if self._is_same_ranks:
            self._rows.load_tensors(
                {name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)}
            )


@final
class _Gathering(Axis):
    """Rows go forward along a coded route, gradients come back."""

    def __init__(self, route: Route, num_others: int) -> None:
        self._route = route
        self._num_others = num_others

    @property
    def num_others(self) -> int:
        return self._num_others

    def start_expand(self, x: Tensor, widest: int) -> Arrival:
        return self._route.start(x)

    def start_fold(self, partial: Tensor, widest: int) -> Arrival:
        return self._route.start_back(partial)

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        self._route.add_back(arrived, into)


@final
class _Scattering(Axis):
    """Sums go forward along a coded route, gradients of rows come back.

    Args:
        lists: which rows of the own block the sums belong to.
    """

    def __init__(self, route: Route, lists: RowExchange) -> None:
        self._route = route
        self._lists = lists

    @property
    def num_others(self) -> int:
        return self._lists.num_received

    def start_expand(self, x: Tensor, widest: int) -> Arrival:
        return self._route.start_back(x.detach().index_select(0, self._lists.send_rows))

    def start_fold(self, partial: Tensor, widest: int) -> Arrival:
        return self._route.start(partial)

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        self._lists.add_back(arrived, into)


@final
class BookedCoder:
    """Books what products would move, coded as planned, and notes them; brings nothing.

    Args:
        plan: the rates; None books rows as they are.
        epoch: whose rates.
        measured: what schedules go by.
    """

    def __init__(
        self, cut: GridCut, ledger: Ledger, plan: RatePlan | None, epoch: int, measured: tuple[Measured, ...]
    ) -> None:
        self._cut = cut
        self._ledger = ledger
        self._plan = plan
        self._epoch = epoch
        self._measured = measured
        self.exchanges: Exchanges = ([], [])
        """Those of the last training step, along each axis."""

    def begin(self, *, is_training: bool) -> None:
        if is_training:
            self.exchanges = ([], [])

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        codec: Codec = Identity() if self._plan is None else self._plan.codec
        rates = np.ones(self._cut.counts.shape)
        if self._plan is not None:
            rates = self._plan.rates(self._epoch, layer, self._measured)
        columns, rows = (
            _Tariff(layer, codec, counts, rates, noted)
            for counts, noted in zip((self._cut.columns, self._cut.rows), self.exchanges, strict=True)
        )
        return _Booked(columns, self._ledger, forward="expand"), _Booked(rows, self._ledger, forward="fold")


@final
@dataclass(frozen=True, eq=False)
class _Tariff:
    """What one layer's messages cost along one axis."""

    layer: int
    codec: Codec
    counts: Counts
    rates: Rates
    noted: list[Exchanged]

    def book(self, rows: Tensor, direction: Direction, ledger: Ledger) -> None:
        one = Exchanged(self.layer, direction, rows.shape[1], rows.dtype)
        self.noted.append(one)
        one.count(ledger, self.codec, self.counts, self.rates)


@final
class _Booked(Axis):
    def __init__(self, tariff: _Tariff, ledger: Ledger, *, forward: Literal["expand", "fold"]) -> None:
        self._tariff = tariff
        self._ledger = ledger
        self._forward = forward

    @property
    def num_others(self) -> int:
        return 0

    def start_expand(self, x: Tensor, widest: int) -> Arrival:
        return self._book(x, "expand")

    def start_fold(self, partial: Tensor, widest: int) -> Arrival:
        return self._book(partial, "fold")

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def _book(self, rows: Tensor, step: str) -> Arrival:
        self._tariff.book(rows, "forward" if step == self._forward else "backward", self._ledger)
        return Arrived(rows.new_empty(0, rows.shape[1]))
