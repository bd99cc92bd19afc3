"""HaloCoder: which codec and which rate the messages of a step have, and what schedules go by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs import Codec
from laconic.comm.codecs.base import Direction
from laconic.comm.coded_exchange import CodedExchange, Errors, Place
from laconic.comm.exchange import Route, RowExchange
from laconic.comm.gather import gather_unequal_tensors
from laconic.comm.ledger import Ledger
from laconic.comm.message_sizes import CODABLE, Counts, Rates, any_coded, exchange_bytes, message_bytes
from laconic.comm.schedules import Costs, Line, Measured, RateContext, Schedule
from laconic.comm.schedules.base import OfLine
from laconic.comm.traffic import all_gather_traffic, all_to_all_traffic
from laconic.errors import ConfigError
from laconic.gradients.shared import SharedGradients
from laconic.sharded.measured_tensors import from_tensors, to_tensors
from laconic.sharded.placement import Placement

# Shapes: P ranks


class Coder(Protocol):
    """What a HaloAggregator asks for the way of each exchange in training."""

    def begin(self, *, is_training: bool) -> None: ...

    def route(self, layer: int) -> Route: ...


@final
@dataclass(frozen=True)
class Exchanged:
    """One exchange of a training step."""

    layer: int
    direction: Direction
    width: int
    dtype: torch.dtype

    def num_bytes(self, codec: Codec, counts: Counts, rates: Rates, new: Counts | None = None) -> Counts:
        """Returns the bytes from each rank to each, (P, P); `new` rows go as they are."""
        if self.dtype not in CODABLE:
            rates = np.ones_like(rates)
        return exchange_bytes(codec, counts, rates, self.width, self.dtype.itemsize, self.direction, new)

    def count(self, ledger: Ledger, codec: Codec, counts: Counts, rates: Rates, new: Counts | None = None) -> None:
        """Counts what the ledger's rank sends and receives; of codecs without a fixed size, the most."""
        sizes, rank = self.num_bytes(codec, counts, rates, new), ledger.rank
        ledger.count("all_to_all", *all_to_all_traffic(rank, sizes[rank].tolist(), sizes[:, rank].tolist()))
        form = (self.width, self.dtype.itemsize)
        known = counts if new is None else counts - new
        if not codec.is_fixed_size and self.dtype in CODABLE and any_coded(codec, known, rates, *form):
            ledger.count("all_gather", *all_gather_traffic(len(sizes), 8 * len(sizes)))


@final
@dataclass(frozen=True)
class RatePlan:
    """The rates of a run: a schedule, and what it goes by.

    Args:
        codec, schedule: as set.
        counts: rows from each rank to each, (P, P).
        raw_layers: layers that go as they are.
        first_rate: what the graph's cut suggests to begin with.
        costs: of all lines; None if the schedule does not ask.
        new: how many of the rows are new and go as they are, (P, P); None: none.
    """

    codec: Codec
    schedule: Schedule
    counts: Counts
    raw_layers: frozenset[int]
    first_rate: float
    costs: Costs | None = None
    new: Counts | None = None

    def rates(self, epoch: int, layer: int, measured: tuple[Measured, ...]) -> Rates:
        """Returns the rates of a layer's messages from each rank to each, (P, P); equal on all ranks."""
        rates = np.ones(self.counts.shape)
        if layer in self.raw_layers:
            return rates
        for sender, receiver in zip(*np.nonzero(self.counts), strict=True):
            line = Line(layer, int(sender), int(receiver))
            context = RateContext(epoch, *line, self.costs, measured[: epoch - 1], self.first_rate)
            rates[sender, receiver] = self.schedule.rate(context)
        return rates

    def check(self, exchanges: list[Exchanged]) -> None:
        """Raises ConfigError, the same on all ranks, if the schedule cannot be kept to in a step of these exchanges."""
        widest = max((one.width for one in exchanges if one.layer not in self.raw_layers), default=0)
        if self.schedule.largest > widest > 0:
            raise ConfigError(
                f"A rate of {self.schedule.largest:g} is above the width of the widest row that is exchanged, "
                f"{widest}: no message can be less than one column. Use a rate of {widest} at most, or a wider model."
            )
        if self.costs is not None:
            self.schedule.check_costs(self.costs, self.first_rate)


