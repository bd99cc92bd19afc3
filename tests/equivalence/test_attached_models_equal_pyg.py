"""The promise of `attach`: forward, loss and every gradient are PyG's own, in float64 to 1e-10, at dropout 0."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    MLP,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphSAGE,
    MessagePassing,
    SAGEConv,
    SGConv,
)

from laconic.attach import attach
from laconic.graph import Shard

IN, OUT = 8, 4
TOLERANCE = 1e-10


class Deep(nn.Module):
    """Input features that need a gradient: a Linear before the convolution, so that nothing is remembered."""

    def __init__(self, conv: nn.Module, width: int) -> None:
        super().__init__()
        self.before, self.conv, self.after = nn.Linear(IN, width), conv, nn.LazyLinear(OUT)

    def forward(self, x, edge_index, edge_weight=None):
        x = self.before(x).tanh()
        x = self.conv(x, edge_index) if edge_weight is None else self.conv(x, edge_index, edge_weight)
        return self.after(x)


def hooked(layer: nn.Module) -> nn.Module:
    """A layer whose hook sees its input: the aggregated rows, in PyG and here."""
    layer.register_forward_pre_hook(lambda module, args: args[0].sin())
    return layer


CONVOLUTIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": lambda i, o: GCNConv(i, o),
    "gcn improved": lambda i, o: GCNConv(i, o, improved=True),
    "gcn no loops": lambda i, o: GCNConv(i, o, add_self_loops=False),
    "gcn raw": lambda i, o: GCNConv(i, o, normalize=False, bias=False),
    "gcn cached": lambda i, o: GCNConv(i, o, cached=True),
    "sage mean": lambda i, o: SAGEConv(i, o),
    "sage sum": lambda i, o: SAGEConv(i, o, aggr="sum"),
    "sage max": lambda i, o: SAGEConv(i, o, aggr="max"),
    "sage project": lambda i, o: SAGEConv(i, o, project=True, normalize=True),
    "sage no root": lambda i, o: SAGEConv(i, o, root_weight=False, bias=False),
    "gin": lambda i, o: GINConv(nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o)), eps=0.3),
    "gin narrow": lambda i, o: GINConv(nn.Sequential(nn.Linear(i, 3), nn.ReLU(), nn.Linear(3, o)), eps=0.3),
    "gin MLP": lambda i, o: GINConv(MLP([i, 3, o], dropout=0.0)),
    "gin layer used twice": lambda i, o: GINConv(nn.Sequential(*[nn.Linear(i, i)] * 2)),
    "gin no Linear first": lambda i, o: GINConv(nn.Sequential(nn.ReLU(), nn.Linear(i, o))),
    "gin hooked": lambda i, o: GINConv(hooked(nn.Linear(i, o))),
    "gin train eps": lambda i, o: GINConv(nn.Linear(i, o), train_eps=True),
    "graph sum": lambda i, o: GraphConv(i, o),
    "graph mean": lambda i, o: GraphConv(i, o, aggr="mean"),
    "sgc": lambda i, o: SGConv(i, o, K=3),
    "sgc no loops": lambda i, o: SGConv(i, o, K=2, add_self_loops=False),
    "appnp": lambda i, o: APPNP(K=4, alpha=0.1),
    "appnp raw": lambda i, o: APPNP(K=2, alpha=0.1, normalize=False),
    "gat": lambda i, o: GATConv(i, o, heads=3),
    "gat mean heads": lambda i, o: GATConv(i, o, heads=2, concat=False, add_self_loops=False, residual=True),
    "gatv2": lambda i, o: GATv2Conv(i, o, heads=3),
    "gatv2 shared": lambda i, o: GATv2Conv(i, o, heads=2, concat=False, share_weights=True, add_self_loops=False),
}
WEIGHTED = ["gcn", "gcn improved", "gcn no loops", "gcn raw", "graph sum", "graph mean", "sgc", "appnp", "appnp raw"]

MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: GCN(IN, 16, 3, OUT),
    "GCN batch norm, jumping knowledge": lambda: GCN(IN, 16, 3, OUT, norm="batch_norm", jk="cat"),
    "GCN layer norm": lambda: GCN(IN, 16, 2, OUT, norm="layer_norm", act="elu", act_first=True),
    "GraphSAGE": lambda: GraphSAGE(IN, 16, 3, OUT),
    "GraphSAGE max, jumping knowledge": lambda: GraphSAGE(IN, 16, 3, OUT, jk="max", aggr="max"),
    "GraphSAGE lstm jumping knowledge": lambda: GraphSAGE(IN, 16, 2, OUT, jk="lstm"),
    "GIN": lambda: GIN(IN, 16, 3, OUT),
    "GIN batch norm": lambda: GIN(IN, 16, 2, OUT, norm="batch_norm", train_eps=True),
    "GAT": lambda: GAT(IN, 16, 3, OUT, heads=4),
    "GAT v2 residual": lambda: GAT(IN, 16, 2, OUT, heads=2, v2=True, residual=True),
    "narrowing": lambda: GraphSAGE(IN, 5, 2, OUT),
    "widening": lambda: GCN(IN, 32, 2, 40),
}


def loss_and_gradients(model, graph, weighted):
    arguments = (graph.x, graph.edge_index) + ((graph.edge_weight,) if weighted else ())
    out = model(*arguments)
    loss = F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask])
    model.zero_grad()
    loss.backward()
    return out.detach(), loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def refuse_to_propagate(*args, **kwargs):
    raise AssertionError("PyG's own code ran: it would be compared with itself")


def attach_for_kernels(model, graph):
    """Attaches `model`, and sees to it that nothing but the kernels can run."""
    attachment = attach(model, Shard.whole(graph))
    for module in model.modules():
        if isinstance(module, MessagePassing):
            module.propagate = refuse_to_propagate
    return attachment


def assert_equal_to_pyg(model, graph, weighted=False):
    plain = copy.deepcopy(model)
    attachment = attach_for_kernels(model, graph)
    # Twice: the first pass fills what is remembered, the second one reads it.
    for _ in range(2):
        ours = loss_and_gradients(attachment.model, attachment.shard, weighted)
        theirs = loss_and_gradients(plain, graph, weighted)
        torch.testing.assert_close(ours[:2], theirs[:2], atol=TOLERANCE, rtol=TOLERANCE)
        assert ours[2].keys() == theirs[2].keys()
        for name, gradient in theirs[2].items():
            if gradient is None:
                assert ours[2][name] is None, name
            else:
                torch.testing.assert_close(ours[2][name], gradient, atol=TOLERANCE, rtol=TOLERANCE, msg=name)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64, weighted=True)


@pytest.mark.parametrize("width", [3, IN, 12])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_gives_pygs_output_and_gradients(name, width, graph):
    if "project" in name and width != IN:
        width = 6
    model = Deep(CONVOLUTIONS[name](width, 6), width).double()
    model.before(graph.x[:1])  # widths before `after`
    with torch.no_grad():
        model(graph.x, graph.edge_index)
    assert_equal_to_pyg(model, graph)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_first_layer_on_the_graphs_own_features_gives_pygs_output_and_gradients(name, graph):
    conv = CONVOLUTIONS[name](IN, OUT).double()
    if not list(conv.parameters()):
        conv = Deep(conv, IN).double()
        with torch.no_grad():
            conv(graph.x, graph.edge_index)
    assert_equal_to_pyg(conv, graph)


@pytest.mark.parametrize("name", WEIGHTED)
def test_edge_weights_give_pygs_output_and_gradients(name, graph):
    model = Deep(CONVOLUTIONS[name](12, 6), 12).double()
    with torch.no_grad():
        model(graph.x, graph.edge_index)
    assert_equal_to_pyg(model, graph, weighted=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_ready_made_model_gives_pygs_output_and_gradients(name, graph):
    assert_equal_to_pyg(MODELS[name]().double(), graph)


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN", "GAT"])
def test_twenty_epochs_of_adam_end_with_pygs_parameters(name, graph):
    model = MODELS[name]().double()
    plain = copy.deepcopy(model)
    attachment = attach_for_kernels(model, graph)
    for trained, data in ((attachment.model, attachment.shard), (plain, graph)):
        optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
        for _ in range(20):
            loss_and_gradients(trained, data, False)
            optimizer.step()
    for (key, ours), theirs in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-8, msg=key)
