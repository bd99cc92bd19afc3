"""Activation checkpoints under an attached model: dropout is torch's own there, and the gradients are PyG's."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import APPNP, GAT, GATConv, GCNConv

from laconic.attach import attach
from laconic.errors import ConfigError
from laconic.graph import Shard

CONVOLUTIONS = {
    "gcn": lambda: GCNConv(8, 8),
    "gat": lambda: GATConv(8, 4, heads=2, dropout=0.5),
    "appnp": lambda: APPNP(K=2, alpha=0.1, dropout=0.5),
}


class Checkpointed(nn.Module):
    """A block with dropout in it, whose activations are not kept."""

    def __init__(self, conv, use_reentrant):
        super().__init__()
        self.before, self.conv, self.use_reentrant = nn.Linear(8, 8), conv, use_reentrant

    def block(self, h, edge_index):
        return self.conv(F.dropout(h, 0.5, training=self.training), edge_index).tanh()

    def forward(self, x, edge_index):
        return checkpoint(self.block, self.before(x), edge_index, use_reentrant=self.use_reentrant)


def output_and_gradients(run, model):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        out = run()
        out.square().sum().backward()
    return (out, *(parameter.grad for parameter in model.parameters()))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_block_that_is_run_again_drops_the_same(name, use_reentrant, make_graph):
    graph = make_graph(dtype=torch.float64)
    plain = Checkpointed(CONVOLUTIONS[name](), use_reentrant).double()
    model = copy.deepcopy(plain)
    attach(model, Shard.whole(graph))
    results = [output_and_gradients(lambda m=m: m(graph.x, graph.edge_index), m) for m in (model, plain)]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_a_whole_model_that_is_run_again_drops_the_same(make_graph):
    graph = make_graph(dtype=torch.float64)
    plain = GAT(8, 8, 2, 4, heads=2, dropout=0.5).double()
    model = copy.deepcopy(plain)
    attach(model, Shard.whole(graph))
    results = [
        output_and_gradients(lambda m=m: checkpoint(m, graph.x, graph.edge_index, use_reentrant=False), m)
        for m in (model, plain)
    ]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_a_whole_model_under_the_old_kind_of_checkpoint_is_refused(small_graph):
    attach(model := GAT(8, 8, 2, 4, dropout=0.5), Shard.whole(small_graph))
    x = small_graph.x.clone().requires_grad_()
    out = checkpoint(model, x, small_graph.edge_index, use_reentrant=True)
    with pytest.raises(ConfigError, match="use_reentrant=False"):
        out.sum().backward()


def test_dropout_outside_the_block_stays_keyed(small_graph):
    class Mixed(Checkpointed):
        def forward(self, x, edge_index):
            h = F.dropout(x, 0.5, training=self.training)
            super().forward(x, edge_index)
            return h

    model = Mixed(GCNConv(8, 8), False)
    attachment = attach(model, Shard.whole(small_graph))
    first = model(small_graph.x, small_graph.edge_index)
    attachment.start_epoch(0)
    assert torch.equal(model(small_graph.x, small_graph.edge_index), first)
