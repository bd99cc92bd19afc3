"""What an epoch with historical neighbours will cost, known before it: gradients, an evaluation, a refresh."""

import dataclasses

import torch
from torch import Tensor, nn

from laconic.attach import attach, detached_copy
from laconic.cached.intervals import Intervals
from laconic.cached.neighbour_cache import NeighbourCache
from laconic.cached.refresh_coder import RefreshCoder
from laconic.cached.stage import Recorder, stage_of, to_scale
from laconic.comm.ledger import Ledger, merged
from laconic.gradients.reductions import GradientReduction
from laconic.gradients.running_statistics import combine_buffers
from laconic.gradients.shared import SharedGradients
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.placement import Placement
from laconic.sharded.rehearsal import act


def rehearse(
    model: nn.Module,
    placement: Placement,
    cache: NeighbourCache,
    coder: RefreshCoder | None,
    epoch: int,
    intervals: Intervals,
    reduction: GradientReduction,
) -> list[LedgerRecord]:
    """Returns what this rank will send and receive, as its ledger will count it.

    Rows of epoch 0 are what the first epoch costs once (phase "setup"); the others, labelled `epoch`, are what that
    epoch costs, with one training step and one evaluation, the counting of scores excepted. An evaluation before the
    first epoch is not among them: features travel for it that no refresh has brought yet.

    Args:
        model: attached or not; it is copied and stays as it is.
        coder: the ways of a refresh, if its rows are coded.
        intervals: in which epochs the cache is refreshed.
        reduction: how gradients travel.
    """
    stage, actor = stage_of(placement), detached_copy(model)
    # With ledgers of their own: other rows travel in a refresh than in an evaluation, and the coder counts coded ones.
    few = stage_of(cache.placement)
    recorder = None if coder is None else Recorder(stage_of(cache.placement).exchange)
    with torch.random.fork_rng(devices=[]):
        played: NeighbourCache | None = None

        def halo_features() -> Tensor | None:
            return played.halo_features if played is not None and cache.evaluates_same_halo else None

        attachment = attach(actor, stage.shard, aggregator=ShardedAggregator(stage, known_halo_features=halo_features))

        def settle() -> None:
            with stage.communicator.ledger.phase("repartition"):
                combine_buffers(actor, stage.shard.num_rows, stage.communicator)

        def step_and_evaluate() -> None:
            gradients = SharedGradients(actor, stage.communicator, reduction=reduction, loss_phase="gradients")
            act(actor, gradients, dataclasses.replace(stage, shard=attachment.shard))

        attachment.call_before_evaluation(settle)
        halo = dataclasses.replace(cache.halo, placement=few)
        played = NeighbourCache(attachment, few, recorder, halo=halo, keeps_sums=cache.keeps_sums)
        played.enter(0)
        played.start_epoch(1)
        if epoch > 1:
            step_and_evaluate()
            stage.communicator.ledger.take(0)
            few.communicator.ledger.take(0)
            if recorder is not None:
                recorder.exchanges.clear()
            if intervals.begins_with(epoch):
                played.enter(1)
                played.start_epoch(epoch)
        step_and_evaluate()
        rows = [to_scale(row, stage, placement) for row in stage.communicator.ledger.take(epoch)]
        rows += [to_scale(row, few, cache.placement) for row in few.communicator.ledger.take(epoch)]
    if coder is not None and recorder is not None:
        coded = Ledger(placement.communicator.rank)
        coder.count(recorder.exchanges, coded)
        rows += coded.take(epoch)
    rows = merged(rows)
    once = [dataclasses.replace(row, epoch=0) for row in rows if row.phase == "setup"]
    return [*once, *(row for row in rows if row.phase != "setup")]
