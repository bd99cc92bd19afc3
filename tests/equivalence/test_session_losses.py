"""session.loss on any number of ranks is what one process of plain torch gives: value and gradients, to 1e-10."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCN

import laconic
from laconic.errors import ConfigError, DataError

W = torch.tensor([0.5, 2.0, 0.1, 7.0], dtype=torch.float64)
TARGET = nn.CrossEntropyLoss(weight=W, label_smoothing=0.1, ignore_index=2)

LOSSES = {
    "cross_entropy": F.cross_entropy,
    "with everything": TARGET,
    "sum": partial(F.cross_entropy, weight=W, reduction="sum"),
    "one's own": lambda out, y: F.cross_entropy(out, y, weight=W, reduction="none"),
}
# Exact in the first step, as no neighbour is old yet.
STRATEGIES = ["exchange(partitioner=random)", "full_graph(partitioner=random)", "gradient_only(codec=identity)"]


def plain(function, graph, model):
    """Loss and gradients of one process without Laconic."""
    model, mask = copy.deepcopy(model), graph.train_mask
    losses = function(model(graph.x, graph.edge_index)[mask], graph.y[mask])
    loss = losses.mean()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def in_session(function, graph, model, strategy, communicator):
    """Loss, gradients, and traffic as predicted and as counted, of one step of one rank."""
    session = laconic.join(graph, strategy=strategy, communicator=communicator)
    model = session.attach(copy.deepcopy(model))
    predicted = session.worker.predict_traffic()
    communicator.ledger.take(0)
    for _, shard in session.epochs(1):
        loss = session.loss(function, model(shard.x, shard.edge_index), shard)
        loss.backward()
    rows = communicator.ledger.take(1)
    expected = [row for row in predicted if row.phase in ("forward", "backward", "gradients")]
    counted = [row for row in rows if row.phase in ("forward", "backward", "gradients")]
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}, expected, counted


def check(function, graph, model, strategy, num_ranks, on_ranks):
    value, gradients = plain(function, graph, model)
    for loss, shared, predicted, counted in on_ranks(
        num_ranks, lambda communicator: in_session(function, graph, model, strategy, communicator)
    ):
        assert loss == pytest.approx(value, rel=0, abs=1e-10)
        for name, gradient in gradients.items():
            torch.testing.assert_close(shared[name], gradient, rtol=0, atol=1e-10, msg=name)
        assert counted == predicted


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", LOSSES)
def test_ranks_have_torchs_loss_and_gradients_of_the_whole_graph(name, strategy, make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4).double()
    check(LOSSES[name], graph, model, strategy, 3, on_ranks)


@pytest.mark.parametrize("strategy", ["single", *STRATEGIES])
def test_one_rank_has_torchs_loss_too(strategy, make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4).double()
    for function in LOSSES.values():
        check(function, graph, model, strategy, 1, on_ranks)


@pytest.mark.parametrize("function", [F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss(pos_weight=W)])
def test_labels_are_a_mean_over_nodes_and_labels(function, make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4).double()
    labels = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)) > 0.5
    check(function, replace(graph, y=labels.double()), model, STRATEGIES[0], 2, on_ranks)


def test_a_rank_without_training_nodes_adds_nothing(make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4).double()
    rows = torch.arange(60)
    few = replace(graph, train_mask=rows == 7, val_mask=rows == 8, test_mask=rows == 9)
    for function in (TARGET, F.cross_entropy, LOSSES["one's own"]):
        check(function, replace(few, y=few.y.clone().fill_(1)), model, STRATEGIES[0], 3, on_ranks)


def test_a_loss_in_which_no_node_counts_is_refused_by_all_ranks(make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4).double()
    ignored = replace(graph, y=torch.full_like(graph.y, 2))

    def refused(communicator):
        with pytest.raises(DataError, match="No training node counts in this loss"):
            in_session(TARGET, ignored, model, "auto", communicator)
        return True

    assert on_ranks(1, refused) == [True]
    assert on_ranks(2, refused) == [True, True]


def test_weights_go_along_where_nodes_are_weighted_by_coverage(make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4).double()
    strategy = "grappa(variable=1, correction=node, partitioner=random)"

    def run(communicator):
        session = laconic.join(graph, strategy=strategy, communicator=communicator)
        mine = session.attach(copy.deepcopy(model))
        for _, shard in session.epochs(1):
            out = mine(shard.x, shard.edge_index)
            loss = session.loss(partial(F.cross_entropy, weight=W), out, shard)
        rows, factors = shard.train_rows, session.worker.row_factors
        losses = F.cross_entropy(out[rows].detach(), shard.y[rows], weight=W, reduction="none")
        return loss.item(), float((factors * losses).sum()), float(W[shard.y[rows]].sum()), session.worker.num_train

    ranks = on_ranks(2, run)
    num_train = ranks[0][3]
    expected = num_train * sum(total for _, total, _, _ in ranks) / sum(weight for _, _, weight, _ in ranks)
    assert [loss for loss, *_ in ranks] == [pytest.approx(expected, rel=0, abs=1e-10)] * 2


@pytest.mark.parametrize(
    ("function", "pick", "words"),
    [
        (F.cross_entropy, lambda out, shard: out[shard.train_mask], "It picks the training rows itself"),
        (F.cross_entropy, lambda out, shard: (out, out), r"as one tensor, got a tuple.*such as out\[0\]"),
        (F.cross_entropy, lambda out, shard: out.sum(), r"for all \d+ owned rows of the shard, got shape \(\)"),
        (lambda out, y: F.cross_entropy(out, y), lambda out, shard: out, "returns one number for all nodes together"),
        (F.mse_loss, lambda out, shard: out[:, :1], r"Give out.squeeze\(1\)"),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_is_no_loss_is_refused_before_anything_is_sent(function, pick, words, num_ranks, make_graph, on_ranks):
    graph, model = make_graph(), GCN(8, 8, 2, 4)

    def refused(communicator):
        session = laconic.join(graph, communicator=communicator)
        mine = session.attach(copy.deepcopy(model))
        shard = session.shard
        out = mine(shard.x, shard.edge_index)
        communicator.ledger.take(0)
        with pytest.raises(ConfigError, match=words):
            session.loss(function, pick(out, shard), shard)
        return communicator.ledger.take(0)

    assert on_ranks(num_ranks, refused) == [[]] * num_ranks
