"""The promise of `compressed_halo` with the codec identity: on any number of ranks, what one machine computes.

In float64: losses, predictions and every gradient of the first step to 1e-10, parameters after 20 epochs of Adam to
1e-8 (Adam amplifies rounding where the true gradient is zero). And what was predicted is what was counted.
"""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    ARMAConv,
    ChebConv,
    GraphConv,
    GraphSAGE,
    SGConv,
    TransformerConv,
)
from torch_geometric.nn import norm as pyg

from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.graph import Graph
from laconic.records import LedgerRecord
from laconic.store import open_store, write_store
from laconic.strategies import parse_strategy

IN, OUT = 6, 4
EPOCHS = 20


class Stack(nn.Module):
    """Layers one after the other: convolutions are given the edges, others are not."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = layer(x, edge_index) if hasattr(layer, "propagate") else layer(x)
        return x


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


@dataclass
class Outcome:
    """What a rank saw."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]
    predictions: dict[int, torch.Tensor]
    state: dict[str, torch.Tensor]
    counted: list[list[LedgerRecord]]
    predicted: list[LedgerRecord]


def make_graph(num_nodes: int = 60, *, seed: int = 0, weighted: bool = False) -> Graph:
    """Directed, with loops, duplicate edges, isolated nodes, and training nodes in one corner only."""
    rng = np.random.default_rng(seed)
    num_busy = max(num_nodes - 3, 1)
    edges = rng.integers(0, num_busy, (2, 5 * num_nodes))
    split = np.arange(num_nodes) * 3 // num_nodes
    ids = rng.permutation(1000)[:num_nodes]
    return Graph(
        x=torch.from_numpy(rng.normal(size=(num_nodes, IN))),
        y=torch.from_numpy(rng.integers(0, OUT, num_nodes)),
        edge_index=torch.from_numpy(edges),
        edge_weight=torch.from_numpy(rng.random(edges.shape[1])) if weighted else None,
        train_mask=torch.from_numpy(split == 0),
        val_mask=torch.from_numpy(split == 1),
        test_mask=torch.from_numpy(split == 2),
        num_classes=OUT,
        node_ids=torch.from_numpy(ids),
        name="test",
    )


def train(strategy_text: str, source: Graph, model: nn.Module, communicator: Communicator, epochs: int) -> Outcome:
    strategy = parse_strategy(strategy_text)
    shard = strategy.place(source, communicator)
    strategy.check(model, shard)
    strategy.attach(model, shard, seed=5)
    predicted = strategy.predict_traffic(model)
    setup = communicator.ledger.take(0)
    # No weight decay: of a bias before a norm, whose true gradient is zero, Adam with decay amplifies rounding a
    # thousandfold in every step (lr * decay / eps), on one machine as on several.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, gradients, counted = [], {}, [setup]
    for epoch in range(1, epochs + 1):
        model.train()
        shard = strategy.start_epoch(epoch)
        rows = shard.train_rows
        out = run_model(model, shard)
        local = F.cross_entropy(out[rows], shard.y[rows], reduction="sum") / strategy.num_train
        loss = strategy.share_loss(local)
        optimizer.zero_grad()
        loss.backward()
        if epoch == 1:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            logits = run_model(model, shard)
        counted.append(communicator.ledger.take(epoch))
    predictions = dict(zip(shard.node_ids.tolist(), logits, strict=True))
    return Outcome(losses, gradients, predictions, copy.deepcopy(model.state_dict()), counted, predicted)


def outcomes(build: Callable[[], nn.Module], graph: Graph, num_ranks: int, partitioner: str, epochs: int):
    torch.manual_seed(0)
    model = build().double()
    copies = [copy.deepcopy(model) for _ in range(num_ranks)]
    for other in copies[1:]:
        # Only rank 0's weights count.
        nn.init.zeros_(next(other.parameters()))

    def run(transport):
        torch.get_num_threads()
        torch.set_num_threads(1)
        communicator = Communicator(transport, Ledger(transport.rank))
        text = f"compressed_halo(partitioner={partitioner})"
        return train(text, graph, copies[transport.rank], communicator, epochs)

    single = train("single", graph, model, Communicator(LocalTransport(), Ledger(0)), epochs)
    return single, run_ranks(num_ranks, run)


