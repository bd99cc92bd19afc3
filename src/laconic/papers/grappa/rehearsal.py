"""What an epoch of Grappa will cost, known before it: gradients, an evaluation, and what a super-epoch begins with."""

from torch import nn

from laconic.attach.aggregator import LocalAggregator
from laconic.cached.intervals import Intervals
from laconic.cached.rehearsal import rehearsing_apart
from laconic.comm.ledger import Ledger, merged
from laconic.comm.traffic import all_gather_traffic, all_to_all_traffic
from laconic.gradients.reductions import GradientReduction
from laconic.papers.grappa.correction import Correction
from laconic.papers.grappa.sweeper import Sweeper
from laconic.records import LedgerRecord
from laconic.sharded.placement import Placement
from laconic.sharded.trace import Trace


def trace_apart(model: nn.Module, placement: Placement, reduction: GradientReduction) -> Trace:
    """Returns the trace of a model that trains on rows of its own rank alone, and is evaluated on all.

    Args:
        reduction: how gradients travel.
    """
    with rehearsing_apart(model, placement, reduction) as rehearsal:
        alone = rehearsal.attachment.shard
        rehearsal.attachment.train_on(alone, LocalAggregator(alone, remember_inputs=True))
        return rehearsal.run()


def predict(
    trace: Trace, placement: Placement, sweeper: Sweeper, epoch: int, super_epochs: Intervals, num_epochs: int | None
) -> list[LedgerRecord]:
    """Returns what this rank will send and receive, as its ledger will count it.

    Rows of epoch 0 are what the first epoch costs once (phase "setup"); the others, labelled `epoch`, are what that
    epoch costs, with one training step and one evaluation, the counting of scores excepted.

    Args:
        sweeper: brings the chunks.
        super_epochs: when they begin.
        num_epochs: of the run, where known.
    """
    rows = trace.records(epoch)[len(trace.once) :]
    if super_epochs.begins_with(epoch):
        rows = merged([*rows, *_switch_rows(sweeper, placement, epoch, super_epochs, num_epochs)])
    return [*trace.once, *rows] if epoch == 1 else rows


def _switch_rows(
    sweeper: Sweeper, placement: Placement, epoch: int, super_epochs: Intervals, num_epochs: int | None
) -> list[LedgerRecord]:
    """Returns what it costs to enter a super-epoch: agreeing on coverage, and chunks that begin to come."""
    rank, num_ranks = placement.communicator.rank, placement.communicator.num_ranks
    super_epoch = super_epochs.number(epoch)
    ledger = Ledger(rank)
    with ledger.phase("repartition"):
        ledger.count("all_gather", *all_gather_traffic(num_ranks, Correction.gathered_bytes(num_ranks)))
        wanted = [sweeper.wanted(0, after=None)] if super_epoch == 0 else []
        if not super_epochs.is_last(super_epoch, num_epochs):
            wanted.append(sweeper.wanted(super_epoch + 1, after=super_epoch))
        for chunks in wanted:
            sent, received = sweeper.supply.between(chunks)
            ledger.count("all_to_all", *all_to_all_traffic(rank, sent, received))
    return ledger.take(epoch)
