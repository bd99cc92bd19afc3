"""What an epoch in isolation will cost, known before it: gradients, evaluation, and what a super-epoch takes."""

import dataclasses

import numpy as np
import torch
from torch import Tensor, nn

from laconic.attach import Attachment, attach, detached_copy
from laconic.attach.aggregator import LocalAggregator
from laconic.attach.scope import StandIn
from laconic.comm.ledger import Ledger
from laconic.comm.traffic import all_gather_traffic, all_to_all_traffic
from laconic.gradients.reductions import GradientReduction
from laconic.gradients.shared import SharedGradients
from laconic.graph import Shard
from laconic.isolated.buffers import combine_buffers
from laconic.isolated.correction import Correction
from laconic.isolated.grounds import Grounds, MovingGrounds, RememberedGrounds
from laconic.isolated.reaching import ReachingAggregator
from laconic.isolated.refresh_coder import RefreshCoder
from laconic.isolated.stage import Recorder, stage_of, to_scale
from laconic.isolated.super_epochs import SuperEpochs
from laconic.isolated.vicinity import Vicinity
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import Quarters
from laconic.sharded.placement import Placement
from laconic.sharded.rehearsal import act


def rehearse(
    model: nn.Module,
    placement: Placement,
    grounds: Grounds | None,
    coder: RefreshCoder | None,
    epoch: int,
    super_epochs: SuperEpochs,
    num_epochs: int | None,
    reduction: GradientReduction,
) -> list[LedgerRecord]:
    """Returns what this rank will send and receive, as its ledger will count it.

    Rows of epoch 0 are what the first epoch costs once (phase "setup"); the others, labelled `epoch`, are what that
    epoch costs, with one training step and one evaluation, the counting of scores excepted. An evaluation before the
    first epoch is not among them: features travel for it that no refresh has brought yet.

    Args:
        model: attached or not; it is copied and stays as it is.
        grounds: what is trained on.
        coder: the ways of a refresh, if its rows are coded.
        super_epochs: when they begin.
        num_epochs: of the run, where known.
        reduction: how gradients travel.
    """
    if placement.communicator.num_ranks == 1:
        return []
    assert grounds is not None, "attach comes before a prediction"
    stage = stage_of(placement)
    actor = detached_copy(model)
    ledger = stage.communicator.ledger
    is_start = super_epochs.begins_with(epoch)
    with torch.random.fork_rng(devices=[]):
        played: RememberedGrounds | None = None
        recorder: Recorder | None = None
        # The rows of an evaluation, unless others were taken in.
        is_one_halo = isinstance(grounds, RememberedGrounds) and grounds.evaluates_same_halo

        def halo_features() -> Tensor | None:
            return played.halo_features if played is not None and is_one_halo else None

        attachment = attach(actor, stage.shard, aggregator=ShardedAggregator(stage, known_halo_features=halo_features))

        def settle() -> None:
            with ledger.phase("repartition"):
                combine_buffers(actor, stage.shard.num_rows, stage.communicator)

        attachment.call_before_evaluation(settle)
        if isinstance(grounds, RememberedGrounds):
            # With ledgers of their own: other rows travel than in an evaluation, and what is coded the coder counts.
            if coder is not None:
                recorder = Recorder(stage_of(grounds.placement).exchange)
            played = _played(grounds, attachment, recorder)
            played.enter(0, 1, is_last=True)
            played.start_epoch(1)
        else:
            alone = _without_halo(stage.shard)
            attachment.train_on(StandIn(alone, LocalAggregator(alone, remember_inputs=True)))
        if epoch > 1:
            act(actor, SharedGradients(actor, stage.communicator, reduction=reduction, loss_phase="gradients"), stage)
            ledger.take(0)
            if recorder is not None:
                recorder.exchanges.clear()
            if played is not None:
                played.placement.communicator.ledger.take(0)
                if is_start:
                    played.enter(1, epoch, is_last=True)
                    played.start_epoch(epoch)
        act(actor, SharedGradients(actor, stage.communicator, reduction=reduction, loss_phase="gradients"), stage)
        rows = [to_scale(row, stage, placement) for row in ledger.take(epoch)]
        if played is not None and isinstance(grounds, RememberedGrounds):
            few, real = played.placement, grounds.placement
            kept = [to_scale(row, few, real) for row in few.communicator.ledger.take(epoch)]
            rows = _merged([*rows, *kept])
    once = [dataclasses.replace(row, epoch=0) for row in rows if row.phase == "setup"]
    rest = [row for row in rows if row.phase != "setup"]
    if isinstance(grounds, MovingGrounds) and is_start:
        rest = _merged([*rest, *_switch_rows(grounds, placement, epoch, super_epochs, num_epochs)])
    if coder is not None and recorder is not None and recorder.exchanges:
        coded = Ledger(placement.communicator.rank)
        coder.count(recorder.exchanges, coded)
        rest = _merged([*rest, *coded.take(epoch)])
    return [*once, *rest]


