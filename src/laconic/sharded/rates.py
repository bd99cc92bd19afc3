"""RatePlan: at which rate each message of a run goes, and how many bytes that takes.

A *line* is the messages of one layer l from rank p to rank q. The schedule gives its rate r(l, p, q) from the epoch and
from what was measured before it. Rows that are fetched and partial sums that are folded between the same two ranks go
at the same rate:

    bytes of a line = sum over its exchanges e of B(rows_pq(e), w_e, r(l, p, q))

with B the codec's size of a message, rows_pq(e) the rows or sums of the exchange, and w_e their width. Rates are
matrices, (P, P), the same on all ranks; r = 1 goes as it is.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from laconic.comm.codecs import Codec
from laconic.comm.codecs.base import Direction
from laconic.comm.ledger import Ledger
from laconic.comm.message_sizes import CODABLE, Counts, Rates, any_coded, exchange_bytes, message_bytes
from laconic.comm.schedules import Costs, Line, Measured, RateContext, Schedule
from laconic.comm.traffic import all_gather_traffic, all_to_all_traffic
from laconic.errors import ConfigError
from laconic.sharded.cut import Cut, Way

# Shapes: P ranks


@final
@dataclass(frozen=True)
class Exchanged:
    """One exchange of a training step: rows that are fetched, or partial sums that are folded."""

    layer: int
    direction: Direction
    width: int
    dtype: torch.dtype
    way: Way = "fetch"

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
    """Returns the bytes of all messages before `epoch`; 0 if the schedule does not ask for costs."""
    costs = plan.costs
    if costs is None:
        return 0
    spent = costs.spent
    for past in range(costs.first_epoch, epoch):
        rates = {layer: plan.rates(past, layer, measured) for layer in {line.layer for line in costs.lines}}
        spent += sum(costs.num_bytes(line, rates[line.layer][line.sender, line.receiver]) for line in costs.lines)
    return spent


def costs_of(
    codec: Codec,
    cut: Cut,
    exchanges: list[Exchanged],
    raw_layers: frozenset[int],
    *,
    first_epoch: int = 1,
    spent: int = 0,
) -> Costs:
    """Returns the costs of the lines of an epoch, given its exchanges in order.

    Args:
        first_epoch, spent: where the graph has changed: from which epoch on, and the bytes that were sent before.
    """
    layers = list(dict.fromkeys(one.layer for one in exchanges))

    def num_bytes(line: Line, rate: float) -> int:
        rate = 1.0 if line.layer in raw_layers else rate
        return sum(
            message_bytes(codec, num_rows, one.width, rate, one.dtype.itemsize, one.direction)
            for one in exchanges
            for num_rows in [int(cut.of_way(one.way)[line.sender, line.receiver])]
            if one.layer == line.layer and num_rows
        )

    pairs = [(int(sender), int(receiver)) for sender, receiver in zip(*np.nonzero(cut.counts), strict=True)]
    return Costs(tuple(Line(layer, *pair) for layer in layers for pair in pairs), num_bytes, first_epoch, spent)
