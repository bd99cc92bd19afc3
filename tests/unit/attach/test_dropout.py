"""Keyed dropout under an unchanged model: what the mask depends on, and what it does not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, GATConv, GraphSAGE, TransformerConv

from laconic.attach import attach
from laconic.graph import Graph, Shard
from laconic.graph.normalize import gcn_operator
from laconic.graph.operators.dropout import drop_entries
from laconic.kernels.keyed import fold_key

HALF = 0.5


class Functional(nn.Module):
    """Dropout as many people write it."""

    def forward(self, x, edge_index):
        return F.dropout(x, HALF, training=self.training)


def relabelled(graph, order):
    """The same graph with node order[i] at row i, and the number of each row in the first one."""
    row_of = torch.empty_like(order)
    row_of[order] = torch.arange(len(order))
    fields = {name: getattr(graph, name)[order] for name in ("x", "y", "train_mask", "val_mask", "test_mask")}
    twin = Graph(edge_index=row_of[graph.edge_index], edge_weight=graph.edge_weight, **fields)
    whole = Shard.whole(twin)
    return Shard(**{**whole.__dict__, "node_ids": order})


def outputs(model, shard, seed=0, epoch=0, steps=1):
    attachment = attach(model, shard, seed=seed)
    attachment.start_epoch(epoch)
    out = [model.train()(shard.x, shard.edge_index).detach() for _ in range(steps)]
    attachment.detach()
    return out


def test_a_share_is_dropped_and_the_rest_scaled_so_that_the_mean_stays(make_graph):
    graph = make_graph(num_nodes=2000, num_edges=4, num_features=64)
    (out,) = outputs(Functional(), Shard.whole(graph))
    kept = out != 0
    # 128,000 coins: five standard deviations.
    assert abs(kept.float().mean() - HALF) < 5 * 0.5 / 128_000**0.5
    torch.testing.assert_close(out[kept], graph.x[kept] * 2)
    # No row, column or neighbouring pair is special.
    assert (kept.float().mean(0) - HALF).abs().max() < 5 * 0.5 / 2000**0.5
    assert abs((kept[:, ::2] == kept[:, 1::2]).float().mean() - HALF) < 5 * 0.5 / 64_000**0.5


def test_the_same_seed_epoch_and_step_give_the_same_mask_and_others_do_not(small_graph):
    shard = Shard.whole(small_graph)
    first, second = outputs(Functional(), shard, seed=1, epoch=3, steps=2)
    assert torch.equal(first, outputs(Functional(), shard, seed=1, epoch=3)[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, outputs(Functional(), shard, seed=2, epoch=3)[0])
    assert not torch.equal(first, outputs(Functional(), shard, seed=1, epoch=4)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: GCN(8, 16, 2, 4, dropout=HALF),
        lambda: GraphSAGE(8, 16, 3, 4, dropout=HALF, norm="layer_norm", norm_kwargs={"mode": "node"}),
        lambda: GAT(8, 16, 2, 4, heads=2, dropout=HALF),
        lambda: GAT(8, 16, 2, 4, heads=2, dropout=HALF, v2=True, add_self_loops=False),
        lambda: APPNP(K=3, alpha=0.1, dropout=HALF),
        lambda: TransformerConv(8, 4, heads=2, dropout=HALF),
    ],
    ids=["gcn", "sage", "gat", "gatv2", "appnp", "transformer"],
)
def test_masks_follow_the_node_or_edge_wherever_it_is_numbered(make, make_graph):
    graph = make_graph(dtype=torch.float64)
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(0)
    model = make().double()
    (here,) = outputs(model, Shard.whole(graph))
    (there,) = outputs(model, relabelled(graph, order))
    torch.testing.assert_close(there, here[order], atol=1e-12, rtol=1e-12)
    model.eval()
    assert not torch.allclose(here, model(graph.x, graph.edge_index))


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("dim", [1, 2])
def test_attention_dropout_in_the_kernel_equals_keyed_dropout_under_pygs_code(loops, dim, make_graph):
    graph = make_graph(dtype=torch.float64)
    conv = GATConv(8, 4, heads=dim, dropout=HALF, add_self_loops=loops).double()
    shard = Shard.whole(graph)
    attachment = attach(conv, shard)
    ours = conv(shard.x, shard.edge_index)
    attachment.start_epoch(0)
    theirs = conv(shard.x, shard.edge_index.clone())  # not the shard's own: PyG's code
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def keyed_run(conv, shard):
    attachment = attach(conv, shard)

    def run(x, epoch=0):
        attachment.start_epoch(epoch)
        return conv(x, shard.edge_index)

    return run


def test_appnp_drops_edges_without_bias_in_one_propagation(make_graph):
    shard = Shard.whole(make_graph(num_nodes=12, num_edges=30, num_features=2, dtype=torch.float64))
    conv = APPNP(K=1, alpha=0.1, dropout=HALF)
    run = keyed_run(conv, shard)
    samples = torch.stack([run(shard.x, epoch) for epoch in range(400)])
    exact = conv.eval()(shard.x, shard.edge_index)
    # Five standard errors.
    assert ((samples.mean(0) - exact).abs() < 5 * samples.std(0) / 400**0.5 + 1e-12).all()
    assert torch.equal(run(shard.x, 7), exact)  # eval mode: nothing is dropped


def test_appnp_drops_from_what_the_propagation_before_has_left(make_graph):
    graph = make_graph(num_nodes=12, num_edges=30, num_features=2, dtype=torch.float64)
    shard = Shard.whole(graph)
    assert torch.autograd.gradcheck(
        keyed_run(APPNP(K=3, alpha=0.1, dropout=HALF), shard), (shard.x.clone().requires_grad_(),)
    )
    # PyG's weights are multiplied by each mask in turn.
    operator, x = gcn_operator(shard.adjacency), shard.x
    for call in (1, 2, 3):
        operator = drop_entries(operator, HALF, fold_key(0, 0, 0, call), shard.node_ids)
        x = 0.9 * (operator @ x) + 0.1 * shard.x
    out = keyed_run(APPNP(K=3, alpha=0.1, dropout=HALF), shard)(shard.x)
    torch.testing.assert_close(out, x, atol=1e-12, rtol=1e-12)
    kept = torch.from_numpy(operator.values)
    # Most are dropped by one of three masks; the rest is scaled up thrice.
    assert set(kept.tolist()) == {0.0, 8.0}


def test_gradients_pass_through_the_kept_elements_only(small_graph):
    shard = Shard.whole(small_graph)
    attachment = attach(model := Functional(), shard)
    x = shard.x.clone().requires_grad_()
    out = model(x, shard.edge_index)
    out.sum().backward()
    assert torch.equal(x.grad, (out != 0).float() * 2)
    assert attachment.model is model


def test_in_place_dropout_changes_its_argument(small_graph):
    class InPlace(nn.Module):
        def forward(self, x, edge_index):
            h = x * 1.0
            F.dropout(h, HALF, inplace=True)
            return h

    (out,) = outputs(InPlace(), Shard.whole(small_graph))
    assert 0.3 < (out == 0).float().mean() < 0.7


def test_evaluation_drops_nothing_and_moves_no_key(small_graph):
    shard = Shard.whole(small_graph)
    attachment = attach(model := Functional(), shard)
    first = model(shard.x, shard.edge_index)
    attachment.start_epoch(0)
    model.eval()
    assert torch.equal(model(shard.x, shard.edge_index), shard.x)
    model.train()
    assert torch.equal(model(shard.x, shard.edge_index), first)


def test_the_global_random_state_is_untouched(small_graph):
    models = (Functional(), GAT(8, 16, 2, 4, dropout=HALF), TransformerConv(8, 4, dropout=HALF))
    before = torch.get_rng_state()
    for model in models:
        outputs(model, Shard.whole(small_graph))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: torch.dropout(x, HALF, True),
        lambda x: torch.dropout(x, p=HALF, train=True),
        lambda x: torch.dropout(input=x, p=HALF, train=True),
        lambda x: F.dropout(input=x),
        lambda x: F.dropout(x, p=HALF, inplace=False),
    ],
)
def test_however_dropout_is_called_it_is_keyed(drop, small_graph):
    class Calling(nn.Module):
        def forward(self, x, edge_index):
            return drop(x)

    shard = Shard.whole(small_graph)
    assert torch.equal(outputs(Calling(), shard)[0], outputs(Functional(), shard)[0])


def test_half_precision_uses_the_same_mask(small_graph):
    shard = Shard.whole(small_graph)
    (single,) = outputs(Functional(), shard)
    half = Shard(**{**shard.__dict__, "x": shard.x.to(torch.bfloat16)})
    (out,) = outputs(Functional(), half)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out == 0, single == 0)
