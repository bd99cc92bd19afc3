"""Workers of ranks that hold a placement each: losses and gradients are shared, messages may be coded."""

from typing import Any

from torch import Tensor

from laconic.attach import attach
from laconic.attach.aggregator import Aggregator
from laconic.gradients.shared import SharedGradients, share_gradients
from laconic.gradients.worker import Worker
from laconic.graph import Shard
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.coder import ExchangeCoder
from laconic.sharded.coding import Coding
from laconic.sharded.edge_placement import with_edges_at
from laconic.sharded.hops import with_hops
from laconic.sharded.placement import Placement, sharing_features
from laconic.sharded.trace import Traces


class PlacedWorker(Worker):
    """A worker of several ranks.

    Args:
        traces: of the model to train.
        placement: what this rank holds.
        gradients: of the model, shared by all ranks.
        shard: what the model is called on.
        aggregator: aggregates over the whole graph.
    """

    def __init__(
        self,
        traces: Traces,
        placement: Placement,
        gradients: SharedGradients,
        shard: Shard,
        aggregator: Aggregator,
        seed: int,
    ) -> None:
        super().__init__(attach(traces.model, shard, seed=seed, aggregator=aggregator))
        self.traces = traces
        self.placement = placement
        self._gradients = gradients
        if placement.communicator.num_ranks > 1:
            self.attachment.call_before_gradients(gradients.shared_pass.check)

    @property
    def num_train(self) -> int:
        return self.placement.num_train

    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        return self._gradients.share(total, weight)

    def exact_traffic(self) -> list[LedgerRecord]:
        """Returns the traffic without a codec; of edges between two ranks, that of halo exchange."""
        placement = self.placement
        if placement.is_covered or placement.hops:
            placement = with_edges_at(placement, "destination")
        return self.traces.of(placement).records(1)


class ShardedWorker(PlacedWorker):
    """Ranks take every step together, and rows and partial sums travel within it."""

    def __init__(self, traces: Traces, placement: Placement, coding: Coding | None, seed: int) -> None:
        plan = None
        if coding is not None:
            exchanges = traces.of(placement, is_coded=True).coded(coding.cut)
            plan = coding.rate_plan(traces.model, exchanges)
            # First: it may be refused, and then the model is left as it was.
            plan.check(exchanges)
        gradients = share_gradients(traces.model, placement.communicator)
        self.coder: ExchangeCoder | None = None
        if coding is not None and plan is not None:
            self.coder = ExchangeCoder(placement, coding, plan, seed, gradients)
        # Features are as they will stay: rows of others can come.
        shard = with_hops(placement.shard, placement.hops, placement.communicator.ledger)
        traces.carry_over(placement, shared := sharing_features(placement, shard))
        placement = shared
        self._aggregator = ShardedAggregator(placement, self.coder, shard=shard)
        super().__init__(traces, placement, gradients, shard, self._aggregator, seed)

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        if self.coder is not None:
            self.coder.start_epoch(epoch, step)
        return super().start_epoch(epoch, step)

    def state(self) -> dict[str, Any]:
        return {} if self.coder is None else self.coder.state()

    def load_state(self, state: dict[str, Any]) -> None:
        if self.coder is not None:
            self.coder.load_state(state)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.coder is None else self.coder.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        if self.coder is not None:
            self.coder.load_tensors(tensors)

    def predict_traffic(self, epoch: int = 1) -> list[LedgerRecord]:
        coding = None if self.coder is None else self.coder.coding
        return traffic_of(self.traces, self.placement, coding, epoch, self.coder)


def traffic_of(
    traces: Traces, placement: Placement, coding: Coding | None, epoch: int = 1, coder: ExchangeCoder | None = None
) -> list[LedgerRecord]:
    """Returns this rank's traffic of an epoch, through a codec if there is one.

    Args:
        coder: of a run under way, whose schedule may go by what it has measured.
    """
    trace = traces.of(placement, is_coded=coding is not None)
    if coding is None:
        return trace.records(epoch)
    plan = coding.rate_plan(traces.model, trace.coded(coding.cut))
    measured = () if coder is None else coder.measured
    return trace.coded_records(placement.communicator.rank, coding.cut, plan, epoch, measured)
