"""Models that ranks cannot share: the error names the layer, says why, and what to write."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tests.placing import place
from torch import nn
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINConv,
    GPSConv,
    HypergraphConv,
    MessagePassing,
    SuperGATConv,
    TAGConv,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, degree

import laconic
from laconic.errors import ConfigError, UnsupportedModelError

IN, OUT = 8, 4


def tutorial_convolution() -> MessagePassing:
    """GCNConv as PyG's tutorial writes it."""

    class GCNConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.lin = nn.Linear(IN, OUT, bias=False)

        def forward(self, x, edge_index):
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
            row, col = edge_index
            deg_inv_sqrt = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
            return self.propagate(edge_index, x=self.lin(x), norm=deg_inv_sqrt[row] * deg_inv_sqrt[col])

        def message(self, x_j, norm):
            return norm.view(-1, 1) * x_j

    return GCNConv()


class OwnSum(MessagePassing):
    """A convolution of one's own, with a weight for each edge."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(IN, OUT, bias=False)

    def forward(self, x, edge_index, edge_weight):
        return self.propagate(edge_index, x=self.lin(x), edge_weight=edge_weight)

    def message(self, x_j, edge_weight):
        return edge_weight.view(-1, 1) * x_j


class ReadsEdges(OwnSum):
    """Reads the rows of neighbours itself."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index, (x[edge_index[0]] * x[edge_index[1]]).sum(1))


class CountsNodes(OwnSum):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index, torch.full((edge_index.shape[1],), 1.0 / x.shape[0], dtype=x.dtype))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(IN, OUT)


class AddsLoops(Plain):
    def forward(self, x, edge_index):
        return self.conv(x, add_self_loops(edge_index, num_nodes=x.shape[0])[0])


class TakesData(Plain):
    def forward(self, data):
        return self.conv(data.x, data.edge_index)


class GivesTwo(Plain):
    def forward(self, x, edge_index):
        hidden = self.conv(x, edge_index)
        return hidden.relu(), hidden


class ReadsNeighbours(Plain):
    def forward(self, x, edge_index):
        return self.conv(x, edge_index) + x[edge_index[0]].mean()


