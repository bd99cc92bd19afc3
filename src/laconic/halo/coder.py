"""HaloCoder: which codec and which rate the messages of a step have, and what schedules go by."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs import Codec
from laconic.comm.codecs.base import Direction
from laconic.comm.coded_exchange import (
    CODABLE,
    CodedExchange,
    Counts,
    Errors,
    Place,
    Rates,
    any_coded,
    exchange_bytes,
    message_bytes,
)
from laconic.comm.exchange import Route, RowExchange
from laconic.comm.gather import gather_texts
from laconic.comm.ledger import Ledger
from laconic.comm.schedules import Costs, Line, Measured, RateContext, Schedule
from laconic.comm.traffic import all_gather_traffic, all_to_all_traffic
from laconic.halo.gradients import SharedGradients
from laconic.halo.placement import Placement

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

    def num_bytes(self, codec: Codec, counts: Counts, rates: Rates) -> Counts:
        """Returns the bytes from each rank to each, (P, P)."""
        if self.dtype not in CODABLE:
            rates = np.ones_like(rates)
        return exchange_bytes(codec, counts, rates, self.width, self.dtype.itemsize, self.direction)

    def count(self, ledger: Ledger, codec: Codec, counts: Counts, rates: Rates) -> None:
        """Counts what the ledger's rank sends and receives; of codecs without a fixed size, the most."""
        sizes, rank = self.num_bytes(codec, counts, rates), ledger.rank
        ledger.count("all_to_all", *all_to_all_traffic(rank, sizes[rank].tolist(), sizes[:, rank].tolist()))
        form = (self.width, self.dtype.itemsize)
        if not codec.is_fixed_size and self.dtype in CODABLE and any_coded(codec, counts, rates, *form):
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
    """

    codec: Codec
    schedule: Schedule
    counts: Counts
    raw_layers: frozenset[int]
    first_rate: float
    costs: Costs | None = None

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


def costs_of(codec: Codec, counts: Counts, exchanges: list[Exchanged], raw_layers: frozenset[int]) -> Costs:
    """Returns what the lines of an epoch cost, given its exchanges in order."""
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

    return Costs(tuple(Line(layer, *pair) for layer in by_layer for pair in pairs), num_bytes)


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
        self._coded = coded
        self._plan = plan
        self._seed = seed
        self._gradients = gradients
        self._epoch, self._step = 0, 0
        self._calls: dict[int, int] = {}
        self._rates: dict[int, Rates] = {}
        self.measured: tuple[Measured, ...] = ()
        """What each finished epoch showed, if the schedule goes by it."""
        gradients.is_measured = plan.schedule.needs_measured
        if plan.schedule.needs_measured:
            coded.errors = {}

    def start_epoch(self, epoch: int, step: int) -> None:
        """Moves on; all ranks call it together."""
        self._measure()
        self._epoch, self._step, self._rates = epoch, step - 1, {}

    def begin(self, *, is_training: bool) -> None:
        """Told when a forward pass begins."""
        self._step += is_training
        self._calls = {}

    def route(self, layer: int) -> Route:
        """Returns the way of the next exchange of a layer in training."""
        call = self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        if layer not in self._rates:
            self._rates[layer] = self._plan.rates(self._epoch, layer, self.measured)
        return self._coded.route(Place(self._seed, self._epoch, self._step, layer, call), self._rates[layer])

    def _measure(self) -> None:
        """Adds up what the epoch that has ended showed, over all ranks, if the schedule goes by it."""
        errors = self._coded.errors
        if errors is None or not self._rates:
            return
        communicator = self._coded.communicator
        layers = sorted(self._rates)
        own = [value for layer in layers for value in vars(errors.get(layer, Errors())).values()]
        with communicator.ledger.phase("records"):
            sums = communicator.all_reduce(torch.tensor(own, dtype=torch.float64)).view(-1, 2)
        costs = self._plan.costs
        rates = {layer: float(self._rates[layer].max()) for layer in layers}
        measured = Measured(
            loss=self._gradients.loss,
            gradient_norm=self._gradients.gradient_norm,
            errors={
                layer: float(lost / sent) if sent else 0.0 for layer, (lost, sent) in zip(layers, sums, strict=True)
            },
            rates=rates,
            num_bytes=0 if costs is None else sum(costs.num_bytes(line, rates[line.layer]) for line in costs.lines),
        )
        self.measured += (measured,)
        self._coded.errors, self._rates = {}, {}

    def state(self) -> dict[str, Any]:
        """Returns what is remembered, of all ranks, on rank 0; all ranks call it together."""
        self._measure()
        state: dict[str, Any] = {}
        if self._plan.schedule.needs_measured:
            state["measured"] = [asdict(one) for one in self.measured]
        if self._coded.codec.has_memory:
            own = {" ".join(map(str, key)): _write(memory.state()) for key, memory in self._coded.memories.items()}
            with self._coded.communicator.ledger.phase("checkpoint"):
                state["memories"] = gather_texts(self._coded.communicator, json.dumps(own))
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave. On another number of ranks, memories begin anew."""
        self.measured = tuple(
            Measured(
                **{
                    **one,
                    "errors": {int(layer): value for layer, value in one["errors"].items()},
                    "rates": {int(layer): value for layer, value in one["rates"].items()},
                }
            )
            for one in state.get("measured", [])
        )
        texts = state.get("memories", [])
        if len(texts) != self._coded.communicator.num_ranks:
            return
        for name, values in json.loads(texts[self._coded.communicator.rank]).items():
            layer, call, direction, end, peer = name.split()
            place = Place(self._seed, 0, 0, int(layer), int(call))
            self._coded.memory(place, direction, end, int(peer)).load_state(_read(values))


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


def _write(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns tensors as values that JSON can write; numbers keep every bit."""
    return {
        name: [str(tensor.numpy().dtype), list(tensor.shape), base64.b64encode(tensor.numpy().tobytes()).decode()]
        for name, tensor in tensors.items()
    }


def _read(values: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype).reshape(shape).copy())
        for name, (dtype, shape, text) in values.items()
    }
