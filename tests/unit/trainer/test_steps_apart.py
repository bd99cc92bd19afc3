"""Runs in which ranks step apart (`sync_every`): what is recorded is of all ranks, and they end together."""

import copy

import pytest
import torch
from tests.unit.trainer.test_ranks import config_at, epochs_in, ledger_in
from torch_geometric.nn import GraphSAGE

from laconic.errors import DivergedError
from laconic.trainer import loop, start

APART = "gradient_only(sync_every=3, partitioner=random, codec=identity)"


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return GraphSAGE(8, 16, 2, 4).double()


@pytest.fixture
def carry_out(on_ranks, model):
    def carry_out(num_ranks, config, graph):
        def run(communicator):
            return start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator)

        return on_ranks(num_ranks, run)

    return carry_out


def test_the_loss_that_is_recorded_is_that_of_all_ranks(tmp_path, graph, carry_out):
    # Without steps, what is remembered is never old: every loss is that of the whole graph.
    settings = {"epochs": 4, "lr": 1e-30}
    carry_out(1, config_at(tmp_path / "single", strategy="single", **settings), graph)
    carry_out(3, config_at(tmp_path / "apart", strategy=APART, **settings), graph)
    single, apart = ([epoch.loss for epoch in epochs_in(tmp_path / name)] for name in ("single", "apart"))
    assert apart == pytest.approx(single, rel=1e-10, abs=0)


def test_what_ranks_agree_on_is_booked_as_gradients(tmp_path, graph, carry_out):
    carry_out(2, config_at(tmp_path / "apart", strategy=APART, epochs=2, evaluate_every=9), graph)
    [row] = [
        row
        for row in ledger_in(tmp_path / "apart")
        if (row.epoch, row.rank, row.phase, row.direction) == (1, 0, "gradients", "sent")
    ]
    assert (row.operation, row.num_bytes) == ("all_reduce", 8)


@pytest.mark.parametrize("what", ["weight", "loss"])
@pytest.mark.parametrize("at_epoch", [1, 3, 4])
def test_a_rank_that_diverges_ends_all_of_them(at_epoch, what, tmp_path, graph, on_ranks, model, monkeypatch):
    config = config_at(tmp_path / "run", strategy=APART, epochs=6)
    train_step = loop.train_step

    def spoil(run, batch):
        loss = train_step(run, batch)
        if run.session.rank != 1 or run.state.epoch + 1 != at_epoch:
            return loss
        if what == "weight":
            next(run.model.parameters()).data.fill_(torch.inf)
            return loss
        return float("nan")

    monkeypatch.setattr(loop, "train_step", spoil)

    def run(communicator):
        with pytest.raises(DivergedError, match=rf"The loss became nan\. This happened in epoch {at_epoch}, "):
            start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator)
        return True

    assert on_ranks(3, run) == [True, True, True]
