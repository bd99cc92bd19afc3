"""One product on a grid of ranks that are threads, for tests of what it moves."""

import numpy as np
import torch

from laconic.attach.aggregator import Linear
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.graph import Graph
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import BlockMap
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.placement import place
from laconic.store import chunk_in_memory


def random_graph(num_nodes: int, num_edges: int, num_features: int = 2) -> Graph:
    rng = np.random.default_rng(0)
    split = np.arange(num_nodes) % 3
    return Graph(
        x=torch.from_numpy(rng.normal(size=(num_nodes, num_features))),
        y=torch.zeros(num_nodes, dtype=torch.int64),
        edge_index=torch.from_numpy(rng.integers(0, num_nodes, (2, num_edges))),
        train_mask=torch.from_numpy(split == 0),
        val_mask=torch.from_numpy(split == 1),
        test_mask=torch.from_numpy(split == 2),
        num_classes=2,
    )


def chunks_of(graph: Graph, num_ranks: int):
    """How chunks of consecutive nodes are read, one for each rank, and which rank has which."""
    parts = np.arange(graph.num_nodes) * num_ranks // graph.num_nodes
    sizes = np.bincount(parts, minlength=num_ranks).tolist()
    return lambda number: chunk_in_memory(graph, parts, num_ranks, number), ChunkMap.even(sizes, num_ranks)


def received_words(
    graph: Graph, grid: Grid, width: int, *, is_sparse: bool, map_type: type[BlockMap] = BlockMap
) -> list[tuple[int, int]]:
    """Words that each rank received in one product, forward and backward."""
    num_ranks = grid.num_ranks
    read, chunk_map = chunks_of(graph, num_ranks)

    def run(transport):
        ledger = Ledger(transport.rank)
        communicator = Communicator(transport, ledger)
        placement = place(read, map_type(grid, chunk_map), communicator, is_sparse=is_sparse)
        aggregator = ShardedAggregator(placement)
        aggregator.begin(is_training=True)
        x = torch.ones(placement.shard.num_rows, width, dtype=torch.float64, requires_grad=True)
        ledger.take(0)
        aggregator.linear(Linear("sum"), x).sum().backward()
        rows = ledger.take(1)
        words = {
            phase: sum(row.num_bytes for row in rows if row.phase == phase and row.direction == "received") // 8
            for phase in ("forward", "backward")
        }
        return words["forward"], words["backward"]

    return run_ranks(num_ranks, run)
