"""Boundary rows are exchanged in every layer, through a codec; with `identity`, exactly (VARCO, arXiv 2406.17611)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from laconic.attach import Attachment
from laconic.comm.codecs import Codec, parse_codec
from laconic.comm.codecs.identity import Identity
from laconic.comm.communicator import Communicator
from laconic.comm.new_rows import NewRows
from laconic.comm.schedules import Schedule, parse_schedule
from laconic.errors import CheckpointError
from laconic.gradients.shared import SharedGradients
from laconic.graph import Graph, GraphChange, Shard
from laconic.launching.agreement import check_agreement
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import HaloAggregator
from laconic.sharded.change import Changed, change_placement
from laconic.sharded.coder import HaloCoder, RatePlan, coded_exchange, costs_of, spent_before
from laconic.sharded.cut import Cut
from laconic.sharded.placement import ChunkMap, Placement, place
from laconic.sharded.rehearsal import Rehearsal, rehearse
from laconic.sharded.trial import check_shared
from laconic.store import Store
from laconic.strategies._checks import check_codable, check_plain_model, check_schedule
from laconic.strategies._chunks import chunks_of
from laconic.strategies._placed import PlacedStrategy


@final
@dataclass(eq=False)
class Exchange(PlacedStrategy[Placement, HaloCoder]):
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
    _aggregator: HaloAggregator | None = field(default=None, init=False, repr=False)
    _num_classes: int = field(default=0, init=False, repr=False)
    _prepare: Callable[[Tensor], Tensor] | None = field(default=None, init=False, repr=False)
    # From which epoch on the graph is what it is now, and what messages before it cost.
    _past: tuple[int, int] = field(default=(1, 0), init=False, repr=False)

    def __post_init__(self) -> None:
        check_schedule(self.codec, self.schedule)

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        chunk_map = ChunkMap.even(chunks.num_nodes, communicator.num_ranks)
        own = [chunks.open(number) for number in chunk_map.chunks_of(communicator.rank)]
        self._placement = place(own, chunk_map, communicator)
        self._num_classes = (source if isinstance(source, Graph) else source.manifest).num_classes
        if communicator.num_ranks > 1:
            settings = {"codec": self.codec, "schedule": self.schedule, "raw_last": str(self.raw_last)}
            check_agreement(communicator, settings)
        if self._is_coded:
            self._cut = Cut.of(self._placement)
        return self._placement.shard

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        self._prepare = prepare
        return super().with_features(x, prepare)

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_codable(self.codec, shard, self.placement.communicator)
        check_shared(model, shard)

    def change(self, change: GraphChange) -> Shard:
        assert self._attachment is not None, "attach comes before the first change"
        assert self._aggregator is not None
        changed = change_placement(
            self.placement,
            change,
            self._num_classes,
            self._prepare or _as_it_is,
            keep_features=self._aggregator.uses_halo_features or self.placement.halo_x is not None,
        )
        if changed.placement is not self.placement:
            self._move_to(changed, self._attachment)
        return self.placement.shard

    def _move_to(self, changed: Changed, attachment: Attachment) -> None:
        coder, after = self._coder, changed.placement
        if coder is not None:
            assert self._cut is not None
            # What lies between ranks is counted anew; what the schedule began with stays.
            cut = replace(self._cut, counts=Cut.of(after).counts)
            rehearsal = rehearse(attachment.model, after)
            coded = coded_exchange(after, self._members[0], cut.counts)
            coded.take_over(coder.coded, changed.kept_sent, changed.kept_received)
            past = (coder.next_epoch, self._spent(coder, coded.new, rehearsal))
            plan = self._plan_for(attachment.model, cut, past, rehearsal)
            if coder.next_epoch > 1:
                # A budget that does not pay for the graph as it will be is told while it is as it was. Before the first
                # epoch, changes may be those of a run that is continued, whose bytes `load_state` has still to tell.
                plan.check(rehearsal.exchanges)
            coder.change(coded, plan)
            self._cut, self._past = cut, past
        self._placement = after
        attachment.move_to(after.shard, self._build_aggregator())

    def _spent(self, coder: HaloCoder, new: NewRows | None, rehearsal: Rehearsal) -> int:
        """Returns what messages cost up to now, if the schedule goes by that."""
        if coder.plan.costs is None:
            return 0
        spent = spent_before(coder.plan, coder.next_epoch, coder.measured)
        if new is not None:
            # The first messages after a change, at most: new rows go as they are.
            row_bytes = sum(one.width * one.dtype.itemsize for one in rehearsal.exchanges)
            spent += int(new.counts.sum()) * row_bytes
        return spent

    def state(self) -> dict[str, Any]:
        version = self.placement.exchange.version
        changes = {"plan_version": version, "past": list(self._past)} if version else {}
        return {**changes, **super().state()}

    def load_state(self, state: dict[str, Any]) -> None:
        version, here = state.get("plan_version", 0), self.placement.exchange.version
        if version != here:
            raise CheckpointError(
                f"This state is of a graph that was changed {version} times, and here it was changed {here} times. "
                f"Make the same changes, in their order, after attach and before load_state."
            )
        super().load_state(state)
        if self._coder is not None and version:
            assert self._attachment is not None
            self._past = tuple(state["past"])
            self._coder.plan = self._plan(self._attachment.model)

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        rehearsal = rehearse(model, self.placement)
        if not self._is_coded:
            return [replace(row, epoch=epoch) if row.epoch else row for row in rehearsal.records]
        measured = () if self._coder is None else self._coder.measured
        plan = self._plan(model, rehearsal)
        new = None if self._coder is None else self._coder.new_rows(epoch)
        return rehearsal.coded(replace(plan, new=new), epoch, measured, self.placement.communicator.rank)

    def exact_traffic(self, model: nn.Module) -> list[LedgerRecord]:
        return rehearse(model, self.placement).records

    @property
    def _members(self) -> tuple[Codec, Schedule]:
        return parse_codec(self.codec), parse_schedule(self.schedule)

    @property
    def _is_coded(self) -> bool:
        return not isinstance(parse_codec(self.codec), Identity) and self.placement.communicator.num_ranks > 1

    def _plan(self, model: nn.Module, rehearsal: Rehearsal | None = None) -> RatePlan:
        assert self._cut is not None
        return self._plan_for(model, self._cut, self._past, rehearsal or rehearse(model, self.placement))

    def _plan_for(self, model: nn.Module, cut: Cut, past: tuple[int, int], rehearsal: Rehearsal) -> RatePlan:
        codec, schedule = self._members
        num_layers = sum(isinstance(module, MessagePassing) for module in model.modules())
        raw_layers = frozenset([num_layers - 1] if self.raw_last else [])
        costs = None
        if schedule.needs_costs:
            first_epoch, spent = past
            form = (codec, cut.counts, rehearsal.exchanges, raw_layers)
            costs = costs_of(*form, first_epoch=first_epoch, spent=spent)
        first_rate = codec.first_rate(cut.remote_share, cut.degree)
        return RatePlan(codec, schedule, cut.counts, raw_layers, first_rate, costs)

    def _build_coder(self, model: nn.Module, seed: int, gradients: SharedGradients) -> HaloCoder | None:
        if not self._is_coded:
            return None
        rehearsal = rehearse(model, self.placement)
        plan = self._plan(model, rehearsal)
        plan.check(rehearsal.exchanges)
        return HaloCoder(coded_exchange(self.placement, plan.codec, plan.counts), plan, seed, gradients)

    def _build_aggregator(self) -> HaloAggregator:
        self._aggregator = HaloAggregator(self.placement, self._coder)
        return self._aggregator


def _as_it_is(x: Tensor) -> Tensor:
    return x
