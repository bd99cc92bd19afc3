"""Attachment.call_before_gradients: told of every backward pass of training before it enters the model."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCN

from laconic.attach import attach
from laconic.graph import Shard


class WithMore(nn.Module):
    """Returns more than its outputs: a weight, and a penalty on it."""

    def __init__(self, kind):
        super().__init__()
        self.gcn = GCN(8, 8, 2, 4)
        self.kind = kind

    def forward(self, x, edge_index):
        out, bias = self.gcn(x, edge_index), self.gcn.convs[0].bias
        if self.kind == "tensor":
            return out
        return {"out": out, "more": [bias]} if self.kind == "dict" else (out, bias)


def out_of(found):
    if isinstance(found, dict):
        return found["out"]
    return found[0] if isinstance(found, tuple) else found


@pytest.fixture(params=["tensor", "tuple", "dict"])
def watched(request, small_graph):
    model, shard, calls = WithMore(request.param), Shard.whole(small_graph), []
    # Whether a weight had its gradient by then.
    attach(model, shard).call_before_gradients(lambda: calls.append(model.gcn.convs[1].bias.grad is None))
    return model, shard, calls


def test_each_backward_pass_through_the_outputs_is_told_before_weights_get_gradients(watched):
    model, shard, calls = watched
    out_of(model(shard.x, shard.edge_index)).sum().backward()
    assert calls == [True]
    torch.autograd.grad(out_of(model(shard.x, shard.edge_index)).sum(), list(model.gcn.convs[1].parameters()))
    assert len(calls) == 2


def test_neither_weights_that_are_returned_nor_passes_without_gradients_nor_evaluation_count(watched):
    model, shard, calls = watched
    model(shard.x, shard.edge_index)
    model.gcn.convs[0].bias.square().sum().backward()
    with torch.no_grad():
        model(shard.x, shard.edge_index)
    out_of(model.eval()(shard.x, shard.edge_index)).sum().backward()
    assert calls == []
