"""Coding: a codec, a schedule of its rates, and what the rates go by.

message of layer l from p to q in epoch t = E(rows_pq, r),    r = schedule(t, l, p, q; costs, errors measured)
"""

from dataclasses import dataclass
from typing import final

from torch import nn
from torch_geometric.nn import MessagePassing

from laconic.comm.codecs import Codec, is_coded, parse_codec
from laconic.comm.schedules import Schedule, parse_schedule
from laconic.sharded.cut import Cut
from laconic.sharded.placement import Placement
from laconic.sharded.rates import Exchanged, RatePlan, costs_of


@final
@dataclass(frozen=True, eq=False)
class Coding:
    """How the messages of a run are written.

    Args:
        codec, schedule: as set.
        cut: how many rows and sums travel between ranks.
        raw_last: the last convolution's messages go as they are.
        past: from which epoch on the graph is as it is now, and the bytes of messages before it.
    """

    codec: Codec
    schedule: Schedule
    cut: Cut
    raw_last: bool = False
    past: tuple[int, int] = (1, 0)

    @staticmethod
    def of(placement: Placement, codec: str, schedule: str, *, raw_last: bool = False) -> "Coding | None":
        """Returns the coding of these settings, or None where messages go as they are; all ranks call it together."""
        if not is_coded(codec, placement.communicator.num_ranks):
            return None
        return Coding(parse_codec(codec), parse_schedule(schedule), Cut.of(placement), raw_last)

    def rate_plan(self, model: nn.Module, exchanges: list[Exchanged]) -> RatePlan:
        """Returns the rates of a run, given the exchanges of one training step."""
        num_layers = sum(isinstance(module, MessagePassing) for module in model.modules())
        raw_layers = frozenset([num_layers - 1] if self.raw_last else [])
        costs, (first_epoch, spent) = None, self.past
        if self.schedule.needs_costs:
            costs = costs_of(self.codec, self.cut, exchanges, raw_layers, first_epoch=first_epoch, spent=spent)
        first_rate = self.codec.first_rate(self.cut.remote_share, self.cut.degree)
        return RatePlan(self.codec, self.schedule, self.cut.counts, raw_layers, first_rate, costs)