def num_hops_of(model: nn.Module, placement: Placement) -> int:
    """Returns how many times `model` sums up what changes in training: so many hops of neighbours a loss depends on.

    Raises UnsupportedModelError for a model whose sums cannot be kept for reasons that its modules do not show.
    """
    stage = stage_of(placement)
    actor = detached_copy(model)
    with torch.random.fork_rng(devices=[]):
        attachment = attach(actor, stage.shard, aggregator=ShardedAggregator(stage))
        played = RememberedGrounds(attachment, stage, Correction(), vicinity=Vicinity(stage, reach=1, is_whole=False))
        played.refresh()
    assert isinstance(played.aggregator, ReachingAggregator)
    return played.aggregator.num_hops


def _played(grounds: RememberedGrounds, attachment: Attachment, recorder: Recorder | None) -> RememberedGrounds:
    """Returns the same grounds of a few rows."""
    stage, vicinity = stage_of(grounds.placement), grounds.vicinity
    few = None if vicinity is None else dataclasses.replace(vicinity, placement=stage)
    return RememberedGrounds(attachment, stage, grounds.correction, recorder, vicinity=few)


def _switch_rows(
    grounds: MovingGrounds, placement: Placement, epoch: int, super_epochs: SuperEpochs, num_epochs: int | None
) -> list[LedgerRecord]:
    """Returns what it costs to enter a super-epoch: agreeing on coverage, and chunks that begin to come."""
    communicator, sweeper = placement.communicator, grounds.sweeper
    rank, num_ranks = communicator.rank, communicator.num_ranks
    if num_ranks == 1:
        return []
    super_epoch = super_epochs.number(epoch)
    ledger = Ledger(rank)
    with ledger.phase("repartition"):
        ledger.count("all_gather", *all_gather_traffic(num_ranks, Correction.gathered_bytes(num_ranks)))
        wanted = [sweeper.wanted(0, after=None)] if super_epoch == 0 else []
        if num_epochs is None or super_epochs.first_epoch(super_epoch + 1) <= num_epochs:
            wanted.append(sweeper.wanted(super_epoch + 1, after=super_epoch))
        for chunks in wanted:
            sent, received = sweeper.supply.between(chunks)
            ledger.count("all_to_all", *all_to_all_traffic(rank, sent, received))
    return ledger.take(epoch)


def _merged(rows: list[LedgerRecord]) -> list[LedgerRecord]:
    """Returns rows with those of one place added up, in the ledger's order."""
    ledger = Ledger(rows[0].rank) if rows else Ledger(0)
    for row in rows:
        counts = (
            (row.num_messages, row.num_bytes, 0, 0)
            if row.direction == "sent"
            else (0, 0, row.num_messages, row.num_bytes)
        )
        with ledger.phase(row.phase, layer=row.layer):
            ledger.count(row.operation, *counts)
    return ledger.take(rows[0].epoch) if rows else []


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
