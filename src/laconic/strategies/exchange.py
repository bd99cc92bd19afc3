"""Boundary rows are exchanged in every layer, through a codec; with `identity`, exactly (VARCO, arXiv 2406.17611)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from laconic.attach import Attachment
from laconic.comm.communicator import Communicator
from laconic.comm.new_rows import NewRows
from laconic.errors import CheckpointError
from laconic.graph import Graph, GraphChange, Shard
from laconic.launching.agreement import check_agreement
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import BlockMap
from laconic.sharded.change import Changed, change_placement
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.coder import ExchangeCoder, coded_fetch
from laconic.sharded.cut import Cut
from laconic.sharded.placement import place
from laconic.sharded.rates import Exchanged, RatePlan, spent_before
from laconic.sharded.rehearsal import exchanges_of_step
from laconic.sharded.trial import check_shared
from laconic.store import Store
from laconic.strategies._checks import check_codable, check_plain_model, check_schedule
from laconic.strategies._chunks import chunks_of
from laconic.strategies._placed import PlacedStrategy


@final
@dataclass(eq=False)
class Exchange(PlacedStrategy):
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
    _num_classes: int = field(default=0, init=False, repr=False)
    _prepare: Callable[[Tensor], Tensor] | None = field(default=None, init=False, repr=False)
    # From which epoch on the graph is what it is now, and what messages before it cost.
    _past: tuple[int, int] = field(default=(1, 0), init=False, repr=False)

    def __post_init__(self) -> None:
        check_schedule(self.codec, self.schedule)

    @property
    def coding(self) -> tuple[str, str]:
        return self.codec, self.schedule

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        chunk_map = ChunkMap.even(chunks.num_nodes, communicator.num_ranks)
        self._placement = place(chunks.open, BlockMap.one_axis(chunk_map), communicator)
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
            now = Cut.of(after)
            cut = replace(self._cut, fetched=now.fetched, folded=now.folded)
            exchanges = exchanges_of_step(attachment.model, after, cut)
            fetch = coded_fetch(after, self._members[0], cut.fetched)
            fetch.take_over(coder.fetch, changed.kept_sent, changed.kept_received)
            past = (coder.next_epoch, self._spent(coder, fetch.new, exchanges))
            plan = self._rate_plan(attachment.model, cut, exchanges, past=past)
            if coder.next_epoch > 1:
                # A budget that does not pay for the graph as it will be is told while it is as it was. Before the first
                # epoch, changes may be those of a run that is continued, whose bytes `load_state` has still to tell.
                plan.check(exchanges)
            coder.change(after, fetch, cut, plan)
            self._cut, self._past = cut, past
        self._placement = after
        self._aggregator = ShardedAggregator(after, coder)
        attachment.move_to(after.shard, self._aggregator)

    def _spent(self, coder: ExchangeCoder, new: NewRows | None, exchanges: list[Exchanged]) -> int:
        """Returns the bytes of messages up to now, if the schedule goes by them."""
        if coder.plan.costs is None:
            return 0
        spent = spent_before(coder.plan, coder.next_epoch, coder.measured)
        if new is not None:
            # The first messages after a change, at most: new rows go as they are.
            spent += int(new.counts.sum()) * sum(one.width * one.dtype.itemsize for one in exchanges)
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
            model = self._attachment.model
            assert self._cut is not None
            exchanges = exchanges_of_step(model, self.placement, self._cut)
            self._coder.plan = self._rate_plan(model, self._cut, exchanges)

    def _rate_plan(
        self,
        model: nn.Module,
        cut: Cut,
        exchanges: list[Exchanged],
        raw_layers: frozenset[int] = frozenset(),
        past: tuple[int, int] | None = None,
    ) -> RatePlan:
        num_layers = sum(isinstance(module, MessagePassing) for module in model.modules())
        raw_layers = frozenset([num_layers - 1] if self.raw_last else [])
        return super()._rate_plan(model, cut, exchanges, raw_layers, self._past if past is None else past)


def _as_it_is(x: Tensor) -> Tensor:
    return x
