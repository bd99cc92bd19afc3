"""What an epoch will cost, known before it: the model is run on a handful of rows that talk to nobody.

Every exchange of a step is the same for few rows as for many, but for the number of rows: so the step is rehearsed with
one row for each rank that there is traffic with, and its all-to-alls are counted again with the real numbers of rows.
What is remembered from step to step is decided by the real sizes.
"""

import dataclasses
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import nn

from laconic.attach import attach, detached_copy
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator, Splits
from laconic.comm.exchange import RowExchange
from laconic.comm.ledger import PHASES, Ledger
from laconic.comm.schedules import Measured
from laconic.comm.transport.silent import SilentTransport
from laconic.gradients.shared import SharedGradients
from laconic.graph import Adjacency, Shard
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import HaloAggregator
from laconic.sharded.coder import Exchanged, RatePlan, Recorder
from laconic.sharded.placement import Placement

_NUM_ROWS = 3


@final
@dataclass(frozen=True)
class Rehearsal:
    """What a step will say to other ranks.

    Args:
        records: what this rank will send and receive if all rows go as they are, as its ledger will count it. Rows of
            epoch 0 are what the first step costs once (phase "setup"); rows of epoch 1 are what every epoch with one
            training step and one evaluation costs, the counting of scores excepted.
        exchanges: those of one training step, in order.
    """

    records: list[LedgerRecord]
    exchanges: list[Exchanged]

    def coded(self, plan: RatePlan, epoch: int, measured: tuple[Measured, ...], rank: int) -> list[LedgerRecord]:
        """Returns the records with the messages of an epoch coded as planned; of codecs without a fixed size, the most.

        Rows of epoch 1 become rows of `epoch`.
        """
        ledger = Ledger(rank)
        rates = {one.layer: plan.rates(epoch, one.layer, measured) for one in self.exchanges}
        for one in self.exchanges:
            with ledger.phase(one.direction, layer=one.layer):
                one.count(ledger, plan.codec, plan.counts, rates[one.layer], plan.new)
        kept = [row for row in self.records if row.operation != "all_to_all" or row.phase in ("setup", "evaluation")]
        rows = [dataclasses.replace(row, epoch=epoch) if row.epoch else row for row in kept]
        return sorted([*rows, *ledger.take(epoch)], key=_order)


def _order(row: LedgerRecord) -> tuple[int, int, int, str, str]:
    return row.epoch, PHASES.index(row.phase), row.layer, row.operation, row.direction


def rehearse(model: nn.Module, placement: Placement) -> Rehearsal:
    """Runs a step and an evaluation of few rows.

    Args:
        model: attached or not; it is copied and stays as it is.
    """
    stage = stage_of(placement)
    actor = detached_copy(model)
    recorder = Recorder(stage.exchange)
    with torch.random.fork_rng(devices=[]):
        attach(actor, stage.shard, aggregator=HaloAggregator(stage, recorder))
        ledger = stage.communicator.ledger
        act(actor, SharedGradients(actor, stage.communicator), stage)
        once = [row for row in ledger.take(0) if row.phase == "setup"]
        recorder.exchanges.clear()
        act(actor, SharedGradients(actor, stage.communicator), stage)
        records = [to_scale(row, stage, placement) for row in [*once, *ledger.take(1)]]
        return Rehearsal(records, recorder.exchanges)


def act(actor: nn.Module, gradients: SharedGradients, stage: Placement) -> None:
    """Plays one training step and one evaluation."""
    actor.train()
    loss = run_model(actor, stage.shard).sum()
    torch.autograd.backward(gradients.share(loss, weight=1.0))
    actor.zero_grad()
    actor.eval()
    with torch.no_grad():
        run_model(actor, stage.shard)


def stage_of(placement: Placement) -> Placement:
    """Returns a placement of a few rows, with one halo row from each rank that has some for us."""
    shard, real = placement.shard, placement.exchange.splits
    communicator = placement.communicator
    send = tuple(int(size > 0) for size in real.send)
    receive = tuple(int(size > 0) for size in real.receive)
    num_halo = sum(receive)
    stage = stage_shard(shard, num_halo)
    silent = Communicator(SilentTransport(communicator.rank, communicator.num_ranks), Ledger(communicator.rank))
    send_rows = torch.zeros(sum(send), dtype=torch.int64)
    exchange = RowExchange(silent, send_rows, Splits(send, receive, largest=1), _NUM_ROWS)
    halo_x = None if placement.halo_x is None else stage.x.new_ones(num_halo, stage.x.shape[1])
    return dataclasses.replace(placement, shard=stage, exchange=exchange, halo_x=halo_x)


def stage_shard(shard: Shard, num_halo: int) -> Shard:
    """Returns a few rows of the widths and types of `shard`, with so many halo rows, all connected."""
    num_columns = _NUM_ROWS + num_halo
    sources, rows = np.meshgrid(np.arange(num_columns), np.arange(_NUM_ROWS))
    adjacency = Adjacency.from_edges(sources.ravel(), rows.ravel(), _NUM_ROWS, num_columns)
    adjacency = dataclasses.replace(adjacency, edge_order=None)
    everyone, nobody = torch.ones(_NUM_ROWS, dtype=torch.bool), torch.zeros(_NUM_ROWS, dtype=torch.bool)
    x = torch.ones(_NUM_ROWS, shard.x.shape[1]) * torch.arange(1, _NUM_ROWS + 1)[:, None]
    return Shard(
        x=x.to(shard.x.dtype),
        y=shard.y.new_zeros(_NUM_ROWS, *shard.y.shape[1:]),
        edge_index=torch.from_numpy(np.stack([adjacency.indices, adjacency.row_of_edge]).astype(np.int64)),
        adjacency=adjacency,
        node_ids=torch.arange(_NUM_ROWS),
        num_owned=_NUM_ROWS,
        train_mask=everyone,
        val_mask=nobody,
        test_mask=nobody,
        edge_weight=None if shard.edge_weight is None else shard.edge_weight.new_ones(adjacency.num_edges),
        halo_ids=torch.arange(_NUM_ROWS, num_columns),
    )


def to_scale(row: LedgerRecord, stage: Placement, placement: Placement) -> LedgerRecord:
    if row.operation != "all_to_all":
        return row
    # Forward, rows go the way of the splits, backward the other way; few and real ones alike.
    is_sent = (row.direction == "sent") != (row.phase == "backward")
    few, real = stage.exchange.splits, placement.exchange.splits
    ratio = (sum(real.send), sum(few.send)) if is_sent else (sum(real.receive), sum(few.receive))
    num_bytes, rest = divmod(row.num_bytes * ratio[0], ratio[1])
    assert rest == 0, "each rank's part of the rehearsal is one row"
    return dataclasses.replace(row, num_bytes=num_bytes)
