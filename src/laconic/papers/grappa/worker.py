"""GrappaWorker: trains on the chunks that a rank holds in a super-epoch; neighbours beyond are missing.

Base chunks B_k of rank k stay; variable chunks V_k(s) change with the super-epoch s. The rank sees the edges among
B_k + V_k(s); neighbours beyond are missing, and `correction.py` makes up for them in the losses.
"""

from functools import cached_property
from typing import final

from torch import Tensor

from laconic.attach.aggregator import LocalAggregator
from laconic.cached.interval_worker import IntervalWorker
from laconic.cached.intervals import Intervals
from laconic.gradients.reductions import GradientReduction
from laconic.papers.grappa.correction import Correction
from laconic.papers.grappa.rehearsal import predict, trace_apart
from laconic.papers.grappa.sweeper import Sweeper
from laconic.papers.grappa.sweeping import SweepPlan
from laconic.records import CoverageRecord, LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.placement import Placement
from laconic.sharded.trace import Trace, Traces


@final
class GrappaWorker(IntervalWorker):
    """A rank's own chunks and, super-epoch by super-epoch, other variable ones.

    Args:
        super_epochs: when they begin.
        correction: of the losses of nodes that miss neighbours.
        plan: which chunks come when.
        sweeper: brings the chunks.
    """

    def __init__(
        self,
        traces: Traces,
        placement: Placement,
        seed: int,
        *,
        reduction: GradientReduction,
        super_epochs: Intervals,
        correction: Correction,
        plan: SweepPlan,
        sweeper: Sweeper,
    ) -> None:
        exact = ShardedAggregator(placement)
        super().__init__(traces, placement, exact, seed, reduction=reduction, intervals=super_epochs)
        self.plan = plan
        self.sweeper = sweeper
        self._correction = correction
        self._row_factors: Tensor | None = None
        self._records: list[CoverageRecord] = []
        # Of the run, where known.
        self._num_epochs: int | None = None

    def expect_epochs(self, num_epochs: int) -> None:
        self._num_epochs, every = num_epochs, self.intervals.every
        if self.placement.communicator.rank == 0:
            self.plan.warn_of_unseen(-(-num_epochs // every), every)

    def _enter(self, interval: int, epoch: int) -> None:
        communicator, correction = self.placement.communicator, self._correction
        view = self.sweeper.view(interval)
        with communicator.ledger.phase("repartition"):
            self._row_factors, coverage = correction.apply(view, communicator)
        mean, least, size = coverage.mean, coverage.minimum, coverage.effective_sample_size
        self._records.append(CoverageRecord(epoch, mean, least, size, list(coverage.histogram)))
        factors = None
        if correction.kind == "sweep":
            sweep, _ = self.sweeper.sweep_of(interval)
            factors = view.factors(sweep.edge_weight_of_held_row(communicator.rank))
        degrees = view.degrees if correction.divides_by_degree else None
        aggregator = LocalAggregator(view.shard, remember_inputs=True, degrees=degrees, factors=factors)
        self.attachment.train_on(view.shard, aggregator)
        if not self.intervals.is_last(interval, self._num_epochs):
            self.sweeper.start(interval + 1)

    @property
    def row_factors(self) -> Tensor | None:
        return self._row_factors

    def take_records(self) -> list[CoverageRecord]:
        taken, self._records = self._records, []
        return taken

    def predict_traffic(self, epoch: int = 1) -> list[LedgerRecord]:
        if self.placement.communicator.num_ranks == 1:
            return []
        return predict(self._trace, self.placement, self.sweeper, epoch, self.intervals, self._num_epochs)

    @cached_property
    def _trace(self) -> Trace:
        return trace_apart(self.model, self.placement, self._reduction)
