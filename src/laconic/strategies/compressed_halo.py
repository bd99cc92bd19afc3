"""Boundary rows are exchanged in every layer, through a codec; with `identity`, exactly (VARCO, arXiv 2406.17611)."""

from dataclasses import dataclass, field, replace
from typing import final

from torch import nn
from torch_geometric.nn import MessagePassing

from laconic.comm.codecs import Codec, parse_codec
from laconic.comm.codecs.identity import Identity
from laconic.comm.communicator import Communicator
from laconic.comm.schedules import Schedule, parse_schedule
from laconic.graph import Graph, Shard
from laconic.halo.aggregator import HaloAggregator
from laconic.halo.coder import HaloCoder, RatePlan, coded_exchange, costs_of
from laconic.halo.cut import Cut
from laconic.halo.gradients import SharedGradients
from laconic.halo.placement import ChunkMap, Placement, place
from laconic.halo.rehearsal import Rehearsal, rehearse
from laconic.halo.trial import check_layers, check_whole
from laconic.launch.agreement import check_agreement
from laconic.records import LedgerRecord
from laconic.store import Store
from laconic.strategies._checks import check_plain_model, check_schedule
from laconic.strategies._chunks import chunks_of
from laconic.strategies._placed import PlacedStrategy


@final
@dataclass(eq=False)
class CompressedHalo(PlacedStrategy[Placement, HaloCoder]):
    """Each rank owns a part of the nodes and gets what it lacks of its neighbours' rows, layer by layer.

    In training, rows and their gradients go through the codec; evaluation is exact.

    Args:
        codec: how rows are written for the way; identity changes nothing. `laconic.comm.codecs` has them all.
        schedule: at which rate, epoch by epoch. `laconic.comm.schedules` has them all.
        partitioner: cuts a graph that does not come from a store.
        raw_last: the last convolution's messages go as they are, as in the paper.
    """

    codec: str = "identity"
    schedule: str = "constant"
    partitioner: str = "metis"
    raw_last: bool = False
    _cut: Cut | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_schedule(self.codec, self.schedule)

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        chunk_map = ChunkMap.even(chunks.num_nodes, communicator.num_ranks)
        own = [chunks.open(number) for number in chunk_map.chunks_of(communicator.rank)]
        self._placement = place(own, chunk_map, communicator)
        if communicator.num_ranks > 1:
            settings = {"codec": self.codec, "schedule": self.schedule, "raw_last": str(self.raw_last)}
            check_agreement(communicator, settings)
        if self._is_coded:
            self._cut = Cut.of(self._placement)
        return self._placement.shard

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_layers(model)
        check_whole(model, shard)

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        rehearsal = rehearse(model, self.placement)
        if not self._is_coded:
            return [replace(row, epoch=epoch) if row.epoch else row for row in rehearsal.records]
        measured = () if self._coder is None else self._coder.measured
        return rehearsal.coded(self._plan(model, rehearsal), epoch, measured, self.placement.communicator.rank)

    @property
    def _members(self) -> tuple[Codec, Schedule]:
        return parse_codec(self.codec), parse_schedule(self.schedule)

    @property
    def _is_coded(self) -> bool:
        return not isinstance(parse_codec(self.codec), Identity) and self.placement.communicator.num_ranks > 1

    def _plan(self, model: nn.Module, rehearsal: Rehearsal | None = None) -> RatePlan:
        assert self._cut is not None
        codec, schedule = self._members
        num_layers = sum(isinstance(module, MessagePassing) for module in model.modules())
        raw_layers = frozenset([num_layers - 1] if self.raw_last else [])
        costs = None
        if schedule.needs_costs:
            rehearsal = rehearsal or rehearse(model, self.placement)
            costs = costs_of(codec, self._cut.counts, rehearsal.exchanges, raw_layers)
        first_rate = codec.first_rate(self._cut.remote_share, self._cut.degree)
        return RatePlan(codec, schedule, self._cut.counts, raw_layers, first_rate, costs)

    def _build_coder(self, model: nn.Module, seed: int, gradients: SharedGradients) -> HaloCoder | None:
        if not self._is_coded:
            return None
        rehearsal = rehearse(model, self.placement)
        plan = self._plan(model, rehearsal)
        plan.check(rehearsal.exchanges)
        return HaloCoder(coded_exchange(self.placement, plan.codec, plan.counts), plan, seed, gradients)

    def _build_aggregator(self) -> HaloAggregator:
        return HaloAggregator(self.placement, self._coder)
