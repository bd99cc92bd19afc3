"""The promise of `full_graph`: on any grid of ranks, what one machine computes.

In float64: losses, predictions and every gradient of the first step to 1e-10, parameters after 20 epochs of Adam to
1e-8. The graphs are directed, so operators are not symmetric; a third of the nodes is for training, all in one corner;
three nodes have no edge. And what was predicted is what was counted.
"""

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.equivalence.grid_runs import grid_outcomes
from tests.equivalence.halo_runs import EPOCHS, Stack, check_equal, check_traffic, make_graph, train
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, GIN, GraphConv, GraphSAGE, SGConv, TransformerConv

from laconic.comm.communicator import Communicator
from laconic.comm.grid import all_grids
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.graph import Graph
from laconic.store import open_store, write_store

# Wide enough to be sliced for eight ranks, and divisible by few numbers.
IN, HIDDEN, OUT = 11, 9, 8


class Weighted(nn.Module):
    """Takes the edge weights of whatever shard it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = GCN(IN, HIDDEN, 3, OUT)

    def forward(self, x, edge_index, edge_weight=None):
        return self.inner(x, edge_index, edge_weight=edge_weight)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: GCN(IN, HIDDEN, 3, OUT, dropout=0.3),
    "GCN batch norm": lambda: GCN(IN, HIDDEN, 2, OUT, norm="batch_norm"),
    "SAGE mean": lambda: GraphSAGE(IN, HIDDEN, 3, OUT, dropout=0.3),
    "SAGE sum": lambda: GraphSAGE(IN, HIDDEN, 2, OUT, aggr="sum", norm="graph_norm"),
    "GIN": lambda: GIN(IN, HIDDEN, 2, OUT),
    "GIN trained eps": lambda: GIN(IN, HIDDEN, 2, OUT, train_eps=True, norm="batch_norm"),
    "SGC": lambda: SGConv(IN, OUT, K=3),
    "APPNP": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1, dropout=0.5)),
    "GraphConv": lambda: Stack(GraphConv(IN, HIDDEN), nn.ReLU(), GraphConv(HIDDEN, OUT, aggr="mean")),
    "jumping knowledge": lambda: GCN(IN, HIDDEN, 3, OUT, jk="cat"),
}
# Weights that depend on the features: where features are whole.
ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "GAT": lambda: GAT(IN, 8, 2, OUT, heads=2, dropout=0.4),
    "GAT narrow": lambda: GAT(IN, 2, 3, OUT, heads=1, residual=True, add_self_loops=False),
    "GATv2": lambda: GAT(IN, 8, 2, OUT, heads=2, v2=True, dropout=0.4),
}
# Where a rank has all edges into its rows.
OF_WHOLE_ROWS: dict[str, Callable[[], nn.Module]] = {
    "SAGE max": lambda: GraphSAGE(IN, 8, 2, OUT, aggr="max"),
    "PyG's own code": lambda: Stack(TransformerConv(IN, 4, heads=2), nn.ReLU(), TransformerConv(8, OUT, concat=False)),
}
ALL_GRIDS = [str(grid) for num_ranks in (1, 2, 3, 4, 6, 8) for grid in all_grids(num_ranks)]


def wide_graph(num_nodes: int = 50, **options) -> Graph:
    graph = make_graph(num_nodes, **options)
    rng = np.random.default_rng(7)
    return dataclasses.replace(
        graph,
        x=torch.from_numpy(rng.normal(size=(num_nodes, IN))),
        y=torch.from_numpy(rng.integers(0, OUT, num_nodes)),
        num_classes=OUT,
    )


def num_ranks_of(grid: str) -> int:
    return int(np.prod([int(part.split("=")[1]) for part in grid[5:-1].split(", ")]))


@pytest.mark.parametrize("grid", ALL_GRIDS)
def test_every_factorisation_gives_the_same(grid):
    single, ranks = grid_outcomes(MODELS["SAGE mean"], wide_graph(), num_ranks_of(grid), grid, EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


# Those that CAGNET's papers have, which hold and move more than they need.
OF_PAPERS = [
    (2, "1d_columns"),
    (4, "1.5d_replicated(c=2)"),
    (6, "1.5d_replicated(c=2)"),
    (9, "1.5d_replicated(c=3)"),
    (4, "2d_summa"),
    (9, "2d_summa"),
    (1, "2d_summa"),
]


@pytest.mark.parametrize("exchange", ["sparse", "dense"])
@pytest.mark.parametrize(("num_ranks", "grid"), OF_PAPERS)
def test_layouts_of_the_papers_give_the_same(num_ranks, grid, exchange):
    single, ranks = grid_outcomes(MODELS["SAGE mean"], wide_graph(), num_ranks, grid, EPOCHS, exchange)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("grid", ["1.5d_replicated(c=2)", "2d_summa"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_same_in_layouts_of_the_papers(name, grid):
    single, ranks = grid_outcomes(MODELS[name], wide_graph(), 4, grid, EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("name", ["GCN", "GIN", "SGC", "SAGE sum"])
def test_a_symmetric_matrix_may_be_held_once(name):
    graph = wide_graph(weighted=True)
    both_ways = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    graph = dataclasses.replace(graph, edge_index=both_ways, edge_weight=graph.edge_weight.repeat(2))
    build = Weighted if name == "GCN" else MODELS[name]
    single, ranks = grid_outcomes(build, graph, 4, "2d_summa(symmetric=True)", EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize(
    ("num_ranks", "grid"), [(3, "1d"), (3, "1d_columns"), (6, "1.5d(c=2)"), (4, "2d"), (8, "3d"), (5, "feature")]
)
def test_every_preset_gives_the_same_with_whole_blocks(num_ranks, grid):
    single, ranks = grid_outcomes(MODELS["GCN"], wide_graph(), num_ranks, grid, EPOCHS, "dense")
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("grid", ["grid(pi=2, pk=2, pj=1)", "grid(pi=2, pk=1, pj=2)"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_same_on_four_ranks(name, grid):
    single, ranks = grid_outcomes(MODELS[name], wide_graph(), 4, grid, EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("grid", ["1d", "1d_columns", "2d", "1.5d_replicated(c=2)"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_gives_the_same_where_features_are_whole(name, grid):
    single, ranks = grid_outcomes(ATTENTION[name], wide_graph(), 4, grid, EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("name", OF_WHOLE_ROWS)
def test_any_convolution_gives_the_same_where_edges_into_a_row_are_together(name):
    single, ranks = grid_outcomes(OF_WHOLE_ROWS[name], wide_graph(), 3, "1d", EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("exchange", ["sparse", "dense"])
@pytest.mark.parametrize(
    ("num_ranks", "grid"), [(3, "1d"), (3, "1d_columns"), (6, "1.5d(c=2)"), (8, "3d"), (4, "feature")]
)
def test_rows_that_travel_block_by_block_give_the_same(num_ranks, grid, exchange):
    single, ranks = grid_outcomes(MODELS["SAGE mean"], wide_graph(), num_ranks, grid, EPOCHS, exchange, "staged=True")
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("exchange", ["sparse", "dense"])
@pytest.mark.parametrize(
    ("num_ranks", "grid"),
    [(8, "1d"), (8, "grid(pi=2, pk=4, pj=1)"), (8, "3d"), (8, "feature"), (9, "1.5d_replicated(c=3)"), (9, "2d_summa")],
)
@pytest.mark.parametrize("num_nodes", [3, 5])
def test_ranks_without_a_node_take_part(num_nodes, num_ranks, grid, exchange):
    graph = wide_graph()
    few = Graph(
        x=graph.x[:num_nodes],
        y=graph.y[:num_nodes],
        edge_index=torch.tensor([[0, num_nodes - 1, 1], [num_nodes - 1, 0, 1]]),
        train_mask=torch.arange(num_nodes) % 3 == 0,
        val_mask=torch.arange(num_nodes) % 3 == 1,
        test_mask=torch.arange(num_nodes) % 3 == 2,
        num_classes=OUT,
        name="few",
    )
    single, ranks = grid_outcomes(MODELS["GCN"], few, num_ranks, grid, 3, exchange)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("grid", ["1d_columns", "2d", "feature", "1.5d_replicated(c=2)", "2d_summa"])
def test_edge_weights_have_their_part(grid):
    single, ranks = grid_outcomes(Weighted, wide_graph(weighted=True), 4, grid, EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


def test_a_graph_without_edges_sends_no_rows_where_none_is_needed():
    graph = dataclasses.replace(wide_graph(), edge_index=torch.empty(2, 0, dtype=torch.int64))
    single, ranks = grid_outcomes(MODELS["GCN"], graph, 4, "2d", 3)
    check_equal(single, ranks)
    check_traffic(ranks)
    assert not [row for rank in ranks for rows in rank.counted[1:] for row in rows if row.operation == "all_to_all"]


@pytest.mark.parametrize("grid", ["2d", "feature", "2d_summa"])
def test_ids_beyond_32_bits_are_told_apart(grid):
    graph = wide_graph()
    # Equal but for what 32 bits cut off.
    ids = torch.arange(graph.num_nodes) % 2 + (torch.arange(graph.num_nodes) << 40)
    graph = dataclasses.replace(graph, node_ids=ids)
    single, ranks = grid_outcomes(MODELS["APPNP"], graph, 4, grid, EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("grid", ["1d", "2d", "grid(pi=1, pk=2, pj=2)", "1.5d_replicated(c=2)", "2d_summa"])
def test_a_store_is_read_by_block_whatever_the_order_of_its_nodes(grid, tmp_path):
    graph = wide_graph(weighted=True)
    parts = np.random.default_rng(1).integers(0, 7, graph.num_nodes)
    write_store(graph, parts, tmp_path / "store", reorder="rcm")
    torch.manual_seed(0)
    model = Weighted().double()
    copies = [copy.deepcopy(model) for _ in range(4)]

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        store = open_store(tmp_path / "store")
        return train(f'full_graph(grid="{grid}")', store, copies[transport.rank], communicator, EPOCHS)

    single = train("single", graph, model, Communicator(LocalTransport(), Ledger(0)), EPOCHS)
    ranks = run_ranks(4, run)
    check_equal(single, ranks)
    check_traffic(ranks)
