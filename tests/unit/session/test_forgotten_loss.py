"""A loop that trains every rank apart is told so: at the first step, or when weights have come to differ."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCN

import laconic
from laconic.errors import ConfigError, RanksDifferError

STRATEGIES = [
    "exchange",
    "full_graph",
    "gradient_only",
    "grappa(variable=1)",
]
FORGOTTEN = r"does not come from session\.loss.*(?s:.*)loss = session\.loss\(F\.cross_entropy, model\(shard\.x"


def plain_loss(out, shard):
    return F.cross_entropy(out[shard.train_mask], shard.y[shard.train_mask])


def run(graph, model, work, strategy="auto"):
    """Returns what does `work(session, model, shard, optimizer)` in an epoch of a session, on a rank."""

    def of_rank(communicator):
        session = laconic.join(graph, strategy=strategy, communicator=communicator)
        mine = session.attach(copy.deepcopy(model))
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
        _, shard = next(session.epochs(1))
        return work(session, mine, shard, optimizer)

    return of_rank


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_backward_pass_without_session_loss_is_refused_by_all_ranks_before_it_sends(strategy, small_graph, on_ranks):
    def forget(session, model, shard, optimizer):
        loss = plain_loss(model(shard.x, shard.edge_index), shard)
        session.communicator.ledger.take(0)
        with pytest.raises(ConfigError, match=FORGOTTEN):
            loss.backward()
        return session.communicator.ledger.take(0)

    assert on_ranks(2, run(small_graph, GCN(8, 8, 2, 4), forget, strategy)) == [[], []]


@pytest.mark.parametrize("strategy", ["auto", "exchange"])
def test_on_one_rank_a_plain_loss_is_as_good(strategy, small_graph, on_ranks):
    def train(session, model, shard, optimizer):
        plain_loss(model(shard.x, shard.edge_index), shard).backward()
        return True

    assert on_ranks(1, run(small_graph, GCN(8, 8, 2, 4), train, strategy)) == [True]


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_model_under_an_activation_checkpoint_is_watched_and_trains(is_reentrant, small_graph, on_ranks):
    def train(session, model, shard, optimizer):
        def out():
            x = shard.x
            call = lambda given: model(shard.x, shard.edge_index) + 0 * given.sum()  # noqa: E731
            return checkpoint(call, x.clone().requires_grad_(), use_reentrant=is_reentrant)

        session.loss(F.cross_entropy, out(), shard).backward()
        with pytest.raises(ConfigError, match=FORGOTTEN):
            plain_loss(out(), shard).backward()
        return [parameter.grad for parameter in model.parameters()]

    def plainly(session, model, shard, optimizer):
        session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard).backward()
        return [parameter.grad for parameter in model.parameters()]

    model = GCN(8, 8, 2, 4)
    for ours, expected in zip(*(on_ranks(2, run(small_graph, model, work)) for work in (train, plainly)), strict=True):
        for mine, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_loops_that_share_their_losses_are_let_alone(strategy, small_graph, on_ranks):
    def train(session, model, shard, optimizer):
        def loss():
            return session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)

        # Gradients that pile up, two losses in one pass and in two, a penalty, a pass of a penalty alone.
        loss().backward()
        loss().backward()
        (loss() + 0.1 * loss()).backward()
        out = model(shard.x, shard.edge_index)
        session.loss(F.cross_entropy, out, shard).backward(retain_graph=True)
        session.loss(F.mse_loss, out[:, 0], shard).backward()
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        (loss() + penalty).backward()
        sum(parameter.square().sum() for parameter in model.parameters()).backward()
        optimizer.step()
        next(model.parameters()).requires_grad_(False)
        loss().backward()
        optimizer.step()
        # What is not for training: in eval mode.
        model.eval()
        with torch.no_grad():
            model(shard.x, shard.edge_index)
        return session.evaluate()

    first, second = on_ranks(2, run(small_graph, GCN(8, 8, 2, 4), train, strategy))
    assert first == second


@pytest.mark.parametrize("strategy", ["exchange", "full_graph", "gradient_only"])
def test_weights_that_differ_are_found_in_the_next_step(strategy, small_graph, on_ranks):
    def train(session, model, shard, optimizer):
        def step():
            optimizer.zero_grad()
            session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard).backward()
            optimizer.step()

        step()
        if session.rank == 1:
            optimizer.step()
        with pytest.raises(
            RanksDifferError, match=r"convs\.0.* differs on rank 1 from rank 0\. .*only some ranks take"
        ):
            step()
        return True

    assert on_ranks(3, run(small_graph, GCN(8, 8, 2, 4), train, strategy)) == [True, True, True]


@pytest.mark.parametrize("strategy", ["exchange", "gradient_only", "grappa"])
def test_weights_that_differ_are_found_by_an_evaluation(strategy, small_graph, on_ranks):
    def train(session, model, shard, optimizer):
        session.evaluate()
        if session.rank == 1:
            with torch.no_grad():
                next(model.parameters()).add_(1.0)
        with pytest.raises(
            RanksDifferError, match=r"convs\.0.* differs on rank 1 from rank 0, so its scores mean noth"
        ):
            session.evaluate()
        return True

    assert on_ranks(2, run(small_graph, GCN(8, 8, 2, 4), train, strategy)) == [True, True]


def test_ranks_that_only_round_differently_go_on_with_a_warning(small_graph, on_ranks, caplog):
    def train(session, model, shard, optimizer):
        if session.rank == 1:
            with torch.no_grad():
                model.convs[0].lin.weight.mul_(1 + 1e-6)
        sizes = []
        for _ in range(3):
            session.communicator.ledger.take(0)
            session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard).backward()
            rows = session.communicator.ledger.take(1)
            sizes.append(sum(row.num_bytes for row in rows if row.phase == "gradients"))
        return sizes

    for first, second, third in on_ranks(2, run(small_graph, GCN(8, 8, 2, 4), train)):
        # Whole models are compared in the first such step, the second, the fourth.
        assert first == second > third
    assert [record.getMessage()[:40] for record in caplog.records].count(
        "Weights differ between ranks in their la"
    ) == 1
