"""ExchangeCoder: in training, rows that are fetched and sums that are folded are written in fewer bytes.

A product has two exchanges, and each of them a way back. With D and E the codec's decode and encode, and the rows
between two ranks of width F:

    fetch    (N, F) -> (M, F)   D(E(x_u)) comes to the ranks that hold edges from u; backward, gradients of x_u return
    fold     (S, F) -> (N, F)   D(E(s_v)), partial sums, come to the owner of v; backward, gradients of out_v leave it

    out_v = sum over own u of a_vu x_u + sum over fetched u of a_vu D(E(x_u)) + sum over ranks q of D(E(s_qv))
    s_qv  = sum over the rows u of q of a_vu x_u

Each is a coded exchange of its own (`laconic.comm.coded_exchange`), both at the rates of one schedule.
"""

from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs import Codec
from laconic.comm.coded_exchange import CodedExchange, Errors, ExchangeKey
from laconic.comm.exchange import Route, RowExchange
from laconic.comm.gather import gather_unequal_tensors
from laconic.comm.message_sizes import Counts, Rates
from laconic.comm.pending import Pending
from laconic.comm.schedules import Line, Measured
from laconic.comm.schedules.base import LineMeasure
from laconic.errors import CheckpointError
from laconic.gradients.shared import SharedGradients
from laconic.sharded.axis import Axis, AxisExchange
from laconic.sharded.coding import Coding
from laconic.sharded.measured_tensors import from_tensors, to_tensors
from laconic.sharded.placement import Placement
from laconic.sharded.rates import RatePlan

# Shapes: N own rows, M rows of others, S partial sums for others, P ranks


class ProductCoder(Protocol):
    """What a ShardedAggregator asks for the ways of each product in training."""

    def begin(self, *, is_training: bool) -> None:
        """Told when a forward pass begins."""

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        """Returns how rows are fetched, and how sums are folded, in the next product of a layer."""


def coded_fetch(placement: Placement, codec: Codec, counts: Counts) -> CodedExchange:
    """Returns the exchange of fetched rows through a codec, given the rows that go from each rank to each, (P, P)."""
    columns = placement.columns
    assert isinstance(columns, AxisExchange)
    num_own, ids = placement.block.num_own, placement.column_ids
    return CodedExchange(columns.lists, codec, counts, ids[columns.lists.send_rows].numpy(), ids[num_own:].numpy())


def coded_fold(placement: Placement, codec: Codec, counts: Counts) -> CodedExchange:
    """Returns the exchange of partial sums through a codec, given the sums that go from each rank to each, (P, P)."""
    lists, num_own, ids = _lists(placement), placement.block.num_own, placement.row_ids
    # Sums go the way back of the rows' lists, all of them.
    others = torch.arange(lists.num_received)
    splits, version = lists.splits.reversed, lists.version
    sums = RowExchange(placement.communicator, others, splits, lists.num_received, version=version)
    return CodedExchange(sums, codec, counts, ids[num_own:].numpy(), ids[lists.send_rows].numpy())


