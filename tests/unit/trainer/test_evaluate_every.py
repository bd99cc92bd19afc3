"""In which epochs a run is scored, by default: alike on one rank and on many, and after a resumption."""

import copy
import json

import pytest
import torch
from tests.unit.trainer.test_ranks import config_at
from torch_geometric.nn import GCN

from laconic.errors import CheckpointError, ConfigError
from laconic.records import EpochRecord, read_records
from laconic.trainer import TrainingConfig, loop, resume, start
from laconic.trainer.checkpoint import Checkpoints
from laconic.trainer.config_file import parse_override, resolve


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return GCN(8, 16, 2, 4).double()


def scored_in(folder):
    return [row.epoch for row in read_records(folder / "metrics.jsonl", EpochRecord) if row.val is not None]


@pytest.mark.parametrize(
    ("epochs", "patience", "interval"),
    [
        (1, 0, 5),
        (20, 0, 5),
        (119, 0, 5),
        (200, 0, 10),
        (400, 0, 20),
        (10**6, 0, 20),
        (200, 20, 5),
        (200, 3, 1),
        (200, 100, 10),
    ],
)
def test_the_interval_follows_from_the_epochs_and_leaves_patience_some_scores(epochs, patience, interval):
    assert TrainingConfig(epochs=epochs, patience=patience).evaluation_interval == interval
    assert TrainingConfig(epochs=epochs, patience=patience, evaluate_every=3).evaluation_interval == 3


def test_a_number_or_auto_is_taken_and_nothing_else():
    assert resolve([parse_override("training.evaluate_every=auto")]).training.evaluate_every == "auto"
    assert resolve([parse_override("training.evaluate_every=4")]).training.evaluate_every == 4
    for value, message in (("often", "a number or auto; got 'often'"), ("1.5", "a whole number"), ("0", "1 or more")):
        with pytest.raises(ConfigError, match=message):
            resolve([parse_override(f"training.evaluate_every={value}")])


def test_one_rank_and_several_are_scored_in_the_same_epochs_and_have_one_best(tmp_path, graph, model, on_ranks):
    one = start(
        config_at(tmp_path / "one", strategy="single", epochs=12, evaluate_every="auto"),
        graph=graph,
        model=copy.deepcopy(model),
    )
    config = config_at(tmp_path / "many", epochs=12, evaluate_every="auto")
    many, _ = on_ranks(2, lambda ranks: start(config, graph=graph, model=copy.deepcopy(model), communicator=ranks))
    assert scored_in(tmp_path / "one") == scored_in(tmp_path / "many") == [5, 10, 12]
    assert one.best.epoch == many.best.epoch


def test_a_run_that_goes_on_for_longer_keeps_the_interval_that_it_began_with(tmp_path, graph, model):
    config = config_at(tmp_path / "run", strategy="single", epochs=10, evaluate_every="auto")
    start(config, graph=graph, model=copy.deepcopy(model))
    assert json.loads((tmp_path / "run/config.json").read_text())["training"]["evaluate_every"] == 5
    # For so many epochs auto would be 10; a file of settings that says auto changes nothing.
    layers = [{"training": {"epochs": 200, "evaluate_every": "auto"}}]
    resume(tmp_path / "run", layers, graph=graph, model=copy.deepcopy(model))
    assert scored_in(tmp_path / "run") == list(range(5, 201, 5))


def test_a_run_that_ended_before_its_first_score_says_how_to_predict_with_it(tmp_path, graph, model, monkeypatch):
    plain = loop.train_step

    def step(run, batch):
        run.interrupts.signal = 15
        return plain(run, batch)

    monkeypatch.setattr(loop, "train_step", step)
    config = config_at(tmp_path / "run", strategy="single", epochs=30, evaluate_every="auto")
    summary = start(config, graph=graph, model=model)
    assert (summary.ending, summary.best, summary.num_evaluations) == ("interrupted", None, 0)
    with pytest.raises(CheckpointError, match=r"there is: last\. No epoch had a score yet: .* --checkpoint last"):
        Checkpoints(tmp_path / "run/checkpoints").load("best")


def test_training_stops_early_after_patience_has_seen_several_scores(tmp_path, graph, model):
    config = config_at(tmp_path / "run", strategy="single", epochs=400, patience=16, evaluate_every="auto", lr=0.3)
    summary = start(config, graph=graph, model=model)
    scored = scored_in(tmp_path / "run")
    assert summary.ending == "stopped early"
    assert summary.num_epochs == summary.best.epoch + 16 == scored[-1]
    assert len([epoch for epoch in scored if epoch > summary.best.epoch]) == 4
