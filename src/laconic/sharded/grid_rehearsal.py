"""What an epoch will cost, known before it: the model is run on three rows, whose exchanges are counted at full size.

Every exchange of a product is a function of the width of its rows and of lists that are known. So the step is rehearsed
on a graph of three nodes, with axes that bring nothing and book what they would bring.
"""

import dataclasses
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from laconic.attach import attach, detached_copy
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.splits import Splits
from laconic.comm.transport.silent import SilentTransport
from laconic.gradients.shared import SharedGradients
from laconic.records import LedgerRecord
from laconic.sharded.axis import book
from laconic.sharded.coded import ProductCoder
from laconic.sharded.grid_aggregator import GridAggregator
from laconic.sharded.grid_placement import GridPlacement
from laconic.sharded.rehearsal import stage_shard
from laconic.sharded.swap import NoSwap, Swap, check_width, slice_bounds, swap_splits


def rehearse(
    model: nn.Module,
    placement: GridPlacement,
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
    stage = _stage(placement)
    actor = detached_copy(model)
    with torch.random.fork_rng(devices=[]):
        ledger = stage.communicator.ledger
        coder = None if make_coder is None else make_coder(ledger)
        attach(actor, stage.shard, aggregator=GridAggregator(stage, coder))
        _act(actor, stage)
        once = [row for row in ledger.take(0) if row.phase == "setup"]
        _act(actor, stage)
        return [*once, *ledger.take(epoch)]


def _act(actor: nn.Module, stage: GridPlacement) -> None:
    actor.train()
    loss = run_model(actor, stage.shard).sum()
    torch.autograd.backward(SharedGradients(actor, stage.communicator).share(loss, weight=1.0))
    actor.zero_grad()
    actor.eval()
    with torch.no_grad():
        run_model(actor, stage.shard)


def _stage(placement: GridPlacement) -> GridPlacement:
    """Returns a placement of three nodes, all connected, whose axes book what the real ones would move."""
    shard, real = placement.shard, placement.communicator
    silent = Communicator(SilentTransport(real.rank, real.num_ranks), Ledger(real.rank))
    stage = stage_shard(shard, num_halo=0)
    weight = stage.edge_weight
    weights = None if weight is None else weight.double().numpy()
    ids = torch.arange(stage.num_rows)
    swap = _BookedSwap(placement.grid, placement.own_sizes, silent.ledger) if placement.grid.pj > 1 else NoSwap()
    return dataclasses.replace(
        placement,
        shard=stage,
        communicator=silent,
        operators=placement.operators.booked(stage.adjacency, weights, silent.ledger),
        row_ids=ids,
        column_ids=ids,
        swap=swap,
    )


@final
class _BookedSwap(Swap):
    """Books what a swap moves, and takes the own rows' slice for that of all."""

    def __init__(self, grid: Grid, own_sizes: list[int], ledger: Ledger) -> None:
        self._grid = grid
        self._own_sizes = own_sizes
        self._ledger = ledger

    def split(self, x: Tensor) -> Tensor:
        check_width(x.shape[1], self._grid.pj)
        book(self._ledger, self._splits(x.shape[1]), x.itemsize)
        bounds, mine = slice_bounds(x.shape[1], self._grid.pj), self._grid.place_of(self._ledger.rank).j
        return x[:, bounds[mine] : bounds[mine + 1]].contiguous()

    def join(self, rows: Tensor, width: int) -> Tensor:
        book(self._ledger, self._splits(width).reversed, rows.itemsize)
        return rows.new_ones(len(rows), width)

    def _splits(self, width: int) -> Splits:
        return swap_splits(self._grid, self._ledger.rank, self._own_sizes, width)
