"""A placement of a few rows that talks to nobody: what a refresh will send is rehearsed on it."""

import dataclasses
from typing import Any, Protocol, final

import torch
from torch import Tensor

from laconic.comm.communicator import Splits
from laconic.comm.exchange import Route, RowExchange
from laconic.records import LedgerRecord
from laconic.sharded.placement import Placement, at_destinations
from laconic.sharded.rates import Exchanged
from laconic.sharded.rehearsal import silent, stage_shard


class RowCoder(Protocol):
    """Says how the rows of each exchange travel."""

    def begin(self, *, is_training: bool) -> None:
        """Told when a forward pass begins."""

    def route(self, layer: int) -> Route:
        """Returns the way of the next exchange of a layer."""


def stage_of(placement: Placement) -> Placement:
    """Returns a placement of a few rows, with one halo row from each rank that has some for us."""
    real, communicator = placement.exchange.splits, silent(placement.communicator)
    send = tuple(int(size > 0) for size in real.send)
    receive = tuple(int(size > 0) for size in real.receive)
    num_halo = sum(receive)
    stage = stage_shard(placement.shard, num_halo)
    send_rows = torch.zeros(sum(send), dtype=torch.int64)
    exchange = RowExchange(communicator, send_rows, Splits(send, receive, largest=1), stage.num_rows)
    return at_destinations(
        stage,
        exchange,
        largest_num_rows=placement.largest_num_rows,
        largest_num_columns=placement.largest_num_columns,
        num_nodes=placement.num_nodes,
        num_train=placement.num_train,
        halo_x=None if placement.halo_x is None else stage.x.new_ones(num_halo, stage.x.shape[1]),
    )


def to_scale(row: LedgerRecord, stage: Placement, placement: Placement) -> LedgerRecord:
    """Returns a row of the ledger of a stage as that of the placement has it."""
    if row.operation != "all_to_all":
        return row
    # Forward, rows go the way of the splits, backward the other way; few and real ones alike.
    is_sent = (row.direction == "sent") != (row.phase == "backward")
    few, real = stage.exchange.splits, placement.exchange.splits
    ratio = (sum(real.send), sum(few.send)) if is_sent else (sum(real.receive), sum(few.receive))
    num_bytes, rest = divmod(row.num_bytes * ratio[0], ratio[1])
    assert rest == 0, "each rank's part of the rehearsal is one row"
    return dataclasses.replace(row, num_bytes=num_bytes)


@final
class Recorder:
    """Notes the exchanges of a rehearsed refresh, which go as they are."""

    def __init__(self, exchange: RowExchange) -> None:
        self._exchange = exchange
        self.exchanges: list[Exchanged] = []

    def begin(self, *, is_training: bool) -> None:
        """Needs nothing."""

    def route(self, layer: int) -> Route:
        return _Recorded(self._exchange, self.exchanges, layer)


@final
class _Recorded:
    def __init__(self, exchange: RowExchange, exchanges: list[Exchanged], layer: int) -> None:
        self.start_back = exchange.start_back
        self._exchange = exchange
        self._exchanges = exchanges
        self._layer = layer

    def start(self, x: Tensor) -> Any:
        self._exchanges.append(Exchanged(self._layer, "forward", x.shape[1:].numel(), x.dtype))
        return self._exchange.start(x)