def check_equal(single: Outcome, ranks: list[Outcome]) -> None:
    predictions: dict[int, torch.Tensor] = {}
    for rank in ranks:
        np.testing.assert_allclose(rank.losses[0], single.losses[0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(rank.losses, single.losses, rtol=0, atol=1e-8)
        assert rank.gradients.keys() == single.gradients.keys()
        for name, gradient in single.gradients.items():
            torch.testing.assert_close(rank.gradients[name], gradient, rtol=0, atol=1e-10, msg=name)
        for name, value in single.state.items():
            torch.testing.assert_close(rank.state[name], value, rtol=0, atol=1e-8, msg=name)
            assert torch.equal(rank.state[name], ranks[0].state[name]), f"{name} differs between ranks"
        predictions |= rank.predictions
    assert predictions.keys() == single.predictions.keys()
    for node, logits in single.predictions.items():
        torch.testing.assert_close(predictions[node], logits, rtol=0, atol=1e-8)


def check_traffic(ranks: list[Outcome]) -> None:
    for number, rank in enumerate(ranks):
        once = [row for row in rank.predicted if row.epoch == 0]
        every = [row for row in rank.predicted if row.epoch == 1]
        assert [row for row in rank.counted[1] if row.phase == "setup"] == relabelled(once, 1), f"rank {number}"
        for epoch, counted in enumerate(rank.counted[1:], start=1):
            assert [row for row in counted if row.phase != "setup"] == relabelled(every, epoch), f"rank {number}"
    sent, received = (
        sum(row.num_bytes for rank in ranks for rows in rank.counted for row in rows if row.direction == direction)
        for direction in ("sent", "received")
    )
    assert sent == received


def relabelled(rows: list[LedgerRecord], epoch: int) -> list[LedgerRecord]:
    return [LedgerRecord(epoch, *(getattr(row, name) for name in LedgerRecord.__slots__[1:])) for row in rows]


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
        return train("compressed_halo", open_store(tmp_path / "store"), copies[transport.rank], communicator, EPOCHS)

    single = train("single", graph, model, Communicator(LocalTransport(), Ledger(0)), EPOCHS)
    ranks = run_ranks(num_ranks, run)
    check_equal(single, ranks)
    check_traffic(ranks)


def test_more_ranks_than_chunks_are_refused_with_the_numbers_that_fit(tmp_path):
    graph = make_graph()
    write_store(graph, np.arange(graph.num_nodes) % 2, tmp_path / "store")

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        parse_strategy("compressed_halo").place(open_store(tmp_path / "store"), communicator)

    with pytest.raises(ConfigError, match="has 2 chunks, and each of the 3 ranks needs one"):
        run_ranks(3, run)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ChebConv(IN, OUT, K=3), "ChebConv, which several ranks cannot share"),
        (lambda: ARMAConv(IN, OUT), "ARMAConv, which several ranks cannot share"),
        (lambda: Stack(GCN(IN, 8, 1), nn.SyncBatchNorm(8)), "layers.1 is a SyncBatchNorm"),
        (lambda: Stack(GCN(IN, 8, 1), pyg.GraphSizeNorm()), "layers.1 is a GraphSizeNorm"),
    ],
)
def test_layers_that_would_be_wrong_on_several_ranks_are_refused_by_name(build, words):
    strategy = parse_strategy("compressed_halo")
    shard = strategy.place(make_graph(), Communicator(LocalTransport(), Ledger(0)))
    with pytest.raises(UnsupportedModelError, match=words):
        strategy.check(build().double(), shard)


def test_other_edges_than_the_shards_own_are_refused():
    strategy = parse_strategy("compressed_halo")
    shard = strategy.place(make_graph(), Communicator(LocalTransport(), Ledger(0)))
    model = GCN(IN, 8, 2, OUT).double()
    strategy.attach(model, shard, seed=0)
    with pytest.raises(UnsupportedModelError, match="an edge_index other than the graph's own"):
        model(shard.x, shard.edge_index.clone())


def test_gradients_of_several_backward_passes_add_up():
    graph = make_graph()

    def run(transport):
        strategy = parse_strategy("compressed_halo")
        shard = strategy.place(graph, Communicator(transport, Ledger(transport.rank)))
        model = GCN(IN, 8, 2, OUT).double()
        strategy.attach(model, shard, seed=0)
        found = []
        for times in (1, 2):
            model.zero_grad()
            for _ in range(times):
                strategy.share_loss(model(shard.x, shard.edge_index).square().sum()).backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
        return found

    for once, twice in run_ranks(2, run):
        for gradient, doubled in zip(once, twice, strict=True):
            torch.testing.assert_close(doubled, 2 * gradient)
