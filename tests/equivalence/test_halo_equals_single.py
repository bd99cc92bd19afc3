"""The promise of `exchange` with the codec identity: on any number of ranks, what one machine computes.

In float64: losses, predictions and every gradient of the first step to 1e-10, parameters after 20 epochs of Adam to
1e-8 (Adam amplifies rounding where the true gradient is zero). And what was predicted is what was counted.
"""

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.equivalence.halo_runs import EPOCHS, IN, OUT, Stack, check_equal, check_traffic, make_graph, outcomes, train
from tests.placing import place
from torch import nn
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GraphConv,
    GraphSAGE,
    SGConv,
    TransformerConv,
)
from torch_geometric.nn import norm as pyg

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.store import open_store, write_store

MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"GCN-{k}": lambda k=k: GCN(IN, 8, k, OUT) for k in (1, 2, 3, 4)},
    "GCN dropout": lambda: GCN(IN, 8, 2, OUT, dropout=0.5),
    "SAGE-3": lambda: GraphSAGE(IN, 8, 3, OUT, dropout=0.3),
    "SAGE wide in": lambda: GraphSAGE(IN, 3, 3, OUT),
    "SAGE max": lambda: GraphSAGE(IN, 8, 2, OUT, aggr="max"),
    "GIN": lambda: GIN(IN, 8, 2, OUT),
    "GIN batch norm": lambda: GIN(IN, 8, 3, OUT, norm="batch_norm", train_eps=True),
    "GAT": lambda: GAT(IN, 8, 2, OUT, heads=2, dropout=0.4),
    "GAT narrow": lambda: GAT(IN, 2, 3, OUT, heads=1, residual=True),
    "GATv2": lambda: GAT(IN, 8, 2, OUT, heads=2, v2=True, dropout=0.4),
    "SGC": lambda: SGConv(IN, OUT, K=3),
    "APPNP": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1, dropout=0.5)),
    "GraphConv": lambda: Stack(GraphConv(IN, 8), nn.ReLU(), GraphConv(8, OUT, aggr="mean")),
    "jumping knowledge": lambda: GCN(IN, 8, 3, OUT, jk="cat"),
    "jumping knowledge lstm": lambda: GraphSAGE(IN, 8, 2, OUT, jk="lstm"),
    "batch norm": lambda: GCN(IN, 8, 3, OUT, norm="batch_norm", dropout=0.2),
    "layer norm of the graph": lambda: GraphSAGE(IN, 8, 2, OUT, norm="layer_norm"),
    "graph norm": lambda: GCN(IN, 8, 2, OUT, norm="graph_norm"),
    "pair norm": lambda: GCN(IN, 8, 2, OUT, norm="pair_norm"),
    "instance norm": lambda: GCN(IN, 8, 2, OUT, norm=pyg.InstanceNorm(8, affine=True, track_running_stats=True)),
    "mean subtraction": lambda: GCN(IN, 8, 2, OUT, norm=pyg.MeanSubtractionNorm()),
    "PyG's own code": lambda: Stack(TransformerConv(IN, 4, heads=2), nn.ReLU(), TransformerConv(8, OUT, concat=False)),
}
# The rest of the models runs on one number of ranks: what differs between numbers does not differ between layers.
ON_ANY_NUMBER = ["GCN-3", "SAGE-3", "GAT", "batch norm"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_same_on_three_ranks(name):
    single, ranks = outcomes(MODELS[name], make_graph(), 3, "random", EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("partitioner", ["random", "metis"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ON_ANY_NUMBER)
def test_any_number_of_ranks_gives_the_same(name, num_ranks, partitioner):
    single, ranks = outcomes(MODELS[name], make_graph(), num_ranks, partitioner, EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("num_nodes", [3, 5])
def test_ranks_without_a_node_take_part(num_nodes):
    graph = make_graph(60)
    few = Graph(
        x=graph.x[:num_nodes],
        y=graph.y[:num_nodes],
        edge_index=torch.tensor([[0, num_nodes - 1], [num_nodes - 1, 0]]),
        train_mask=torch.arange(num_nodes) % 3 == 0,
        val_mask=torch.arange(num_nodes) % 3 == 1,
        test_mask=torch.arange(num_nodes) % 3 == 2,
        num_classes=OUT,
        name="few",
    )
    single, ranks = outcomes(MODELS["SAGE-3"], few, 8, "random", 3)
    check_equal(single, ranks)
    check_traffic(ranks)


def test_a_graph_without_edges_sends_no_rows():
    graph = dataclasses.replace(make_graph(), edge_index=torch.empty(2, 0, dtype=torch.int64))
    single, ranks = outcomes(MODELS["GCN-2"], graph, 3, "random", 3)
    check_equal(single, ranks)
    check_traffic(ranks)
    assert not [row for rank in ranks for rows in rank.counted[1:] for row in rows if row.operation == "all_to_all"]


class Weighted(nn.Module):
    """Takes the edge weights of whatever shard it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = GCN(IN, 8, 3, OUT)

    def forward(self, x, edge_index, edge_weight=None):
        return self.inner(x, edge_index, edge_weight=edge_weight)


def test_edge_weights_have_their_part():
    single, ranks = outcomes(Weighted, make_graph(weighted=True), 3, "random", EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_a_store_gives_the_same_whatever_the_order_of_its_nodes(num_ranks, tmp_path):
    graph = make_graph(weighted=True)
    parts = np.random.default_rng(1).integers(0, 5, graph.num_nodes)
    write_store(graph, parts, tmp_path / "store", reorder="rcm")
    build = MODELS["GCN dropout"]
    torch.manual_seed(0)
    model = build().double()
    copies = [copy.deepcopy(model) for _ in range(num_ranks)]

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        return train("exchange", open_store(tmp_path / "store"), copies[transport.rank], communicator, EPOCHS)

    single = train("single", graph, model, Communicator(LocalTransport(), Ledger(0)), EPOCHS)
    ranks = run_ranks(num_ranks, run)
    check_equal(single, ranks)
    check_traffic(ranks)


def test_more_ranks_than_chunks_are_refused_with_the_numbers_that_fit(tmp_path):
    graph = make_graph()
    write_store(graph, np.arange(graph.num_nodes) % 2, tmp_path / "store")

    def run(transport):
        place("exchange", open_store(tmp_path / "store"), ranks=transport)

    with pytest.raises(ConfigError, match="has 2 chunks, and each of the 3 ranks needs one"):
        run_ranks(3, run)
