"""What an epoch will cost, known before it: the model runs on three rows, whose exchanges are booked at full size.

The bytes of every exchange follow from the width of its rows and from lists that are known. So the step is rehearsed on
a graph of three nodes, with axes that move nothing and book what they would move. Inputs whose aggregation is kept from
step to step are told by the real sizes.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from laconic.attach import attach, detached_copy
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport.silent import SilentTransport
from laconic.gradients.shared import SharedGradients
from laconic.graph import Adjacency, Shard
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.booked import BookedCoder
from laconic.sharded.coder import ProductCoder
from laconic.sharded.cut import Cut
from laconic.sharded.hops import with_hops
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.placement import Placement
from laconic.sharded.rates import Exchanged

_NUM_ROWS = 3


def rehearse(
    model: nn.Module,
    placement: Placement,
    epoch: int = 1,
    make_coder: Callable[[Ledger], ProductCoder] | None = None,
) -> list[LedgerRecord]:
    """Returns what this rank will send and receive, as its ledger will count it.

    Rows of epoch 0 are what the first step costs once (phase "setup"); the others, labelled `epoch`, are what every
    epoch with one training step and one evaluation costs, the counting of scores excepted.

    Args:
        model: attached or not; it is copied and stays as it is.
        make_coder: returns what books coded products in a ledger; by default rows go as they are.
    """
    with _playing(model, placement, make_coder) as (actor, stage):
        ledger = stage.communicator.ledger
        act(actor, SharedGradients(actor, stage.communicator), stage)
        once = [row for row in ledger.take(0) if row.phase == "setup"]
        act(actor, SharedGradients(actor, stage.communicator), stage)
        return [*once, *ledger.take(epoch)]


def flops_of_step(model: nn.Module, placement: Placement) -> int:
    """Returns the floating-point operations of matrix products in a step on three rows and one row of each hop."""
    with _playing(model, placement, None) as (actor, stage):
        play = SharedGradients(actor, stage.communicator)
        act(actor, play, stage)
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(play.share(run_model(actor.train(), stage.shard).sum(), weight=1.0))
        return int(counter.get_total_flops())


@contextmanager
def _playing(
    model: nn.Module, placement: Placement, make_coder: Callable[[Ledger], ProductCoder] | None
) -> Iterator[tuple[nn.Module, Placement]]:
    """Gives a copy of the model, attached to a stage, and the stage."""
    stage = _stage(placement)
    actor, ledger = detached_copy(model), stage.communicator.ledger
    with torch.random.fork_rng(devices=[]):
        coder = None if make_coder is None else make_coder(ledger)
        shard = with_hops(stage.shard, stage.hops, ledger)
        ledger.take(0)
        attach(actor, shard, aggregator=ShardedAggregator(stage, coder, shard=shard))
        yield actor, dataclasses.replace(stage, shard=shard)


def exchanges_of_step(model: nn.Module, placement: Placement, cut: Cut) -> list[Exchanged]:
    """Returns the exchanges of one training step, in order."""
    coders: list[BookedCoder] = []

    def noting(ledger: Ledger) -> BookedCoder:
        coders.append(BookedCoder(cut, ledger, None))
        return coders[0]

    rehearse(model, placement, 1, noting)
    return coders[0].exchanges


def act(actor: nn.Module, gradients: SharedGradients, stage: Placement) -> None:
    """Plays one training step and one evaluation."""
    actor.train()
    loss = run_model(actor, stage.shard).sum()
    torch.autograd.backward(gradients.share(loss, weight=1.0))
    actor.zero_grad()
    actor.eval()
    with torch.no_grad():
        run_model(actor, stage.shard)


def silent(communicator: Communicator) -> Communicator:
    """Returns a communicator of the same rank that moves nothing, with a ledger of its own."""
    return Communicator(SilentTransport(communicator.rank, communicator.num_ranks), Ledger(communicator.rank))


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


def _stage(placement: Placement) -> Placement:
    """Returns a placement of three nodes, all connected, whose axes book what the real ones would move."""
    communicator = silent(placement.communicator)
    stage, ledger = stage_shard(placement.shard, num_halo=0), communicator.ledger
    weights = None if stage.edge_weight is None else stage.edge_weight.double().numpy()
    ids = torch.arange(stage.num_rows)
    hops, edges = [], stage.adjacency
    for hop in placement.hops:
        hops.append(hop.booked(edges, weights, ledger))
        edges = hops[-1].block.adjacency
    operators = placement.operators.booked(stage.adjacency, weights, ledger)
    sources = None if placement.sources is None else placement.sources.booked(ledger)
    if isinstance(operators, BlockOperators) and not placement.is_covered:
        sources = operators.columns
    return dataclasses.replace(
        placement,
        shard=stage,
        communicator=communicator,
        operators=operators,
        sources=sources,
        row_ids=ids,
        column_ids=ids,
        swap=placement.swap.booked(ledger),
        halo_x=None if placement.halo_x is None else stage.x[:0],
        hops=tuple(hops),
    )