def spent_before(plan: RatePlan, epoch: int, measured: tuple[Measured, ...]) -> int:
    """Returns what the lines of a plan cost in all epochs before `epoch`."""
    costs = plan.costs
    assert costs is not None
    spent = costs.spent
    for past in range(costs.first_epoch, epoch):
        rates = {layer: plan.rates(past, layer, measured) for layer in {line.layer for line in costs.lines}}
        spent += sum(costs.num_bytes(line, rates[line.layer][line.sender, line.receiver]) for line in costs.lines)
    return spent


def costs_of(
    codec: Codec,
    counts: Counts,
    exchanges: list[Exchanged],
    raw_layers: frozenset[int],
    *,
    first_epoch: int = 1,
    spent: int = 0,
) -> Costs:
    """Returns what the lines of an epoch cost, given its exchanges in order.

    Args:
        first_epoch, spent: where the graph has changed: from which epoch on, and what was sent before.
    """
    by_layer: dict[int, list[Exchanged]] = {}
    for one in exchanges:
        by_layer.setdefault(one.layer, []).append(one)
    pairs = [(int(sender), int(receiver)) for sender, receiver in zip(*np.nonzero(counts), strict=True)]

    def num_bytes(line: Line, rate: float) -> int:
        num_rows = int(counts[line.sender, line.receiver])
        rate = 1.0 if line.layer in raw_layers else rate
        return sum(
            message_bytes(codec, num_rows, one.width, rate, one.dtype.itemsize, one.direction)
            for one in by_layer[line.layer]
        )

    lines = tuple(Line(layer, *pair) for layer in by_layer for pair in pairs)
    return Costs(lines, num_bytes, first_epoch, spent)


def coded_exchange(placement: Placement, codec: Codec, counts: Counts) -> CodedExchange:
    """Returns the exchange of halo rows through a codec, given the rows that go from each rank to each, (P, P)."""
    shard, exchange = placement.shard, placement.exchange
    assert shard.halo_ids is not None
    sent_ids = shard.node_ids[exchange.send_rows].numpy()
    return CodedExchange(exchange, codec, counts, sent_ids, shard.halo_ids.numpy())


