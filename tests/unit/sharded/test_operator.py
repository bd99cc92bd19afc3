"""One product on a grid against dense matrices: forward, backward, and the backward of the backward."""

import numpy as np
import pytest
import torch
from tests.unit.sharded.product_runs import chunks_of, random_graph

from laconic.attach.aggregator import Linear
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import BlockMap
from laconic.sharded.placement import place

NUM_NODES, WIDTH = 23, 5


def dense(graph, kind: str) -> torch.Tensor:
    """The matrix of an aggregation, from the edge list."""
    sources, destinations = graph.edge_index
    matrix = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.float64)
    if kind != "gcn":
        matrix.index_put_((destinations, sources), torch.ones(len(sources), dtype=torch.float64), accumulate=True)
        return matrix / matrix.sum(1, keepdim=True).clamp(min=1) if kind == "mean" else matrix
    is_loop = sources == destinations
    ends = (destinations[~is_loop], sources[~is_loop])
    matrix.index_put_(ends, torch.ones(len(ends[0]), dtype=torch.float64), accumulate=True)
    matrix += torch.eye(NUM_NODES, dtype=torch.float64)
    scale = matrix.sum(1) ** -0.5
    return scale[:, None] * matrix * scale[None, :]


def curved(out: torch.Tensor, x: torch.Tensor, mine: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of a cubic of `out`, and of a square of those gradients; `mine` has a weight for each row."""
    (first,) = torch.autograd.grad((mine * out**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((mine * first**2).sum(), x)
    return [out.detach(), first.detach(), second]


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("kind", ["sum", "mean", "gcn"])
@pytest.mark.parametrize("grid", [Grid(3, 1, 1), Grid(1, 3, 1), Grid(2, 2, 1), Grid(1, 2, 2), Grid(2, 2, 2)], ids=str)
def test_a_product_and_its_derivatives_equal_those_of_dense_matrices(grid, kind, is_sparse):
    graph = random_graph(NUM_NODES, 60)
    read, chunk_map = chunks_of(graph, grid.num_ranks)
    rng = np.random.default_rng(3)
    x, weight = (torch.from_numpy(rng.normal(size=(NUM_NODES, width))) for width in (WIDTH, 1))
    starts = chunk_map.rank_starts

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        placement = place(read, BlockMap(grid, chunk_map), communicator, is_sparse=is_sparse)
        aggregator = ShardedAggregator(placement)
        aggregator.begin(is_training=True)
        mine = slice(starts[transport.rank], starts[transport.rank + 1])
        rows = x[mine].clone().requires_grad_()
        return curved(aggregator.linear(Linear(kind), rows), rows, weight[mine])

    whole = x.clone().requires_grad_()
    expected = curved(dense(graph, kind) @ whole, whole, weight)
    for found, wanted in zip(zip(*run_ranks(grid.num_ranks, run), strict=True), expected, strict=True):
        torch.testing.assert_close(torch.cat(found), wanted, rtol=1e-12, atol=1e-12)
