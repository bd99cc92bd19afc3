"""What is remembered of the graph's own features: never more than is asked for, and never something else."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch_geometric.nn import GINConv, SAGEConv, SGConv

from laconic.attach import LocalAggregator, attach
from laconic.attach import remembered as remembered_module
from laconic.attach.aggregator import Linear
from laconic.graph import Shard


@pytest.mark.parametrize("conv", [SAGEConv(8, 4), SGConv(8, 4, K=3)])
def test_a_model_that_was_first_run_in_inference_mode_can_be_trained(conv, small_graph):
    plain = copy.deepcopy(conv)
    attach(conv, Shard.whole(small_graph))
    with torch.inference_mode():
        conv(small_graph.x, small_graph.edge_index)
    for twin in (conv, plain):
        twin(small_graph.x, small_graph.edge_index).square().sum().backward()
    for ours, theirs in zip(conv.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_a_layer_that_writes_into_its_input_does_not_spoil_what_is_remembered(small_graph):
    conv = GINConv(nn.Sequential(nn.Threshold(0.0, 7.0, inplace=True), nn.Tanh()))
    plain = copy.deepcopy(conv)
    attach(conv, Shard.whole(small_graph))
    expected = plain(small_graph.x, small_graph.edge_index)
    for _ in range(2):
        torch.testing.assert_close(conv(small_graph.x, small_graph.edge_index), expected)
    bare = GINConv(nn.Identity())
    attach(bare, Shard.whole(small_graph))
    first = bare(small_graph.x, small_graph.edge_index).clone()
    bare(small_graph.x, small_graph.edge_index).add_(1.0)
    assert torch.equal(bare(small_graph.x, small_graph.edge_index), first)


def test_what_no_longer_holds_is_not_kept(make_graph):
    graph = make_graph()
    aggregator = LocalAggregator(Shard.whole(graph), remember_inputs=True)

    def powers():
        once = aggregator.linear(Linear("gcn"), graph.x)
        return weakref.ref(once), weakref.ref(aggregator.linear(Linear("gcn"), once))

    kept = []
    for _ in range(4):
        graph.x.mul_(2.0)
        kept.append(powers())
    gc.collect()
    assert [(one() is None, two() is None) for one, two in kept] == [(True, True)] * 3 + [(False, False)]


def test_powers_are_kept_up_to_the_limit_and_right_beyond_it(small_graph, monkeypatch):
    monkeypatch.setattr(remembered_module, "REMEMBERED_BYTES_LIMIT", 2 * small_graph.x.nbytes)
    aggregator = LocalAggregator(Shard.whole(small_graph), remember_inputs=True)
    reference = LocalAggregator(Shard.whole(small_graph), remember_inputs=False)
    for _ in range(2):
        x = exact = small_graph.x
        remembered = []
        for _ in range(5):
            remembered.append(aggregator.is_remembered(x))
            x, exact = aggregator.linear(Linear("mean"), x), reference.linear(Linear("mean"), exact)
            assert torch.equal(x, exact)
        assert remembered == [True, True, True, False, False]


def test_features_beyond_the_limit_are_not_kept(small_graph, monkeypatch):
    monkeypatch.setattr(remembered_module, "REMEMBERED_BYTES_LIMIT", small_graph.x.nbytes - 1)
    aggregator = LocalAggregator(Shard.whole(small_graph), remember_inputs=True)
    assert not aggregator.is_remembered(small_graph.x)
    first, second = (aggregator.linear(Linear("sum"), small_graph.x) for _ in range(2))
    assert first is not second
    assert torch.equal(first, second)
