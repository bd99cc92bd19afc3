"""What an epoch of Grappa will cost, known before it: gradients, an evaluation, and what a super-epoch begins with."""

import dataclasses

import numpy as np
import torch
from torch import nn

from laconic.attach import attach, detached_copy
from laconic.attach.aggregator import LocalAggregator
from laconic.cached.intervals import Intervals
from laconic.cached.stage import stage_of, to_scale
from laconic.comm.ledger import Ledger, merged
from laconic.comm.traffic import all_gather_traffic, all_to_all_traffic
from laconic.gradients.reductions import GradientReduction
from laconic.gradients.running_statistics import combine_buffers
from laconic.gradients.shared import SharedGradients
from laconic.graph import Shard
from laconic.papers.grappa.correction import Correction
from laconic.papers.grappa.sweeper import Sweeper
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import Quarters
from laconic.sharded.placement import Placement
from laconic.sharded.rehearsal import act


def rehearse(
    model: nn.Module,
    placement: Placement,
    sweeper: Sweeper,
    epoch: int,
    super_epochs: Intervals,
    num_epochs: int | None,
    reduction: GradientReduction,
) -> list[LedgerRecord]:
    """Returns what this rank will send and receive, as its ledger will count it.

    Rows of epoch 0 are what the first epoch costs once (phase "setup"); the others, labelled `epoch`, are what that
    epoch costs, with one training step and one evaluation, the counting of scores excepted.

    Args:
        model: attached or not; it is copied and stays as it is.
        sweeper: brings the chunks.
        super_epochs: when they begin.
        num_epochs: of the run, where known.
        reduction: how gradients travel.
    """
    stage, actor = stage_of(placement), detached_copy(model)
    ledger = stage.communicator.ledger
    with torch.random.fork_rng(devices=[]):
        attachment = attach(actor, stage.shard, aggregator=ShardedAggregator(stage))

        def settle() -> None:
            with ledger.phase("repartition"):
                combine_buffers(actor, stage.shard.num_rows, stage.communicator)

        def step_and_evaluate() -> None:
            gradients = SharedGradients(actor, stage.communicator, reduction=reduction, loss_phase="gradients")
            act(actor, gradients, dataclasses.replace(stage, shard=attachment.shard))

        attachment.call_before_evaluation(settle)
        alone = _without_halo(stage.shard)
        attachment.train_on(alone, LocalAggregator(alone, remember_inputs=True))
        if epoch > 1:
            step_and_evaluate()
            ledger.take(0)
        step_and_evaluate()
        rows = [to_scale(row, stage, placement) for row in ledger.take(epoch)]
    once = [dataclasses.replace(row, epoch=0) for row in rows if row.phase == "setup"]
    rest = [row for row in rows if row.phase != "setup"]
    if super_epochs.begins_with(epoch):
        rest = merged([*rest, *_switch_rows(sweeper, placement, epoch, super_epochs, num_epochs)])
    return [*once, *rest]


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


def _without_halo(shard: Shard) -> Shard:
    adjacency = Quarters.of(shard.adjacency, shard.num_rows).own_own
    weight = shard.edge_weight
    return dataclasses.replace(
        shard,
        adjacency=adjacency,
        edge_index=torch.from_numpy(np.stack([adjacency.indices, adjacency.row_of_edge]).astype(np.int64)),
        edge_weight=None if weight is None else weight.new_ones(adjacency.num_edges),
        halo_ids=shard.halo_ids[:0],
    )