@final
class HaloCoder:
    """Codes the messages of one run.

    Args:
        coded: the exchange.
        plan: the rates.
        seed: of the run.
        gradients: where loss and gradient are read, if the schedule goes by them.
    """

    def __init__(self, coded: CodedExchange, plan: RatePlan, seed: int, gradients: SharedGradients) -> None:
        self.coded = coded
        self.plan = plan
        self._seed = seed
        self._gradients = gradients
        self._epoch, self._step = 0, 0
        self._is_under_way = True
        self._calls: dict[int, int] = {}
        self._rates: dict[int, Rates] = {}
        self._is_same_ranks = False
        self.measured: tuple[Measured, ...] = ()
        """What each finished epoch showed, if the schedule goes by it."""
        gradients.is_measured = plan.schedule.needs_measured
        if plan.schedule.needs_measured:
            coded.errors = {}

    def start_epoch(self, epoch: int, step: int) -> None:
        """Moves on; all ranks call it together."""
        self._measure()
        self._epoch, self._step, self._rates = epoch, step - 1, {}
        self._is_under_way = False

    def begin(self, *, is_training: bool) -> None:
        """Told when a forward pass begins."""
        self._step += is_training
        self._is_under_way |= is_training
        self._calls = {}

    def route(self, layer: int) -> Route:
        """Returns the way of the next exchange of a layer in training."""
        return self.coded.route(*self.next_place(layer))

    def next_place(self, layer: int) -> tuple[Place, Rates]:
        """Returns where in the run the next exchange of a layer is, and at which rates it goes."""
        call = self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        if layer not in self._rates:
            self._rates[layer] = self.plan.rates(self._epoch, layer, self.measured)
        return Place(self._seed, self._epoch, self._step, layer, call), self._rates[layer]

    @property
    def next_epoch(self) -> int:
        """The epoch of the next step, if the one that is under way has had its steps."""
        return self._epoch + self._is_under_way

    def new_rows(self, epoch: int) -> Counts | None:
        """Returns how many rows from each rank to each will go as they are in an epoch, being new, (P, P)."""
        pending = self.coded.pending
        return pending.counts if pending is not None and epoch == self.next_epoch else None

    def change(self, coded: CodedExchange, plan: RatePlan) -> None:
        """Goes on with another exchange and its rates; the schedule does not begin anew. All ranks call it together."""
        self._measure()
        if self.coded.errors is not None:
            coded.errors = {}
        self.coded, self.plan = coded, plan

    def _measure(self) -> None:
        """Adds up what the epoch that has ended showed, over all ranks, if the schedule goes by it."""
        errors = self.coded.errors
        if errors is None or not self._rates:
            return
        communicator = self.coded.communicator
        layers, peers = sorted(self._rates), range(communicator.num_ranks)
        own = [[vars(errors.get((layer, peer), Errors())).values() for peer in peers] for layer in layers]
        with communicator.ledger.phase("records"):
            told = communicator.all_gather(torch.tensor([[list(one) for one in row] for row in own]).double())
        costs, pairs = self.plan.costs, list(zip(*np.nonzero(self.plan.counts), strict=True))
        lines = {
            Line(layer, int(sender), int(receiver)): OfLine(
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
        self.coded.errors, self._rates = {}, {}

    def state(self) -> dict[str, Any]:
        """Returns what says for whom `tensors` are."""
        return {"num_ranks": self.coded.communicator.num_ranks, "next_epoch": self.next_epoch}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave, before `load_tensors`."""
        self._is_same_ranks = state.get("num_ranks") == self.coded.communicator.num_ranks
        self._epoch = state.get("next_epoch", 1) - 1

    def tensors(self) -> dict[str, Tensor]:
        """Returns what is remembered, of all ranks on rank 0; all ranks call it together."""
        self._measure()
        tensors = to_tensors(self.measured)
        if self._gradients.last_gradient is not None:
            tensors["gradient"] = self._gradients.last_gradient
        if self.coded.codec.has_memory:
            communicator = self.coded.communicator
            with communicator.ledger.phase("checkpoint"):
                of_ranks = gather_unequal_tensors(communicator, self.coded.tensors())
            tensors |= {f"{rank}.{name}": value for rank, own in enumerate(of_ranks) for name, value in own.items()}
        return tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `tensors` gave on rank 0. On another number of ranks, memories begin anew."""
        self.measured = from_tensors(tensors, with_lines=self._is_same_ranks)
        self._gradients.last_gradient = tensors.get("gradient")
        own = f"{self.coded.communicator.rank}."
        if self._is_same_ranks:
            self.coded.load_tensors(
                {name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)}
            )


@final
class Recorder:
    """Notes the exchanges of a rehearsed step, which go as they are."""

    def __init__(self, exchange: RowExchange) -> None:
        self._exchange = exchange
        self.exchanges: list[Exchanged] = []

    def begin(self, *, is_training: bool) -> None:
        """Needs nothing."""

    def route(self, layer: int) -> Route:
        return _Recorded(self._exchange, self.exchanges, layer)


@final
class _Recorded:
    def __init__(self, exchange: RowExchange, exchanges: list[Exchanged], layer: int) -> None:
        self.communicator = exchange.communicator
        self.num_owned = exchange.num_owned
        self.add_back = exchange.add_back
        self._exchange = exchange
        self._exchanges = exchanges
        self._layer = layer

    def start(self, x: Tensor) -> Any:
        self._exchanges.append(Exchanged(self._layer, "forward", x.shape[1:].numel(), x.dtype))
        return self._exchange.start(x)

    def start_back(self, halo: Tensor) -> Any:
        self._exchanges.append(Exchanged(self._layer, "backward", halo.shape[1:].numel(), halo.dtype))
        return self._exchange.start_back(halo)
