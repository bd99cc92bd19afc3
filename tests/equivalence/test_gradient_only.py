"""Where `gradient_only` promises what one machine computes: alone, with all chunks held, and after each refresh.

In float64: losses, predictions and gradients of the first step to 1e-10, after 20 epochs of Adam to 1e-8. The graph is
directed, with loops, duplicate edges, isolated nodes, and training nodes in one corner only.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.equivalence.halo_runs import EPOCHS, IN, OUT, Stack, make_graph
from tests.equivalence.isolated_runs import (
    OwnConv,
    check_alike,
    check_equal,
    mean_loss,
    models_of,
    parts_of,
    run_isolated,
    run_single,
)
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, GIN, GCNConv, GraphConv, GraphSAGE, SGConv, TransformerConv
from torch_geometric.nn import norm as pyg

from laconic.store import open_store, write_store


class Weighted(nn.Module):
    """Takes the edge weights of whatever shard it is called with."""

    def __init__(self, num_layers: int = 3) -> None:
        super().__init__()
        self.inner = GCN(IN, 8, num_layers, OUT)

    def forward(self, x, edge_index, edge_weight=None):
        return self.inner(x, edge_index, edge_weight=edge_weight)


def own_model(num_layers: int = 2) -> nn.Module:
    hidden = [layer for _ in range(num_layers - 2) for layer in (OwnConv(8, 8), nn.ReLU())]
    return Stack(OwnConv(IN, 8), nn.ReLU(), *hidden, OwnConv(8, OUT))


# Without dropout and norms over nodes: what they draw or gather is another matter in isolation.
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "GCN-2": lambda: GCN(IN, 8, 2, OUT),
    "GCN-6": lambda: GCN(IN, 8, 6, OUT),
    "SAGE-3": lambda: GraphSAGE(IN, 8, 3, OUT),
    "SAGE max": lambda: GraphSAGE(IN, 8, 2, OUT, aggr="max"),
    "GAT-2": lambda: GAT(IN, 8, 2, OUT, heads=2),
    "GATv2-3": lambda: GAT(IN, 8, 3, OUT, heads=2, v2=True, residual=True),
    "GIN-3": lambda: GIN(IN, 8, 3, OUT),
    "user's own": own_model,
    "user's own, 4 layers": lambda: own_model(4),
    "SGC": lambda: SGConv(IN, OUT, K=3),
    "SGC behind a Linear": lambda: Stack(nn.Linear(IN, 5), SGConv(5, OUT, K=2)),
    "APPNP": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1)),
    "GraphConv": lambda: Stack(GraphConv(IN, 8), nn.ReLU(), GraphConv(8, OUT, aggr="mean")),
    "jumping knowledge": lambda: GCN(IN, 8, 3, OUT, jk="cat"),
    "jumping knowledge lstm": lambda: GraphSAGE(IN, 8, 2, OUT, jk="lstm"),
    "one layer": lambda: GCNConv(IN, OUT),
    "PyG's own code": lambda: Stack(TransformerConv(IN, 4, heads=2), nn.ReLU(), TransformerConv(8, OUT, concat=False)),
}
MODELS = PLAIN | {
    "GCN dropout": lambda: GCN(IN, 8, 2, OUT, dropout=0.5),
    "SAGE-5 batch norm, dropout": lambda: GraphSAGE(IN, 8, 5, OUT, norm="batch_norm", dropout=0.3),
    "GAT dropout": lambda: GAT(IN, 8, 2, OUT, heads=2, dropout=0.4),
    "GIN batch norm": lambda: GIN(IN, 8, 3, OUT, norm="batch_norm", train_eps=True),
    "APPNP edge dropout": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1, dropout=0.5)),
    "layer norm of the graph": lambda: GraphSAGE(IN, 8, 2, OUT, norm="layer_norm"),
    "graph norm": lambda: GCN(IN, 8, 2, OUT, norm="graph_norm"),
    "pair norm": lambda: GCN(IN, 8, 2, OUT, norm="pair_norm"),
    "instance norm": lambda: GCN(IN, 8, 2, OUT, norm=pyg.InstanceNorm(8, affine=True, track_running_stats=True)),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_rank_alone_is_one_machine(name):
    graph = make_graph()
    check_equal(run_single(MODELS[name], graph, EPOCHS), run_isolated(MODELS[name], graph, 1, "", EPOCHS))


def check_exact_losses(build, graph, rank, epochs):
    """The losses of these epochs, counted from 0, are those of one machine with the weights of that moment."""
    plain = models_of(build, 1)[0]
    for epoch in epochs:
        if epoch:
            plain.load_state_dict(rank.states[epoch - 1])
        assert rank.losses[epoch] == pytest.approx(mean_loss(plain, graph).item(), rel=0, abs=1e-10)


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks") / "store"
    write_store(make_graph(), parts_of(make_graph(), 7, "metis").numpy(), folder)
    return open_store(folder)


@pytest.mark.parametrize("has_many_chunks", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_with_a_refresh_in_every_epoch_every_loss_is_exact(name, has_many_chunks, many_chunks):
    graph = make_graph()
    source = many_chunks if has_many_chunks else graph
    ranks = run_isolated(PLAIN[name], source, 3, "refresh_every=1, codec=identity, partitioner=random", 4)
    check_exact_losses(PLAIN[name], graph, ranks[0], range(4))
    check_alike(ranks)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("name", ["GCN-2", "SAGE-3", "GAT-2", "GIN-3", "user's own", "SAGE max"])
def test_the_first_loss_after_each_refresh_is_exact(name, num_ranks):
    graph = make_graph()
    settings = "refresh_every=3, gradual=True, codec=identity, partitioner=random"
    ranks = run_isolated(PLAIN[name], graph, num_ranks, settings, 7)
    check_exact_losses(PLAIN[name], graph, ranks[0], [0, 1, 3, 6])
    check_alike(ranks)


def test_edge_weights_have_their_part():
    graph = make_graph(weighted=True)
    single = run_single(Weighted, graph, EPOCHS)
    check_equal(single, run_isolated(Weighted, graph, 1, "", EPOCHS))
    historical = run_isolated(Weighted, graph, 3, "refresh_every=2, codec=identity", 3)
    assert historical[0].losses[0] == pytest.approx(single.losses[0], rel=0, abs=1e-10)


def is_finite(outcome):
    tensors = [*outcome.state.values(), torch.tensor(outcome.losses)]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


@pytest.mark.parametrize("name", ["SAGE-3", "GAT-2", "user's own"])
def test_ranks_without_a_training_node_take_part(name, tmp_path):
    graph = make_graph()
    # The first third of the nodes are the training ones.
    write_store(graph, np.arange(60) * 3 // 60, tmp_path / "store")
    store = open_store(tmp_path / "store")
    ranks = run_isolated(PLAIN[name], store, 3, "refresh_every=2, gradual=True, codec=identity", 3)
    check_exact_losses(PLAIN[name], graph, ranks[0], [0, 1])


WITHOUT_NODES = ["SAGE-3", "SAGE-5 batch norm, dropout", "GAT dropout", "graph norm", "user's own"]


@pytest.mark.parametrize("name", WITHOUT_NODES)
def test_ranks_without_any_node_take_part(name):
    graph = make_graph(5)
    assert len(set(parts_of(graph, 8).tolist())) < 8
    settings = "refresh_every=2, gradual=True, codec=identity, partitioner=random"
    ranks = run_isolated(MODELS[name], graph, 8, settings, 4)
    check_alike(ranks)
    assert is_finite(ranks[0])
    if name in PLAIN:
        check_exact_losses(MODELS[name], graph, ranks[0], [0, 1, 3])
