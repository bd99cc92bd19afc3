"""IsolatedGraph: what a rank of Grappa trains on in a super-epoch, and what the losses of its rows count there.

Base chunks B_k of rank k stay; variable chunks V_k(s) change with the super-epoch s. The rank sees the edges among
B_k + V_k(s); neighbours beyond are missing, and `correction.py` makes up for them.
"""

from typing import final

from torch import Tensor

from laconic.attach import Attachment
from laconic.attach.aggregator import Aggregator, LocalAggregator
from laconic.attach.scope import StandIn
from laconic.graph import Shard
from laconic.papers.grappa.correction import Correction
from laconic.papers.grappa.coverage import CoverageSummary
from laconic.papers.grappa.sweeper import Sweeper
from laconic.records import CoverageRecord
from laconic.sharded.placement import Placement


@final
class IsolatedGraph:
    """A rank's own chunks and, super-epoch by super-epoch, other variable ones; all ranks call it together."""

    def __init__(self, attachment: Attachment, placement: Placement, correction: Correction, sweeper: Sweeper) -> None:
        self._attachment = attachment
        self._placement = placement
        self._correction = correction
        self.sweeper = sweeper
        self.shard = placement.shard
        """What is trained on, and what mini-batches are drawn from: the rank's own rows first."""
        self.row_factors: Tensor | None = None
        self._records: list[CoverageRecord] = []

    def enter(self, super_epoch: int, epoch: int, *, is_last: bool) -> None:
        """Moves on to `super_epoch` (the first is 0), at its epoch `epoch`.

        Args:
            is_last: no chunks need be brought for the one after it.
        """
        communicator = self._placement.communicator
        view = self.sweeper.view(super_epoch)
        with communicator.ledger.phase("repartition"):
            self.row_factors, coverage = self._correction.apply(view, communicator)
        self._records.append(_as_record(coverage, epoch))
        factors = None
        if self._correction.kind == "sweep":
            sweep, _ = self.sweeper.sweep_of(super_epoch)
            factors = view.factors(sweep.edge_weight_of_held_row(communicator.rank))
        degrees = view.degrees if self._correction.divides_by_degree else None
        aggregator = LocalAggregator(view.shard, remember_inputs=True, degrees=degrees, factors=factors)
        self.shard = view.shard
        self._attachment.train_on(StandIn(view.shard, aggregator))
        if not is_last:
            self.sweeper.start(super_epoch + 1)

    def batch_aggregator(self, batch: Shard) -> Aggregator:
        """Returns the aggregations of a mini-batch that was drawn from `shard`."""
        return LocalAggregator(batch, remember_inputs=False)

    def take_records(self) -> list[CoverageRecord]:
        """Returns rows on coverage that were not taken yet."""
        taken, self._records = self._records, []
        return taken


def _as_record(coverage: CoverageSummary, epoch: int) -> CoverageRecord:
    return CoverageRecord(
        epoch=epoch,
        mean=coverage.mean,
        minimum=coverage.minimum,
        effective_sample_size=coverage.effective_sample_size,
        histogram=list(coverage.histogram),
    )