class Forgets(Plain):
    """Has a convolution that it does not use."""

    def __init__(self, forgotten: nn.Module) -> None:
        super().__init__()
        self.forgotten = forgotten

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Gated(Plain):
    """Mixes rows behind a weight that begins as zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        return out + self.gate * out.mean(0)


class OfEachNode(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, IN)

    def forward(self, x, edge_index):
        return self.conv(x + self.embedding.weight, edge_index)


class HoldsAllRows(OfEachNode):
    def forward(self, x, edge_index):
        return self.conv(self.embedding.weight, edge_index)


REFUSED = {
    "the tutorial's GCNConv": (
        tutorial_convolution,
        r"the model is a GCNConv.*counts degrees itself \(degree\).*as edge_weight.*torch_geometric\.nn's own GCNConv",
    ),
    "degrees of PyG's own": (lambda: TAGConv(IN, OUT), r"TAGConv.*counts degrees itself \(gcn_norm\)"),
    "rows by edge_index": (ReadsEdges, r"a ReadsEdges.*outside of its messages it reads edge_index.*message\(\) alone"),
    "a count of nodes": (CountsNodes, r"a CountsNodes.*its output differs when two ranks share"),
    "a setting of PyG's own": (
        lambda: GATConv((IN, IN), OUT),
        r"a GATConv.*in_channels is a pair.*Change that setting\. Or use torch_geometric\.nn's own (?!.*GATConv)",
    ),
    "self-loops in the model": (AddsLoops, r"conv: GCNConv cannot.*edge_index other than.*before laconic\.join"),
    "training alone": (lambda: SuperGATConv(IN, OUT), "a SuperGATConv, which several ranks cannot share"),
    "hyperedges": (lambda: HypergraphConv(IN, OUT), "a HypergraphConv, which several ranks cannot share"),
    "attention over all": (lambda: GPSConv(IN, GCNConv(IN, IN), heads=2), "mixes the rows of nodes outside of convol"),
    "a Data object": (TakesData, r"Write forward\(self, x, edge_index\), with x for data\.x and edge_index for data\."),
    "a pair of outputs": (GivesTwo, r"GivesTwo should return one tensor.*returned a tuple.*self\.hidden = hidden"),
    "neighbours read by the model": (ReadsNeighbours, "outside of convolutions it goes by edge_index"),
    "a convolution that is not used": (lambda: Forgets(TAGConv(IN, OUT)), "forgotten is a TAGConv.*did not use it"),
    "a gate that is closed": (Gated, "Gated gives other outputs in evaluation when two ranks share"),
    "rows of all nodes": (HoldsAllRows, "conv: GCNConv cannot.*nn.Embedding, belong into the graph's features"),
    "a number of nodes": (OfEachNode, "on a graph of 12 nodes.*trains with the strategy single"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ranks_cannot_share_is_refused_with_the_reason_and_a_cure(name, make_graph):
    build, words = REFUSED[name]
    placed = place("exchange", make_graph(dtype=torch.float64), build().double())
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        placed.check()
    assert "out of bounds" not in str(caught.value)
    assert "single" in str(caught.value) or name in ("a Data object", "a pair of outputs")


def test_a_kernel_that_is_not_used_is_no_reason_to_refuse(make_graph):
    place("exchange", make_graph(dtype=torch.float64), Forgets(GINConv(nn.Linear(IN, OUT))).double()).check()


def test_the_tutorials_convolution_trains_on_ranks_once_its_factors_are_edge_weights(make_graph, on_ranks):
    torch.manual_seed(0)
    graph = make_graph(dtype=torch.float64)
    model, cured = tutorial_convolution().double(), OwnSum().double()
    cured.load_state_dict(model.state_dict())
    # The tutorial's own loops stay, and others are added.
    edges, _ = add_self_loops(graph.edge_index, num_nodes=graph.num_nodes)
    scale = degree(edges[1], graph.num_nodes, dtype=torch.float64).pow(-0.5)
    weighted = dataclasses.replace(graph, edge_index=edges, edge_weight=scale[edges[0]] * scale[edges[1]])
    expected = F.cross_entropy(model(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask])

    def loss_of(communicator):
        session = laconic.join(weighted, communicator=communicator)
        mine = session.attach(cured if communicator.rank == 0 else OwnSum().double())
        shard = session.shard
        out = mine(shard.x, shard.edge_index, shard.edge_weight)
        return session.loss(F.cross_entropy, out, shard).item()

    for loss in on_ranks(2, loss_of):
        assert loss == pytest.approx(expected.item(), rel=0, abs=1e-10)


def test_pygs_gcn_norm_gives_the_same_edge_weights(make_graph):
    graph = make_graph(dtype=torch.float64)
    edges, weight = gcn_norm(graph.edge_index, num_nodes=graph.num_nodes, dtype=torch.float64)
    conv, own = GCNConv(IN, OUT, bias=False).double(), OwnSum().double()
    own.lin.weight = conv.lin.weight
    torch.testing.assert_close(own(graph.x, edges, weight), conv(graph.x, graph.edge_index), rtol=0, atol=1e-10)


@pytest.mark.parametrize("strategy", ["exchange(codec=quantize(bits=2))", "full_graph(codec=quantize(bits=2))"])
def test_a_codec_for_rows_of_16_bits_is_refused_by_name(strategy, make_graph, on_ranks):
    graph = make_graph(dtype=torch.bfloat16)

    def attach(communicator):
        laconic.join(graph, strategy=strategy, communicator=communicator).attach(Forgets(nn.Identity()).bfloat16())

    with pytest.raises(ConfigError, match=r"quantize\(bits=2\) is for rows of float32 or float64.*codec identity"):
        on_ranks(2, attach)
