"""What attach leaves alone, what it refuses, and when a convolution runs PyG's own code."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GATConv, GATv2Conv, GCNConv, GraphSAGE, SAGEConv, TransformerConv
from torch_geometric.nn.models import MLP

from laconic.attach import aggregator as aggregator_module
from laconic.attach import attach
from laconic.attach import attachment as attachment_module
from laconic.errors import ConfigError
from laconic.graph import Shard


class CountingAggregator(aggregator_module.Aggregator):
    """Counts the calls that reach the kernels and passes them on."""

    def __init__(self, shard):
        super().__init__(shard)
        self.inner = aggregator_module.LocalAggregator(shard, remember_inputs=True)
        self.calls = 0

    def linear(self, aggregation, x):
        self.calls += 1
        return self.inner.linear(aggregation, x)

    def linear_with_edge_dropout(self, aggregation, x, probability, keys):
        self.calls += 1
        return self.inner.linear_with_edge_dropout(aggregation, x, probability, keys)

    def is_remembered(self, x):
        return self.inner.is_remembered(x)

    def maximum(self, x):
        self.calls += 1
        return self.inner.maximum(x)

    def gat(self, x, from_source, from_destination, settings):
        self.calls += 1
        return self.inner.gat(x, from_source, from_destination, settings)

    def gatv2(self, source, destination, att, settings):
        self.calls += 1
        return self.inner.gatv2(source, destination, att, settings)


def attach_counted(model, graph):
    shard = Shard.whole(graph)
    counting = CountingAggregator(shard)
    return attach(model, shard, aggregator=counting), counting


def test_the_kernels_run_when_the_graphs_own_edges_are_given(small_graph):
    attachment, counting = attach_counted(GCN(8, 16, 2, 4), small_graph)
    attachment.model(attachment.shard.x, attachment.shard.edge_index)
    assert counting.calls == 2


def test_another_edge_index_runs_pygs_code_with_its_result(small_graph):
    model = GCN(8, 16, 2, 4)
    plain = copy.deepcopy(model)
    attachment, counting = attach_counted(model, small_graph)
    fewer = small_graph.edge_index[:, :100]
    torch.testing.assert_close(attachment.model(small_graph.x, fewer), plain(small_graph.x, fewer))
    assert counting.calls == 0


def test_other_edges_are_told_of_once(small_graph, caplog):
    attachment_module._log_once.cache_clear()
    attach(model := GCN(8, 16, 2, 4), Shard.whole(small_graph))
    with caplog.at_level(logging.INFO, logger="laconic"):
        model(small_graph.x, small_graph.edge_index)
        for _ in range(2):
            model(small_graph.x, small_graph.edge_index.clone())
    assert [record.message for record in caplog.records] == [
        "GCNConv runs PyG's own code: it was called with an edge_index other than the graph's own."
    ]


def test_an_edge_index_changed_in_place_runs_pygs_code(make_graph):
    graph = make_graph()
    model = GraphSAGE(8, 16, 2, 4)
    plain = copy.deepcopy(model)
    attachment, counting = attach_counted(model, graph)
    graph.edge_index[:, :50] = 0
    torch.testing.assert_close(attachment.model(graph.x, graph.edge_index), plain(graph.x, graph.edge_index))
    assert counting.calls == 0


def test_an_edge_weight_that_needs_a_gradient_gets_it(make_graph):
    graph = make_graph(weighted=True)
    attachment, counting = attach_counted(GCN(8, 16, 2, 4), graph)
    weight = graph.edge_weight.clone().requires_grad_()
    attachment.model(graph.x, graph.edge_index, weight).sum().backward()
    assert weight.grad is not None
    assert counting.calls == 0


def test_features_changed_in_place_are_aggregated_anew(make_graph):
    graph = make_graph()
    model = GCN(8, 16, 2, 4)
    plain = copy.deepcopy(model)
    attachment = attach(model, Shard.whole(graph))
    model(graph.x, graph.edge_index)
    graph.x.mul_(2.0)
    torch.testing.assert_close(model(attachment.shard.x, graph.edge_index), plain(graph.x, graph.edge_index))


def test_a_convolution_without_a_kernel_runs_pygs_code_and_says_so_once(small_graph, caplog):
    attachment_module._log_once.cache_clear()
    conv = TransformerConv(8, 4, heads=2)
    plain = copy.deepcopy(conv)
    with caplog.at_level(logging.INFO, logger="laconic"):
        attach(conv, Shard.whole(small_graph))
        attach(TransformerConv(8, 4), Shard.whole(small_graph))
    assert [record.message for record in caplog.records] == [
        "TransformerConv runs PyG's own code: there is no kernel for it."
    ]
    torch.testing.assert_close(
        conv(small_graph.x, small_graph.edge_index), plain(small_graph.x, small_graph.edge_index)
    )


@pytest.mark.parametrize(
    ("conv", "reason"),
    [
        (SAGEConv(8, 4, aggr="median"), "its aggregation is 'median'"),
        (GCNConv(8, 4, flow="target_to_source"), "its flow is 'target_to_source'"),
    ],
)
def test_a_setting_without_a_kernel_runs_pygs_code_with_the_reason(conv, reason, small_graph, caplog):
    attachment_module._log_once.cache_clear()
    plain = copy.deepcopy(conv)
    with caplog.at_level(logging.INFO, logger="laconic"):
        attach(conv, Shard.whole(small_graph))
    assert reason in caplog.text
    torch.testing.assert_close(
        conv(small_graph.x, small_graph.edge_index), plain(small_graph.x, small_graph.edge_index)
    )


def test_sparse_features_run_pygs_code(small_graph):
    conv = GCNConv(8, 16)
    plain = copy.deepcopy(conv)
    attach(conv, Shard.whole(small_graph))
    sparse = small_graph.x.to_sparse()
    torch.testing.assert_close(conv(sparse, small_graph.edge_index), plain(sparse, small_graph.edge_index))


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv, GATConv, GATv2Conv])
def test_autocast_gives_pygs_dtype_and_values(kind, small_graph):
    conv = kind(8, 4)
    plain = copy.deepcopy(conv)
    attach(conv, Shard.whole(small_graph))
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (c(small_graph.x, small_graph.edge_index) for c in (conv, plain))
    # bfloat16 has 8 bits, and PyG rounds sums of GCN at other places.
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)
    ours.sum().backward()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of PyG's own checks
def test_a_trace_holds_pygs_operations_and_not_the_kernels_numbers(small_graph):
    conv = SAGEConv(8, 4)
    plain = copy.deepcopy(conv)
    attach(conv, Shard.whole(small_graph))
    traced = torch.jit.trace(conv, (small_graph.x, small_graph.edge_index))
    other = small_graph.x.flip(0)
    torch.testing.assert_close(traced(other, small_graph.edge_index), plain(other, small_graph.edge_index))


def test_a_subclass_with_its_own_message_runs_that(small_graph):
    class Doubled(GCNConv):
        def message(self, x_j, edge_weight):
            return 2 * super().message(x_j, edge_weight)

    conv = Doubled(8, 4)
    plain = copy.deepcopy(conv)
    attach(conv, Shard.whole(small_graph))
    torch.testing.assert_close(
        conv(small_graph.x, small_graph.edge_index), plain(small_graph.x, small_graph.edge_index)
    )


def test_a_users_hook_on_message_passing_is_called(small_graph):
    conv = GCNConv(8, 4)
    seen = []
    conv.register_message_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    attach(conv, Shard.whole(small_graph))
    conv(small_graph.x, small_graph.edge_index)
    assert len(seen) == 1


def test_attention_weights_are_returned_when_asked_for(small_graph):
    model = GAT(8, 16, 1, heads=2)
    attach(model, Shard.whole(small_graph))
    out, (edges, alpha) = model.convs[0](small_graph.x, small_graph.edge_index, return_attention_weights=True)
    assert alpha.shape == (edges.shape[1], 2)
    assert out.shape == (60, 16)


def test_lazy_layers_are_initialised_by_the_first_pass(small_graph):
    model = GraphSAGE(-1, 16, 2, 4)
    attachment, counting = attach_counted(model, small_graph)
    first = model(small_graph.x, small_graph.edge_index)
    second = model(small_graph.x, small_graph.edge_index)
    torch.testing.assert_close(first, second)
    assert counting.calls == 3
    assert attachment.model.convs[0].lin_l.weight.shape == (16, 8)


def test_state_dict_keys_and_repr_stay_pygs(small_graph):
    model = GAT(8, 16, 2, 4, heads=2)
    keys, text = list(model.state_dict()), repr(model)
    attach(model, Shard.whole(small_graph))
    assert list(model.state_dict()) == keys
    assert repr(model) == text


def test_a_deep_copy_computes_with_its_own_parameters(small_graph):
    model = GCN(8, 16, 2, 4)
    attach(model, Shard.whole(small_graph))
    before = model(small_graph.x, small_graph.edge_index)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin(small_graph.x, small_graph.edge_index).abs().max() == 0
    torch.testing.assert_close(model(small_graph.x, small_graph.edge_index), before)


def test_detach_gives_the_plain_model_back(small_graph):
    model = GCN(8, 16, 2, 4)
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    attachment, counting = attach_counted(model, small_graph)
    attachment.detach()
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before
    model(small_graph.x, small_graph.edge_index)
    assert counting.calls == 0
    attach(model, Shard.whole(small_graph))


def test_detach_leaves_what_others_replaced(small_graph):
    model = GCN(8, 16, 2, 4)
    model.convs[1].forward = lambda x, edge_index, edge_weight=None: x * 0
    model.dropout.forward = lambda x: x + 1
    expected = model(small_graph.x, small_graph.edge_index)
    attach(model, Shard.whole(small_graph)).detach()
    assert torch.equal(model(small_graph.x, small_graph.edge_index), expected)
    assert {"forward"} <= set(model.convs[1].__dict__) & set(model.dropout.__dict__)


def test_attaching_twice_is_refused(small_graph):
    model = GCN(8, 16, 2, 4)
    attach(model, Shard.whole(small_graph))
    with pytest.raises(ConfigError, match="attached to a graph already"):
        attach(model, Shard.whole(small_graph))


def test_a_model_whose_forward_was_replaced_is_refused(small_graph):
    model = MLP([8, 4])
    model.forward = lambda x: x
    with pytest.raises(ConfigError, match="Attach the plain model first"):
        attach(model, Shard.whole(small_graph))


def test_a_hooked_linear_is_called_not_bypassed(small_graph):
    conv = SAGEConv(8, 4)
    plain = copy.deepcopy(conv)
    for twin in (conv, plain):
        twin.lin_l.register_forward_hook(lambda module, inputs, output: output * 2)
    attach(conv, Shard.whole(small_graph))
    torch.testing.assert_close(
        conv(small_graph.x, small_graph.edge_index), plain(small_graph.x, small_graph.edge_index)
    )


def test_a_batch_runs_on_its_own_edges(small_graph):
    model = GraphSAGE(8, 16, 2, 4)
    plain = copy.deepcopy(model)
    attachment = attach(model, Shard.whole(small_graph))
    kept = small_graph.edge_index[:, (small_graph.edge_index < 30).all(dim=0)]
    batch = Shard.whole(_first_nodes(small_graph, 30, kept))
    with attachment.using(batch):
        torch.testing.assert_close(model(batch.x, batch.edge_index), plain(batch.x, batch.edge_index))
    torch.testing.assert_close(
        model(small_graph.x, small_graph.edge_index), plain(small_graph.x, small_graph.edge_index)
    )


def _first_nodes(graph, count, edge_index):
    masks = [torch.arange(count) % 3 == k for k in range(3)]
    return type(graph)(edge_index, graph.x[:count], graph.y[:count], *masks)


def test_pickling_an_attached_model_says_what_to_save_instead(small_graph, tmp_path):
    model = nn.Sequential(nn.Linear(8, 4))
    attach(model, Shard.whole(small_graph))
    with pytest.raises(TypeError, match="state_dict"):
        torch.save(model, tmp_path / "model.pt")
