"""PyG models as they are: on one rank and on two they give what plain PyG gives, or say what to write."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    MLP,
    PNA,
    AGNNConv,
    DeepGCNLayer,
    EdgeConv,
    GatedGraphConv,
    GCN2Conv,
    GCNConv,
    GENConv,
    GraphSAGE,
    JumpingKnowledge,
    MessagePassing,
    SAGEConv,
    Sequential,
    TransformerConv,
)

import laconic

IN, HIDDEN, OUT = 8, 6, 4


class Two(nn.Module):
    """Two layers of whatever kind."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class OwnMean(MessagePassing):
    """A convolution of one's own, with other names and without in_channels."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(aggr="mean")
        self.lin = nn.Linear(width_in, width_out)

    def forward(self, h, adj):
        return self.lin(self.propagate(adj, h=h) + h)

    def message(self, h_j):
        return h_j.relu()


class EdgesFirst(OwnMean):
    def forward(self, adj, h):
        return super().forward(h, adj)


class HoldsEdgesFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = EdgesFirst(IN, OUT)

    def forward(self, x, edge_index):
        return self.conv(edge_index, h=x)


class WithWeight(nn.Module):
    """Asks for edge_weight, which may be None."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(IN, HIDDEN), GCNConv(HIDDEN, OUT)

    def forward(self, x, edge_index, edge_weight):
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class FirstRowsTwice(nn.Module):
    """GCN2Conv: a convolution with more rows than one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.conv, self.decode = nn.Linear(IN, HIDDEN), OwnInitial(HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x, edge_index):
        h = self.encode(x)
        return self.decode(self.conv(h.relu(), h, edge_index))


class OwnInitial(GCN2Conv):
    def __init__(self, width: int) -> None:
        super().__init__(width, alpha=0.3, normalize=False)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)
        conv = GENConv(HIDDEN, HIDDEN, aggr="softmax", learn_t=True, num_layers=2, norm="layer")
        self.layer = DeepGCNLayer(conv, nn.LayerNorm(HIDDEN), nn.ReLU(), block="res+")

    def forward(self, x, edge_index):
        return self.decode(self.layer(self.encode(x), edge_index))


def sequential() -> nn.Module:
    return Sequential(
        "x, edge_index",
        [
            (GCNConv(IN, HIDDEN), "x, edge_index -> x1"),
            nn.ReLU(inplace=True),
            (GCNConv(HIDDEN, HIDDEN), "x1, edge_index -> x2"),
            (lambda x1, x2: [x1, x2], "x1, x2 -> xs"),
            (JumpingKnowledge("cat", HIDDEN, 2), "xs -> x"),
            nn.Linear(2 * HIDDEN, OUT),
        ],
    )


def weighted_sequential() -> nn.Module:
    return Sequential("h, adj, edge_weight", [(GCNConv(IN, OUT), "h, adj, edge_weight -> h")])


def pna() -> nn.Module:
    scalers = ["identity", "amplification", "attenuation"]
    return PNA(IN, 8, 2, OUT, aggregators=["mean", "max", "std"], scalers=scalers, deg=torch.tensor([1, 4, 9, 9, 4, 1]))


MODELS = {
    "Sequential": sequential,
    "Sequential with edge_weight": weighted_sequential,
    "other argument names": lambda: Two(OwnMean(IN, HIDDEN), OwnMean(HIDDEN, OUT)),
    "edges first, by keyword": HoldsEdgesFirst,
    "EdgeConv": lambda: Two(EdgeConv(nn.Linear(2 * IN, HIDDEN)), EdgeConv(MLP([2 * HIDDEN, HIDDEN, OUT], norm=None))),
    "no in_channels": lambda: Two(GatedGraphConv(IN, 2), AGNNConv()),
    "two kinds of rows": FirstRowsTwice,
    "edge_weight required": WithWeight,
    "GCN with jk": lambda: GCN(IN, HIDDEN, 3, OUT, jk="lstm", norm="batch_norm"),
    "GraphSAGE": lambda: GraphSAGE(IN, HIDDEN, 2, OUT),
    "GAT": lambda: GAT(IN, HIDDEN, 2, OUT, heads=2),
    "GIN": lambda: GIN(IN, HIDDEN, 2, OUT),
    "PNA": pna,
    "DeepGCNLayer": Deep,
    "SAGEConv of a pair": lambda: Two(SAGEConv((IN, IN), HIDDEN), SAGEConv((HIDDEN, HIDDEN), OUT)),
    "TransformerConv": lambda: TransformerConv(IN, OUT, heads=2, concat=False),
}


def one_step(graph, model, communicator=None, strategy="auto"):
    """Loss and gradients after one step of a session; `model` is only copied."""
    session = laconic.join(graph, strategy=strategy, communicator=communicator)
    model = session.attach(copy.deepcopy(model))
    for _, shard in session.epochs(1):
        out = called(model, shard)
        loss = session.loss(F.cross_entropy, out, shard)
        loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def called(model, graph):
    asks = isinstance(model, WithWeight) or (isinstance(model, Sequential) and len(model.signature.param_dict) == 3)
    return model(graph.x, graph.edge_index, *([graph.edge_weight] if asks else []))


@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_loss_and_gradients_of_plain_pyg_on_one_rank_and_on_two(name, make_graph, on_ranks):
    torch.manual_seed(0)
    graph, model = make_graph(dtype=torch.float64), MODELS[name]().double()
    plain = copy.deepcopy(model)
    loss = F.cross_entropy(called(plain, graph)[graph.train_mask], graph.y[graph.train_mask])
    loss.backward()
    alone = one_step(graph, model)
    for shared_loss, gradients in [alone, *on_ranks(2, lambda communicator: one_step(graph, model, communicator))]:
        assert shared_loss == pytest.approx(loss.item(), rel=0, abs=1e-10)
        for parameter_name, parameter in plain.named_parameters():
            assert (gradients[parameter_name] is None) == (parameter.grad is None), parameter_name
            if parameter.grad is not None:
                torch.testing.assert_close(
                    gradients[parameter_name], parameter.grad, rtol=0, atol=1e-10, msg=parameter_name
                )


def test_a_copy_of_an_attached_sequential_is_exact_in_evaluation(make_graph, on_ranks):
    # PyG gives a copy a forward of its own, in place of ours.
    graph, model = make_graph(dtype=torch.float64), sequential().double()

    def work(communicator):
        session = laconic.join(graph, strategy="exchange(codec=quantize(bits=1))", communicator=communicator)
        mine = session.attach(copy.deepcopy(model))
        for _, shard in session.epochs(1):
            session.loss(F.cross_entropy, mine(shard.x, shard.edge_index), shard).backward()
        with torch.no_grad():
            return [each.eval()(shard.x, shard.edge_index) for each in (copy.deepcopy(mine), mine)]

    for copied, original in on_ranks(2, work):
        assert torch.equal(copied, original)


def test_of_two_sequentials_each_runs_its_own_layers(small_graph):
    # PyG gives the class the forward of the last one that was built.
    first, second = sequential(), weighted_sequential()
    expected = first(small_graph.x, small_graph.edge_index)
    session = laconic.join(small_graph)
    model = session.attach(first)
    shard = session.shard
    torch.testing.assert_close(model(shard.x, shard.edge_index), expected)
    assert session.detach() is first
    torch.testing.assert_close(first(small_graph.x, small_graph.edge_index), expected)
    assert second(small_graph.x, small_graph.edge_index, None).shape == (60, OUT)
