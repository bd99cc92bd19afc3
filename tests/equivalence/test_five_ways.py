"""Rows fetched, summed up at their owner, or computed here: every mixture gives what one machine computes.

In float64: losses, predictions and gradients of the first step to 1e-10, parameters after 20 epochs of Adam to 1e-8.
And what was predicted is what was counted, as integers.
"""

import pytest
import torch.nn.functional as F
from tests.equivalence.halo_runs import EPOCHS, IN, OUT, Stack, check_equal, check_traffic, make_graph, outcomes
from torch import nn
from torch_geometric.nn import APPNP, GCN, GIN, GCNConv, GraphConv, GraphSAGE, SGConv


class Residual(nn.Module):
    """Skip connections over one layer and over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = GCNConv(IN, 8), GCNConv(8, 8), GCNConv(8, OUT)
        self.skip = nn.Linear(IN, OUT)

    def forward(self, x, edge_index):
        first = self.first(x, edge_index).relu()
        second = first + F.dropout(self.second(first, edge_index).relu(), 0.3, self.training)
        return self.third(second, edge_index) + self.skip(x)


MODELS = {
    "GCN-3": lambda: GCN(IN, 8, 3, OUT, dropout=0.4),
    "SAGE-3": lambda: GraphSAGE(IN, 8, 3, OUT, dropout=0.3),
    "SAGE-4 narrow": lambda: GraphSAGE(IN, 3, 4, OUT),
    "GIN": lambda: GIN(IN, 8, 3, OUT, norm="batch_norm", train_eps=True),
    "SGC": lambda: Stack(SGConv(IN, 8, K=2), nn.ReLU(), SGConv(8, OUT, K=2)),
    "APPNP": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1)),
    "APPNP edge dropout": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1, dropout=0.5)),
    "GraphConv": lambda: Stack(GraphConv(IN, 8), nn.ReLU(), GraphConv(8, 8), nn.ReLU(), GraphConv(8, OUT, aggr="mean")),
    "input dropout": lambda: Stack(nn.Dropout(0.5), GCNConv(IN, 8), nn.ReLU(), GCNConv(8, 8), GCNConv(8, OUT)),
    "batch norm": lambda: GCN(IN, 8, 3, OUT, norm="batch_norm", dropout=0.2),
    "graph norm": lambda: GraphSAGE(IN, 8, 3, OUT, norm="graph_norm"),
    "jumping knowledge": lambda: GCN(IN, 8, 3, OUT, jk="cat", dropout=0.2),
    "jumping knowledge max": lambda: GraphSAGE(IN, 8, 3, OUT, jk="max"),
    "jumping knowledge lstm": lambda: GraphSAGE(IN, 8, 3, OUT, jk="lstm"),
    "residual": Residual,
}
EDGES = ["destination", "source", "cover"]


@pytest.mark.parametrize("reach", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_same_with_every_reach(name, reach):
    edges = EDGES[(list(MODELS).index(name) + reach) % 3]
    single, ranks = outcomes(MODELS[name], make_graph(), 3, "random", EPOCHS, f", edges={edges}, reach={reach}")
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize(
    ("num_ranks", "edges", "reach"), [(1, "cover", 1), (2, "source", 2), (4, "cover", 1), (8, "cover", 2)]
)
def test_any_number_of_ranks_gives_the_same(num_ranks, edges, reach):
    settings = f", edges={edges}, reach={reach}"
    single, ranks = outcomes(MODELS["SAGE-3"], make_graph(), num_ranks, "metis", EPOCHS, settings)
    check_equal(single, ranks)
    check_traffic(ranks)
