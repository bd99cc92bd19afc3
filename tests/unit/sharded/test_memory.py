"""What a rank keeps in memory is what the plan says, within a fifth."""

import pytest
import torch
from benchmarks.held import bytes_within
from tests.unit.sharded.product_runs import chunks_of, random_graph

from laconic.attach.aggregator import Linear
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import BlockMap
from laconic.sharded.placement import place
from laconic.sharded.plan import held_bytes
from laconic.sharded.survey import survey

WIDTH = 48


@pytest.mark.parametrize("grid", [Grid(4, 1, 1), Grid(2, 2, 1), Grid(2, 1, 2), Grid(1, 1, 4)], ids=str)
def test_the_memory_of_the_busiest_rank_is_as_planned(grid):
    graph = random_graph(2000, 60_000, num_features=WIDTH)
    read, chunk_map = chunks_of(graph, 4)

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        one_axis = place(read, BlockMap.one_axis(chunk_map), communicator)
        (sizes,) = (each for each in survey(one_axis, None, is_sparse=True) if each.grid == grid)
        placement = place(read, BlockMap(grid, chunk_map), communicator, is_sparse=True)
        aggregator = ShardedAggregator(placement)
        aggregator.begin(is_training=True)
        aggregator.linear(Linear("gcn"), placement.shard.x)
        rows = torch.ones(placement.shard.num_rows, WIDTH, dtype=torch.float64, requires_grad=True)
        aggregator.linear(Linear("gcn"), rows).sum().backward()
        del rows
        return bytes_within(aggregator), held_bytes(sizes, WIDTH, placement.shard.x.itemsize)

    found = run_ranks(4, run)
    measured, planned = max(held for held, _ in found), found[0][1]
    assert 0.8 < measured / planned < 1.2, f"{measured} bytes, planned {planned}"
