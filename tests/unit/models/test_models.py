import dataclasses

import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

from laconic.errors import ConfigError
from laconic.models import MODELS, build_model, parse_model
from laconic.specs import format_spec


def build(text: str, seed: int = 0) -> nn.Module:
    return build_model(parse_model(text), num_features=8, num_classes=4, seed=seed)


@pytest.fixture
def inputs(small_graph):
    return small_graph.x, small_graph.edge_index


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_one_row_of_logits_per_node(name, inputs):
    out = build(name)(*inputs)
    assert out.shape == (60, 4)
    out.sum().backward()


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_weights(name):
    torch.manual_seed(1)
    one = build(name, seed=5).state_dict()
    torch.manual_seed(2)
    same, other = build(name, seed=5).state_dict(), build(name, seed=6).state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", MODELS)
def test_building_leaves_the_global_random_state_alone(name):
    before = torch.get_rng_state()
    build(name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", MODELS)
def test_the_shortest_spec_of_a_default_model_is_its_name(name):
    assert format_spec(parse_model(name), MODELS) == name
    assert MODELS[name].__module__ == f"laconic.models.{name}"


@pytest.mark.parametrize(
    ("ours", "pyg"),
    [
        ("gcn(hidden=16)", GCN(8, 16, 2, 4)),
        ("sage(hidden=16, layers=3, aggregate='max')", GraphSAGE(8, 16, 3, 4, aggr="max")),
        ("gin(hidden=16, norm='batch')", GIN(8, 16, 2, 4, norm="BatchNorm")),
        ("gat(hidden=16, heads=2)", GAT(8, 16, 2, 4, heads=2)),
        ("gatv2(hidden=16, heads=4, residual=True)", GAT(8, 16, 2, 4, heads=4, v2=True, residual=True)),
        ("gcn(hidden=16, jk='cat')", GCN(8, 16, 2, 4, jk="cat")),
        ("gat(hidden=16, heads=4, norm='layer', jk='last')", GAT(8, 16, 2, 4, heads=4, norm="LayerNorm", jk="last")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_weights_load_into_pygs_own_class_and_give_the_same_outputs(ours, pyg, inputs):
    model = build(ours).eval()
    pyg.load_state_dict(model.state_dict())
    if "norm='layer'" in ours:
        for norm in pyg.norms:
            norm.mode = "node"
    assert torch.equal(pyg.eval()(*inputs), model(*inputs))


@pytest.mark.parametrize("name", MODELS)
def test_input_dropout_drops_inputs_while_training_only(name, inputs):
    others = [f"{field.name}=0.0" for field in dataclasses.fields(MODELS[name]) if field.name.endswith("dropout")]
    off = build(f"{name}({', '.join(others)})")
    on = build(f"{name}({', '.join([*others, 'input_dropout=0.9']).replace('input_dropout=0.0, ', '')})")
    assert torch.equal(off.eval()(*inputs), on.eval()(*inputs))
    assert not torch.allclose(off.train()(*inputs), on.train()(*inputs))


@pytest.mark.parametrize("name", ["gcn", "sgc", "appnp"])
def test_models_that_take_edge_weights_use_them(name, inputs):
    model = build(name).eval()
    weight = torch.linspace(0.1, 2.0, inputs[1].shape[1])
    assert not torch.allclose(model(*inputs), model(*inputs, edge_weight=weight))


def test_a_perceptron_ignores_edges(small_graph):
    model = build("mlp").eval()
    no_edges = torch.empty(2, 0, dtype=torch.int64)
    assert torch.equal(model(small_graph.x, small_graph.edge_index), model(small_graph.x, no_edges))


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_hops_is_how_far_a_change_can_reach(name):
    model = build(name).double().eval()
    path = torch.stack([torch.arange(29), torch.arange(1, 30)])
    x = torch.rand(30, 8, dtype=torch.float64)
    changed = x.clone()
    changed[0] += 1
    reached = (model(x, path) != model(changed, path)).any(dim=1).nonzero().flatten()
    assert reached.tolist() == list(range(parse_model(name).num_hops + 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gat(hidden=10, heads=4)", r"hidden=10 with heads=4. Use hidden=12"),
        ("gatv2(heads=7)", "multiple of heads"),
        ("gcn(hidden=0)", "hidden should be at least 1"),
        ("sage(layers=0)", "layers should be at least 1"),
        ("gcn(dropout=1.0)", "below 1"),
        ("gcn(input_dropout=-0.1)", "at least 0"),
        ("gin(norm='group')", "one of none, batch, layer"),
        ("gcn(jk='all')", "one of none, last, cat, max, lstm"),
        ("sage(aggregate='median')", "one of mean, sum, max"),
        ("gcn(heads=4)", "Unknown model gcn argument 'heads'"),
        ("gcnn", "Did you mean 'gcn'"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_what_can(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_model(text)
