"""Attention: PyG's values and gradients, whatever the edges, the number of threads and the numbering of nodes."""

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv

from laconic.graph import Adjacency
from laconic.graph.operators.attention import gat_attention, gatv2_attention
from laconic.graph.operators.attention_setting import AttentionSetting
from laconic.graph.operators.torch_fallback import gat_by_torch, gatv2_by_torch

NUM_HEADS, NUM_CHANNELS = 3, 5
EXACT = {"atol": 1e-10, "rtol": 1e-10}
KINDS = {"gat": gat_attention, "gatv2": gatv2_attention}
BY_TORCH = {"gat": gat_by_torch, "gatv2": gatv2_by_torch}


def make_inputs(kind, num_rows, num_sources, *, heads=NUM_HEADS, channels=NUM_CHANNELS, dtype=torch.float64):
    """The three tensors that attention of a kind takes, needing gradients."""
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "gat": [(num_sources, heads, channels), (num_sources, heads), (num_rows, heads)],
        "gatv2": [(num_sources, heads, channels), (num_rows, heads, channels), (heads, channels)],
    }[kind]
    return [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]


def gradients(out, inputs):
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weights).sum(), inputs)


def adjacency_of(edges, num_nodes):
    sources, destinations = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Adjacency.from_edges(sources, destinations, num_nodes, num_nodes)


@pytest.mark.parametrize("self_loops", [True, False])
def test_gat_has_the_values_and_gradients_of_pyg(make_graph, self_loops):
    graph = make_graph(dtype=torch.float64)
    conv = GATConv(graph.num_features, NUM_CHANNELS, NUM_HEADS, add_self_loops=self_loops, bias=False).double()
    x = conv.lin(graph.x).view(-1, NUM_HEADS, NUM_CHANNELS)
    ours = gat_attention(
        AttentionSetting(graph.adjacency, negative_slope=conv.negative_slope, self_loops=self_loops),
        x,
        (x * conv.att_src).sum(-1),
        (x * conv.att_dst).sum(-1),
    )
    theirs = conv(graph.x, graph.edge_index).view_as(ours)
    torch.testing.assert_close(ours, theirs, **EXACT)
    weights = list(conv.parameters())
    torch.testing.assert_close(gradients(ours, weights), gradients(theirs, weights), **EXACT)


