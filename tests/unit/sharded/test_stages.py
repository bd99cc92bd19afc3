"""Rows in stages: two blocks of other ranks are in memory at most, and the next travels while one is multiplied."""

import threading
import weakref
from collections import defaultdict

import pytest
import torch
from tests.unit.sharded.product_runs import chunks_of, random_graph

from laconic.attach.aggregator import Linear
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.graph.operators.linear import LinearOperator
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.axis import AxisExchange
from laconic.sharded.block import BlockMap
from laconic.sharded.placement import place


class Watch:
    """Counts blocks from when they are sent for until whoever got them has let go of them; each rank its own."""

    def __init__(self, monkeypatch) -> None:
        self.alive: dict[int, int] = defaultdict(int)
        self.most: dict[int, int] = defaultdict(int)
        self.under_way: dict[int, int] = defaultdict(int)
        self.overlapped: dict[int, int] = defaultdict(int)
        start, multiply = AxisExchange._start, LinearOperator.multiply

        def watched_start(axis, rows, splits, widest):
            rank = threading.get_ident()
            self.alive[rank] += 1
            self.under_way[rank] += 1
            self.most[rank] = max(self.most[rank], self.alive[rank])
            return Watched(start(axis, rows, splits, widest), self, rank)

        def watched_multiply(operator, x, **options):
            rank = threading.get_ident()
            self.overlapped[rank] += self.under_way[rank] > 0
            return multiply(operator, x, **options)

        monkeypatch.setattr(AxisExchange, "_start", watched_start)
        monkeypatch.setattr(LinearOperator, "multiply", watched_multiply)


class Watched:
    def __init__(self, arrival, watch: Watch, rank: int) -> None:
        self._arrival, self._watch, self._rank = arrival, watch, rank

    def wait(self):
        rows = self._arrival.wait()
        self._arrival = None
        self._watch.under_way[self._rank] -= 1
        weakref.finalize(rows, self._let_go)
        return rows

    def _let_go(self) -> None:
        self._watch.alive[self._rank] -= 1


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("grid", [Grid(6, 1, 1), Grid(1, 6, 1), Grid(5, 2, 1)], ids=str)
def test_two_blocks_are_there_at_most_and_products_run_meanwhile(grid, is_sparse, monkeypatch):
    graph = random_graph(60, 400)
    read, chunk_map = chunks_of(graph, grid.num_ranks)
    watch = Watch(monkeypatch)

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        placement = place(read, BlockMap(grid, chunk_map), communicator, is_sparse=is_sparse, is_staged=True)
        aggregator = ShardedAggregator(placement)
        aggregator.begin(is_training=True)
        rows = torch.ones(placement.shard.num_rows, 3, dtype=torch.float64, requires_grad=True)
        # The operator is made, with exchanges of its own, before anything is watched.
        aggregator.linear(Linear("gcn"), rows)
        rank = threading.get_ident()
        watch.alive[rank] = watch.most[rank] = watch.overlapped[rank] = watch.under_way[rank] = 0
        aggregator.linear(Linear("gcn"), rows).sum().backward()
        return watch.most[rank], watch.alive[rank], watch.overlapped[rank]

    for most, left, overlapped in run_ranks(grid.num_ranks, run):
        assert most == 2
        assert left == 0
        # Of the stages each way all but the last have the next under way while they are multiplied.
        assert overlapped >= max(grid.pi, grid.pk) - 2
