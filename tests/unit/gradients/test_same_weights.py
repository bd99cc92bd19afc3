"""Ranks hold the same model, or no checkpoint is written."""

import copy

import pytest
import torch
from torch import nn

from laconic.errors import RanksDifferError
from laconic.gradients.same_weights import FINGERPRINT_BYTES, check_same_weights, fingerprint, is_same


@pytest.fixture
def model():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    model.register_buffer("empty", torch.zeros(0, 2))
    return model


def check(on_ranks, model, change, num_ranks=3):
    def run(communicator):
        mine = copy.deepcopy(model)
        with torch.no_grad():
            change(mine, communicator.rank)
        try:
            check_same_weights(mine, communicator, consequence=", so no checkpoint is written")
        except RanksDifferError as error:
            return str(error), communicator.ledger.take(1)
        return "", communicator.ledger.take(1)

    return on_ranks(num_ranks, run)


def test_equal_models_cost_a_hash_each(on_ranks, model):
    for message, rows in check(on_ranks, model, lambda mine, rank: None):
        assert message == ""
        assert {(row.phase, row.operation, row.direction, row.num_bytes) for row in rows} == {
            ("checkpoint", "all_gather", "received", 64),
            ("checkpoint", "all_gather", "sent", 64),
        }


def test_one_rank_alone_has_nothing_to_compare(on_ranks, model):
    assert check(on_ranks, model, lambda mine, rank: None, num_ranks=1) == [("", [])]


def test_what_only_rounds_differently_is_the_same_model(on_ranks, model):
    outcomes = check(on_ranks, model, lambda mine, rank: mine[0].weight.mul_(1 + 1e-6 * rank))
    assert [message for message, _ in outcomes] == ["", "", ""]


@pytest.mark.parametrize("value", [5.0, float("nan")])
@pytest.mark.parametrize(
    ("name", "pick"), [("0.weight", lambda mine: mine[0].weight), ("1.running_mean", lambda mine: mine[1].running_mean)]
)
def test_a_rank_with_another_model_is_named_to_all(on_ranks, model, name, pick, value):
    def change(mine, rank):
        if rank == 2:
            pick(mine).view(-1)[1] = value

    for message, _ in check(on_ranks, model, change):
        assert f"{name} differs on rank 2 from rank 0, so no checkpoint is written" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_fingerprints_tell_models_apart_by_any_bit_of_theirs(dtype):
    weights = [torch.linspace(-1, 1, 12).to(dtype).view(3, 4), torch.zeros(0).to(dtype), torch.ones(()).to(dtype)]
    other = [tensor.clone() for tensor in weights]
    other[0][1, 2] *= 1.01
    first, second = fingerprint(weights), fingerprint(other)
    assert len(first) == FINGERPRINT_BYTES
    assert is_same(first)
    assert is_same(torch.maximum(first, fingerprint([weights[0].T.contiguous().T, *weights[1:]])))
    assert not is_same(torch.maximum(first, second))
    assert not is_same(torch.maximum(first, fingerprint(weights[::-1])))


def test_a_run_in_which_one_rank_steps_alone_ends_without_a_checkpoint(tmp_path, make_graph, on_ranks, monkeypatch):
    from torch_geometric.nn import GCN

    from laconic.trainer import Config, RunConfig, TrainingConfig, loop, start

    graph, model = make_graph(), GCN(8, 8, 2, 4)
    step = loop.train_step

    def step_apart(run, batch):
        loss = step(run, batch)
        if run.session.rank == 1:
            with torch.no_grad():
                next(run.model.parameters()).add_(1.0)
        return loss

    monkeypatch.setattr(loop, "train_step", step_apart)
    config = Config(
        training=TrainingConfig(strategy="exchange(partitioner=random)", epochs=2),
        run=RunConfig(folder=str(tmp_path / "run"), tensorboard=False, threads=1),
    )

    def run(communicator):
        return start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator)

    with pytest.raises(RanksDifferError, match=r"differs on rank 1 from rank 0\. Something changes weights"):
        on_ranks(2, run)
    assert not (tmp_path / "run" / "checkpoints").exists()