@pytest.mark.parametrize("share_weights", [True, False])
@pytest.mark.parametrize("self_loops", [True, False])
def test_gatv2_has_the_values_and_gradients_of_pyg(make_graph, self_loops, share_weights):
    graph = make_graph(dtype=torch.float64)
    conv = GATv2Conv(
        graph.num_features,
        NUM_CHANNELS,
        NUM_HEADS,
        add_self_loops=self_loops,
        share_weights=share_weights,
        bias=False,
    ).double()
    x_l = conv.lin_l(graph.x).view(-1, NUM_HEADS, NUM_CHANNELS)
    x_r = conv.lin_r(graph.x).view(-1, NUM_HEADS, NUM_CHANNELS)
    ours = gatv2_attention(
        AttentionSetting(graph.adjacency, negative_slope=conv.negative_slope, self_loops=self_loops),
        x_l,
        x_r,
        conv.att[0],
    )
    theirs = conv(graph.x, graph.edge_index).view_as(ours)
    torch.testing.assert_close(ours, theirs, **EXACT)
    weights = list(dict.fromkeys(conv.parameters()))
    torch.testing.assert_close(gradients(ours, weights), gradients(theirs, weights), **EXACT)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_torchs_own_operations_give_the_same(make_graph, kind, self_loops, dropout):
    graph = make_graph()
    inputs = make_inputs(kind, graph.num_nodes, graph.num_nodes)
    setting = {
        "negative_slope": 0.2,
        "self_loops": self_loops,
        "dropout": dropout,
        "key": np.uint64(5),
        "node_ids": torch.arange(graph.num_nodes) * 7,
    }
    ours = KINDS[kind](AttentionSetting(graph.adjacency, **setting), *inputs)
    theirs = BY_TORCH[kind](AttentionSetting(graph.adjacency, **setting), *inputs)
    torch.testing.assert_close(ours, theirs, **EXACT)
    torch.testing.assert_close(gradients(ours, inputs), gradients(theirs, inputs), **EXACT)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_pass_gradcheck(make_graph, kind, dropout):
    graph = make_graph(num_nodes=9, num_edges=25)
    inputs = make_inputs(kind, 9, 9, heads=2, channels=3)

    def attention(*tensors):
        return KINDS[kind](
            AttentionSetting(graph.adjacency, negative_slope=0.2, self_loops=True, dropout=dropout, key=1), *tensors
        )

    assert torch.autograd.gradcheck(attention, inputs)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_is_the_same_whichever_others_are_asked_for(make_graph, kind, wanted):
    graph = make_graph()
    inputs = make_inputs(kind, graph.num_nodes, graph.num_nodes)
    setting = {"negative_slope": 0.2, "self_loops": True}
    all_three = gradients(KINDS[kind](AttentionSetting(graph.adjacency, **setting), *inputs), inputs)
    some = [tensor if i in wanted else tensor.detach() for i, tensor in enumerate(inputs)]
    out = KINDS[kind](AttentionSetting(graph.adjacency, **setting), *some)
    for i, gradient in zip(wanted, gradients(out, [inputs[i] for i in wanted]), strict=True):
        assert torch.equal(gradient, all_three[i])


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_nothing(make_graph, kind):
    graph = make_graph(num_nodes=300, num_edges=6000)
    inputs = make_inputs(kind, 300, 300, channels=16, dtype=torch.float32)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            out = KINDS[kind](
                AttentionSetting(graph.adjacency, negative_slope=0.2, self_loops=True, dropout=0.3, key=2), *inputs
            )
            results.append((out, *gradients(out, inputs)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_wide_indices_give_the_same(small_graph, kind):
    narrow = small_graph.adjacency
    wide = Adjacency(narrow.indptr, narrow.indices.astype(np.int64), narrow.num_columns)
    inputs = make_inputs(kind, 60, 60)
    results = []
    for adjacency in (narrow, wide):
        out = KINDS[kind](AttentionSetting(adjacency, negative_slope=0.2, self_loops=True), *inputs)
        results.append((out, *gradients(out, inputs)))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edges", [[], [(0, 1), (2, 1)]])
def test_a_row_without_edges_gets_zero(kind, edges):
    inputs = make_inputs(kind, 4, 4)
    out = KINDS[kind](AttentionSetting(adjacency_of(edges, 4), negative_slope=0.2, self_loops=False), *inputs)
    empty_rows = sorted(set(range(4)) - {destination for _, destination in edges})
    assert (out[empty_rows] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients(out, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_with_self_loops_alone_a_row_gets_its_own_values(kind):
    inputs = make_inputs(kind, 4, 4)
    for edges in ([], [(1, 1), (1, 1), (3, 3)]):
        out = KINDS[kind](AttentionSetting(adjacency_of(edges, 4), negative_slope=0.2, self_loops=True), *inputs)
        torch.testing.assert_close(out, inputs[0], **EXACT)


def test_duplicate_edges_count_twice():
    x, a_src, a_dst = make_inputs("gat", 3, 3)
    out = gat_attention(
        AttentionSetting(adjacency_of([(0, 2), (0, 2), (1, 2)], 3), negative_slope=0.2, self_loops=False),
        x,
        a_src * 0,
        a_dst,
    )
    torch.testing.assert_close(out[2], (2 * x[0] + x[1]) / 3, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_be_fewer_than_sources(kind):
    adjacency = Adjacency.from_edges(np.array([0, 4, 3, 1, 4]), np.array([0, 0, 1, 1, 2]), 3, 5)
    inputs = make_inputs(kind, 3, 5)
    setting = {"negative_slope": 0.2, "self_loops": True, "dropout": 0.3, "key": np.uint64(4)}
    setting["node_ids"] = torch.tensor([8, 6, 4, 2, 0])
    ours, theirs = (
        KINDS[kind](AttentionSetting(adjacency, **setting), *inputs),
        BY_TORCH[kind](AttentionSetting(adjacency, **setting), *inputs),
    )
    torch.testing.assert_close(ours, theirs, **EXACT)
    torch.testing.assert_close(gradients(ours, inputs), gradients(theirs, inputs), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_large_logits_do_not_overflow(small_graph, kind):
    inputs = [tensor.detach() * 1000 for tensor in make_inputs(kind, 60, 60, dtype=torch.float32)]
    assert (
        KINDS[kind](AttentionSetting(small_graph.adjacency, negative_slope=0.2, self_loops=True), *inputs)
        .isfinite()
        .all()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_is_not_hidden(kind):
    inputs = [tensor.detach() for tensor in make_inputs(kind, 3, 3)]
    inputs[0][1] = float("nan")
    out = KINDS[kind](
        AttentionSetting(adjacency_of([(0, 2), (1, 2)], 3), negative_slope=0.2, self_loops=False), *inputs
    )
    assert out[2].isnan().all()


def test_half_precision_has_the_values_of_torch(small_graph):
    inputs = make_inputs("gat", 60, 60, dtype=torch.float32)
    out = gat_attention(AttentionSetting(small_graph.adjacency, negative_slope=0.2, self_loops=True), *inputs)
    halves = [tensor.bfloat16() for tensor in inputs]
    half = gat_attention(AttentionSetting(small_graph.adjacency, negative_slope=0.2, self_loops=True), *halves)
    assert half.dtype == torch.bfloat16
    # bfloat16 has 8 bits: inputs, weights and sums are each off by up to 1/256.
    torch.testing.assert_close(half.float(), out, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_keeps_the_mean(make_graph, kind):
    graph = make_graph(num_nodes=40, num_edges=600)
    inputs = make_inputs(kind, 40, 40)
    setting = {"negative_slope": 0.2, "self_loops": True}
    expected = KINDS[kind](AttentionSetting(graph.adjacency, **setting), *inputs)
    num_keys = 400
    drawn = [
        KINDS[kind](AttentionSetting(graph.adjacency, **setting, dropout=0.5, key=key), *inputs)
        for key in range(num_keys)
    ]
    mean, deviation = torch.stack(drawn).mean(0), torch.stack(drawn).std(0)
    # The mean of 400 draws is off by a twentieth of their deviation; five such twentieths allow for 600 comparisons.
    assert ((mean - expected).abs() <= 5 * deviation / num_keys**0.5 + 1e-12).all()
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_follows_the_nodes_not_their_numbering(make_graph, kind):
    graph = make_graph()
    inputs = make_inputs(kind, 60, 60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    new_number = order.argsort()
    renumbered = Adjacency.from_edges(*new_number[graph.edge_index].numpy(), 60, 60)
    moved = [tensor[order] if len(tensor) == 60 else tensor for tensor in inputs]
    setting = {"negative_slope": 0.2, "self_loops": True, "dropout": 0.5, "key": 9}
    out = KINDS[kind](AttentionSetting(graph.adjacency, **setting, node_ids=torch.arange(60)), *inputs)
    out_moved = KINDS[kind](AttentionSetting(renumbered, **setting, node_ids=order), *moved)
    torch.testing.assert_close(out_moved, out[order], **EXACT)


def test_dropping_everything_leaves_nothing(small_graph):
    inputs = make_inputs("gat", 60, 60)
    out = gat_attention(
        AttentionSetting(small_graph.adjacency, negative_slope=0.2, self_loops=True, dropout=1.0, key=1), *inputs
    )
    assert (out == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_rows", "num_sources"), [(59, 60), (60, 59)])
def test_rows_that_do_not_fit_are_refused_before_memory_is_read(small_graph, kind, num_rows, num_sources):
    inputs = make_inputs(kind, num_rows, num_sources)
    with pytest.raises(AssertionError, match="sources and rows"):
        KINDS[kind](AttentionSetting(small_graph.adjacency, negative_slope=0.2, self_loops=True), *inputs)


def test_mixed_precision_has_the_values_of_single(small_graph):
    x, a_src, a_dst = make_inputs("gat", 60, 60, dtype=torch.float32)
    setting = {"negative_slope": 0.2, "self_loops": True}
    mixed = gat_attention(AttentionSetting(small_graph.adjacency, **setting), x.bfloat16(), a_src, a_dst)
    assert mixed.dtype == torch.float32
    exact = gat_attention(AttentionSetting(small_graph.adjacency, **setting), x.bfloat16().float(), a_src, a_dst)
    torch.testing.assert_close(mixed, exact, atol=1e-5, rtol=1e-5)
