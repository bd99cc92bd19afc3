"""ChangingWorker: a worker whose graph may change between two steps. Edges are then placed again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

from torch import Tensor

from laconic.errors import CheckpointError
from laconic.graph import GraphChange, Shard
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.change import change_placement
from laconic.sharded.coder import ExchangeCoder
from laconic.sharded.coding import Coding
from laconic.sharded.cover import EdgePlace
from laconic.sharded.cut import Cut
from laconic.sharded.edge_placement import with_edges_at
from laconic.sharded.hops import with_hops
from laconic.sharded.placement import Placement, sharing_features
from laconic.sharded.rates import spent_before
from laconic.sharded.reach import with_reach
from laconic.sharded.trace import Traces
from laconic.sharded.worker import ShardedWorker


@final
class ChangingWorker(ShardedWorker):
    """Ranks on one axis, whose edges between ranks are placed anew when the graph has changed.

    Args:
        edges: where edges are placed again.
        num_classes: of the graph.
        prepare: does to features of new nodes what was done to those that are there.
    """

    def __init__(
        self,
        traces: Traces,
        placement: Placement,
        coding: Coding | None,
        seed: int,
        *,
        edges: EdgePlace,
        num_classes: int,
        prepare: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(traces, placement, coding, seed)
        self._edges = edges
        self._reach = len(placement.hops)
        self._num_classes = num_classes
        self._prepare = prepare

    @property
    def choice(self) -> str:
        """How neighbours are known, for people."""
        at = self._edges if self.placement.is_covered else "destination"
        return f"edges={at}, reach={len(self.placement.hops)}"

    def change(self, change: GraphChange) -> Shard:
        before = self.placement
        changed = change_placement(
            with_edges_at(before, "destination"),
            change,
            self._num_classes,
            self._prepare,
            keep_features=self._aggregator.uses_halo_features or before.halo_x is not None,
        )
        if not change.is_empty:
            after = with_reach(with_edges_at(changed, self._edges), self._reach)
            if self.coder is not None:
                self._change_coder(self.coder, after)
            shard = with_hops(after.shard, after.hops, after.communicator.ledger)
            self.placement = after = sharing_features(after, shard)
            self._aggregator = ShardedAggregator(after, self.coder, shard=shard)
            self.attachment.move_to(shard, self._aggregator)
        return self.shard

    def _change_coder(self, coder: ExchangeCoder, after: Placement) -> None:
        # What lies between ranks is counted anew; what the schedule began with stays.
        now = Cut.of(after)
        cut = replace(coder.coding.cut, fetched=now.fetched, folded=now.folded)
        exchanges = self.traces.of(after, is_coded=True).coded(cut)
        spent = spent_before(coder.plan, coder.next_epoch, coder.measured)
        coding = replace(coder.coding, cut=cut, past=(coder.next_epoch, spent))
        plan = coding.rate_plan(self.model, exchanges)
        if coder.next_epoch > 1:
            # A budget that does not pay for the graph as it will be is told while it is as it was. Before the first
            # epoch, changes may be those of a run that is continued, whose bytes `load_state` has still to tell.
            plan.check(exchanges)
        coder.change(after, coding, plan)

    def state(self) -> dict[str, Any]:
        version, changes = self.placement.exchange.version, {}
        if version:
            past = (1, 0) if self.coder is None else self.coder.coding.past
            changes = {"plan_version": version, "past": list(past)}
        return {**changes, **super().state()}

    def load_state(self, state: dict[str, Any]) -> None:
        version, here = state.get("plan_version", 0), self.placement.exchange.version
        if version != here:
            raise CheckpointError(
                f"This state is of a graph that was changed {version} times, and here it was changed {here} times. "
                f"Make the same changes, in their order, after attach and before load_state."
            )
        super().load_state(state)
        coder = self.coder
        if coder is not None and version:
            coder.coding = replace(coder.coding, past=tuple(state["past"]))
            exchanges = self.traces.of(self.placement, is_coded=True).coded(coder.coding.cut)
            coder.plan = coder.coding.rate_plan(self.model, exchanges)