@final
class ExchangeCoder:
    """Codes the messages of one run.

    Args:
        placement: whose rows and sums travel.
        coding: the settings, and how much travels.
        plan: the rates.
        seed: of the run.
        gradients: where loss and gradient are read, if the schedule goes by them.
    """

    def __init__(
        self, placement: Placement, coding: Coding, plan: RatePlan, seed: int, gradients: SharedGradients
    ) -> None:
        self._seed = seed
        self._gradients = gradients
        self._epoch, self._step = 0, 0
        self._is_under_way = True
        self._calls: dict[int, int] = {}
        self._rates: dict[int, Rates]
        self._is_same_ranks = False
        self.measured: tuple[Measured, ...] = ()
        """What each finished epoch showed, if the schedule goes by it."""
        gradients.is_measured = plan.schedule.needs_measured
        self._begin_memories(placement, coding, plan)

    def _begin_memories(self, placement: Placement, coding: Coding, plan: RatePlan) -> None:
        self.fetch = coded_fetch(placement, plan.codec, coding.cut.fetched)
        self.fold = coded_fold(placement, plan.codec, coding.cut.folded)
        self._fold_lists, self.coding, self.plan = _lists(placement), coding, plan
        self._rates = {}
        self._forget_errors()

    def start_epoch(self, epoch: int, step: int) -> None:
        """Moves on; all ranks call it together."""
        self._measure()
        self._epoch, self._step, self._rates = epoch, step - 1, {}
        self._is_under_way = False

    def begin(self, *, is_training: bool) -> None:
        self._step += is_training
        self._is_under_way |= is_training
        self._calls = {}

    def axes(self, layer: int) -> tuple[Axis, Axis]:
        call = self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        if layer not in self._rates:
            self._rates[layer] = self.plan.rates(self._epoch, layer, self.measured)
        at = (ExchangeKey(self._seed, self._epoch, self._step, layer, call), self._rates[layer])
        return _Fetching(self.fetch.route(*at), self.fetch.exchange), _Folding(self.fold.route(*at), self._fold_lists)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next step, if the one that is under way has had its steps."""
        return self._epoch + self._is_under_way

    def change(self, placement: Placement, coding: Coding, plan: RatePlan) -> None:
        """Goes on with other edges and their rates; all ranks call it together.

        The codec's memories begin anew; the schedule goes on.
        """
        self._measure()
        # Messages of late codecs that are still under way are for the lists before.
        for coded in (self.fetch, self.fold):
            for arriving in coded.under_way.values():
                arriving.wait()
        self._begin_memories(placement, coding, plan)

    def _forget_errors(self) -> None:
        # Of a pair of ranks, rows and sums count together.
        self.fetch.errors = self.fold.errors = {} if self.plan.schedule.needs_measured else None

    def _measure(self) -> None:
        """Adds up the errors of the epoch that has ended, over all ranks, if the schedule goes by them."""
        errors = self.fetch.errors
        if errors is None or not self._rates:
            return
        communicator = self.fetch.communicator
        layers, peers = sorted(self._rates), range(communicator.num_ranks)
        own = [[vars(errors.get((layer, peer), Errors())).values() for peer in peers] for layer in layers]
        with communicator.ledger.phase("records"):
            told = communicator.all_gather(torch.tensor([[list(one) for one in row] for row in own]).double())
        costs, pairs = self.plan.costs, list(zip(*np.nonzero(self.plan.counts), strict=True))
        lines = {
            Line(layer, int(sender), int(receiver)): LineMeasure(
                float(self._rates[layer][sender, receiver]), *told[sender, number, receiver].tolist()
            )
            for number, layer in enumerate(layers)
            for sender, receiver in pairs
        }
        num_bytes = 0 if costs is None else sum(costs.num_bytes(line, lines[line].rate) for line in costs.lines)
        shared = self._gradients
        measured = Measured(shared.loss, shared.gradient_norm, shared.gradient_change, num_bytes, lines)
        # Of an epoch that is measured again, having gone on after a change of the graph, the last counts.
        self.measured = (*self.measured[: max(self._epoch - 1, 0)], measured)
        self._rates = {}
        self._forget_errors()

    def state(self) -> dict[str, Any]:
        """Returns for whom `tensors` are."""
        return {
            "num_ranks": self.fetch.communicator.num_ranks,
            "next_epoch": self.next_epoch,
            "num_vectors": [int(self.fetch.counts.sum()), int(self.fold.counts.sum())],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back the result of `state`, before `load_tensors`."""
        self._is_same_ranks = state.get("num_ranks") == self.fetch.communicator.num_ranks
        here = [int(self.fetch.counts.sum()), int(self.fold.counts.sum())]
        # Versions before 0018 placed edges with their destinations and did not say how many rows that were.
        saved = state.get("num_vectors", [here[0], 0])
        if self._is_same_ranks and self.plan.codec.has_memory and saved != here:
            raise CheckpointError(
                f"The codec's memory in this checkpoint is of {saved[0]} rows and {saved[1]} partial sums between "
                f"ranks, and here there are {here[0]} and {here[1]}: edges lie elsewhere. Go on with the settings of "
                f"that run; a run of an earlier version had edges=destination, reach=0."
            )
        self._epoch = state.get("next_epoch", 1) - 1

    def tensors(self) -> dict[str, Tensor]:
        """Returns the memories of all ranks on rank 0; all ranks call it together."""
        self._measure()
        tensors = to_tensors(self.measured)
        if self._gradients.last_gradient is not None:
            tensors["gradient"] = self._gradients.last_gradient
        if self.plan.codec.has_memory:
            communicator = self.fetch.communicator
            for prefix, coded in self._coded.items():
                with communicator.ledger.phase("checkpoint"):
                    of_ranks = gather_unequal_tensors(communicator, coded.tensors())
                tensors |= {
                    f"{prefix}{rank}.{name}": value for rank, own in enumerate(of_ranks) for name, value in own.items()
                }
        return tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back the result of `tensors` on rank 0. On another number of ranks, memories begin anew."""
        self.measured = from_tensors(tensors, with_lines=self._is_same_ranks)
        self._gradients.last_gradient = tensors.get("gradient")
        if self._is_same_ranks:
            for prefix, coded in self._coded.items():
                own = f"{prefix}{coded.communicator.rank}."
                coded.load_tensors(
                    {name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)}
                )

    @property
    def _coded(self) -> dict[str, CodedExchange]:
        """The two exchanges, by how names of their memories begin in a checkpoint; no sums where none are folded."""
        return {"": self.fetch} | ({"rows.": self.fold} if self.fold.counts.any() else {})


def _lists(placement: Placement) -> RowExchange:
    rows = placement.rows
    assert isinstance(rows, AxisExchange)
    return rows.lists


class _CodedAxis(Axis):
    """An axis whose messages go along a coded route.

    Args:
        lists: who sends which of the own rows to whom when rows are expanded.
    """

    def __init__(self, route: Route, lists: RowExchange) -> None:
        self._route = route
        self._lists = lists

    @property
    def num_others(self) -> int:
        return self._lists.num_received

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        self._lists.add_back(arrived, into)


@final
class _Fetching(_CodedAxis):
    """Rows go forward, gradients come back."""

    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        return self._route.start(x)

    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        return self._route.start_back(partial)


@final
class _Folding(_CodedAxis):
    """Sums go forward, gradients of rows come back."""

    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        return self._route.start_back(x.detach().index_select(0, self._lists.send_rows))

    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        return self._route.start(partial)
