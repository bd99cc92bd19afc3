"""A Linear that is more than a matrix is called as PyG calls it; only a plain one is folded into the aggregation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from laconic.attach import attach
from laconic.attach.convolutions.projection import is_plain
from laconic.graph import Shard


def with_bias(conv, name):
    """Somebody gave the layer a Linear of their own, with a bias that PyG's would not have."""
    linear = nn.Linear(8, getattr(conv, name).weight.shape[0])
    nn.init.normal_(linear.bias, std=3.0)
    setattr(conv, name, linear)


def with_hook(conv, name):
    getattr(conv, name).register_forward_hook(lambda module, inputs, output: output.relu())


def with_own_forward(conv, name):
    linear = getattr(conv, name)
    linear.forward = lambda x: F.linear(x, linear.weight).sin()


def with_parametrization(conv, name):
    nn.utils.parametrizations.weight_norm(getattr(conv, name))


@pytest.mark.parametrize("change", [with_bias, with_hook, with_own_forward, with_parametrization])
@pytest.mark.parametrize(
    ("kind", "name"), [(GCNConv, "lin"), (SAGEConv, "lin_l"), (SAGEConv, "lin_r"), (GATConv, "lin")]
)
@pytest.mark.parametrize("width", [4, 16])
def test_a_changed_linear_gives_pygs_output_and_gradients(kind, name, change, width, make_graph):
    graph = make_graph(dtype=torch.float64)
    results = []
    for attached in (False, True):
        torch.manual_seed(0)
        conv = kind(8, width)
        change(conv, name)
        conv.double()
        if attached:
            attach(conv, Shard.whole(graph))
        out = conv(graph.x, graph.edge_index)
        out.square().sum().backward()
        results.append((out, *(parameter.grad for parameter in conv.parameters())))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_a_hook_on_the_gradient_of_a_linear_is_called(small_graph):
    conv, seen = SAGEConv(8, 4), []
    conv.lin_l.register_full_backward_hook(lambda module, before, after: seen.append(after[0].shape))
    attach(conv, Shard.whole(small_graph))
    conv(small_graph.x.clone().requires_grad_(), small_graph.edge_index).sum().backward()
    assert seen == [(60, 4)]


def test_a_linear_of_torch_or_pyg_is_plain_and_a_changed_one_is_not():
    conv = SAGEConv(8, 4)
    assert is_plain(conv.lin_l)
    assert is_plain(nn.Linear(8, 4))
    copied = copy.deepcopy(conv.lin_l)
    copied.register_forward_pre_hook(lambda module, inputs: None)
    assert not is_plain(copied)
    assert not is_plain(nn.Sequential(nn.Linear(8, 4)))
