import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GCNConv, GINEConv, HeteroConv, LightGCN, RGCNConv, SAGEConv, to_hetero

from laconic.errors import UnsupportedModelError
from laconic.graph import Shard
from laconic.models import MODELS, build_model, parse_model
from laconic.strategies._checks import check_plain_model


class Holds(nn.Module):
    """A model with one part in it, of whatever kind."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.linear = nn.Linear(8, 4)

    def forward(self, x, edge_index):
        return self.linear(x)


class Wants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, edge_index, edge_attr):
        return self.linear(x)


class OfDicts(Wants):
    def forward(self, x_dict, edge_index_dict):
        return x_dict


def hetero() -> nn.Module:
    metadata = (["a", "b"], [("a", "to", "b"), ("b", "back", "a")])
    return to_hetero(Holds(SAGEConv((-1, -1), 4)), metadata)


def scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(8, 4))


@pytest.fixture
def shard(small_graph):
    return Shard.whole(small_graph)


@pytest.mark.parametrize("name", MODELS)
def test_every_sample_model_passes(name, shard):
    check_plain_model(build_model(parse_model(name), num_features=8, num_classes=4, seed=0), shard)


@pytest.mark.parametrize(
    "model", [GCN(8, 16, 2, 4), GCNConv(8, 4), Holds(SAGEConv(8, 4))], ids=lambda m: type(m).__name__
)
def test_plain_models_pass(model, shard):
    check_plain_model(model, shard)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (scripted, "TorchScript"),
        (hetero, r"to_hetero.*Heterogeneous graphs are not supported"),
        (lambda: Holds(HeteroConv({("a", "to", "a"): SAGEConv(8, 4)})), "part is a HeteroConv"),
        (lambda: Holds(RGCNConv(8, 4, 3)), "part is a RGCNConv"),
        (lambda: Holds(GINEConv(nn.Linear(8, 4))), "part is a GINEConv with edge features"),
        (lambda: GAT(8, 16, 2, 4, edge_dim=3), r"convs\.0 is a GATConv with edge features"),
        (lambda: LightGCN(60, 8, 2), "edge_label_index"),
        (lambda: Wants(), "cannot be called as model"),
        (lambda: OfDicts(), "edge_index_dict, x_dict"),
        (lambda: nn.Linear(8, 4), "cannot be called as model"),
        (lambda: nn.DataParallel(GCN(8, 16, 2, 4)), "wrapped in DataParallel"),
        (lambda: Holds(SAGEConv(-1, 4)), "has no shape yet"),
        (lambda: GCN(8, 16, 2, 4).double(), r"float64, but the features are torch\.float32"),
        (lambda: GCN(8, 16, 2, 4).to("meta"), "is on meta"),
        (lambda: GCN(8, 16, 2, 4).requires_grad_(False), "nothing to train"),
        (lambda: "gcn", r"should be a torch\.nn\.Module"),
    ],
)
def test_what_nobody_can_train_is_refused_by_name(build, reason, shard):
    with pytest.raises(UnsupportedModelError, match=reason):
        check_plain_model(build(), shard)
