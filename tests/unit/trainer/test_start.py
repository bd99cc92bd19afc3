import dataclasses
import json
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GCN, SAGEConv

from laconic.errors import CheckpointError, ConfigError, DivergedError, UnsupportedModelError
from laconic.models import MODELS, parse_model
from laconic.records import EpochRecord, read_records
from laconic.trainer import Config, RunConfig, TrainingConfig, start
from laconic.trainer.checkpoint import Checkpoints
from laconic.trainer.progress import Silent


@pytest.fixture
def config(tmp_path):
    return Config(
        model=parse_model("gcn(hidden=8)"),
        training=TrainingConfig(epochs=6, lr=0.05, evaluate_every=1),
        run=RunConfig(folder=str(tmp_path / "run"), tensorboard=False, threads=1),
    )


@pytest.fixture
def learnable(make_graph):
    """A graph whose features say the class of nearly every node."""
    graph = make_graph()
    x = graph.x.clone()
    x[torch.arange(60), graph.y] += 4
    return dataclasses.replace(graph, x=x)


def changed(config, folder=None, **training):
    run = config.run if folder is None else dataclasses.replace(config.run, folder=str(folder))
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **training), run=run)


def rows_of(config):
    return read_records(_path(config) / "metrics.jsonl", EpochRecord)


def _path(config):
    return Path(config.run.folder)


def test_a_model_learns_what_can_be_learned(config, learnable):
    config = dataclasses.replace(config, model=parse_model("mlp(dropout=0.0, input_dropout=0.0)"))
    summary = start(changed(config, epochs=40), graph=learnable)
    assert summary.best is not None
    assert summary.best.test is not None
    assert summary.best.test > 0.8
    losses = [row.loss for row in rows_of(config)]
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize("name", MODELS)
def test_every_sample_model_trains_on_the_whole_graph_and_in_batches(config, small_graph, tmp_path, name):
    config = dataclasses.replace(config, model=parse_model(name))
    assert start(changed(config, epochs=2), graph=small_graph).ending == "finished"
    batched = changed(config, tmp_path / "batched", epochs=2, batch_size=16)
    assert start(batched, graph=small_graph).ending == "finished"


def test_the_same_seed_gives_the_same_run_and_another_seed_another(config, small_graph, tmp_path):
    runs = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        one = changed(config, tmp_path / str(number), seed=seed, batch_size=7)
        start(one, graph=small_graph)
        runs.append([row.loss for row in rows_of(one)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


class Noisy(nn.Module):
    """Draws from torch's own generator, as a user's model may, also when it is scored."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(32).view(4, 8) / 32)
            self.linear.bias.zero_()

    def forward(self, x, edge_index):
        return self.linear(x * torch.rand(1))


def test_the_seed_decides_what_a_model_draws_from_torch_and_torchs_state_is_put_back(config, small_graph, tmp_path):
    runs = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        model, before = Noisy(), torch.get_rng_state()
        one = changed(config, tmp_path / str(number), seed=seed)
        start(one, graph=small_graph, model=model)
        assert torch.equal(torch.get_rng_state(), before)
        runs.append([(row.loss, row.val) for row in rows_of(one)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("batch_size", [0, 8])
def test_global_random_states_are_left_alone(config, small_graph, batch_size):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    start(changed(config, batch_size=batch_size), graph=small_graph)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_threads_are_put_back(config, small_graph):
    before = torch.get_num_threads()
    start(dataclasses.replace(config, run=dataclasses.replace(config.run, threads=before + 1)), graph=small_graph)
    assert torch.get_num_threads() == before


def test_labels_are_scored_by_micro_f1_and_learned(config, learnable):
    y = torch.nn.functional.one_hot(learnable.y, 4).float()
    y[:, 0] = y[:, 1]
    graph = dataclasses.replace(learnable, y=y)
    config = dataclasses.replace(config, model=parse_model("mlp(dropout=0.0, input_dropout=0.0)"))
    summary = start(changed(config, epochs=60), graph=graph)
    assert summary.metric == "micro_f1"
    assert summary.best is not None
    assert summary.best.test is not None
    assert summary.best.test > 0.8


def test_training_stops_when_nothing_gets_better(config, small_graph):
    summary = start(changed(config, epochs=500, patience=7), graph=small_graph)
    assert summary.best is not None
    assert summary.ending == "stopped early"
    assert summary.num_epochs == summary.best.epoch + 7
    assert Checkpoints(_path(config) / "checkpoints").load("best").epoch == summary.best.epoch
    assert Checkpoints(_path(config) / "checkpoints").load("last").epoch == summary.num_epochs


def test_the_epoch_that_training_stops_at_has_a_score(config, small_graph):
    summary = start(changed(config, epochs=500, patience=7, evaluate_every=5), graph=small_graph)
    assert summary.ending == "stopped early"
    assert summary.num_epochs == summary.best.epoch + 7
    assert summary.num_epochs % 5, "the test needs a last epoch that is not scored anyway"
    assert rows_of(config)[-1].val is not None


def test_the_best_checkpoint_is_the_model_of_the_best_epoch(config, small_graph, tmp_path):
    summary = start(changed(config, epochs=12), graph=small_graph)
    assert summary.best is not None
    assert summary.best.epoch < 12, "the test needs a best epoch before the last"
    shorter = changed(config, tmp_path / "shorter", epochs=summary.best.epoch)
    start(shorter, graph=small_graph)
    best = Checkpoints(_path(config) / "checkpoints").load("best").model
    then = Checkpoints(tmp_path / "shorter" / "checkpoints").load("last").model
    assert all(torch.equal(best[key], then[key]) for key in then)


def test_scores_come_as_often_as_asked_and_at_the_end(config, small_graph):
    start(changed(config, epochs=8, evaluate_every=3), graph=small_graph)
    assert [row.epoch for row in rows_of(config) if row.val is not None] == [3, 6, 8]


def test_one_batch_of_all_nodes_and_neighbours_is_the_whole_graph(config, small_graph, tmp_path):
    config = dataclasses.replace(config, model=parse_model("sage(hidden=8, dropout=0.0, input_dropout=0.0)"))
    start(config, graph=small_graph)
    batched = changed(config, tmp_path / "batched", batch_size=60, fanouts=(-1, -1))
    start(batched, graph=small_graph)
    for whole, batch in zip(rows_of(config), rows_of(batched), strict=True):
        assert batch.loss == pytest.approx(whole.loss, rel=1e-4)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_what_was_good(config, small_graph):
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = SAGEConv(8, 4)
            self.num_calls = 0

        def forward(self, x, edge_index):
            self.num_calls += self.training
            return self.conv(x, edge_index) * (float("nan") if self.num_calls == 5 else 1.0)

    config = dataclasses.replace(config, run=dataclasses.replace(config.run, checkpoint_every=2))
    with pytest.raises(DivergedError, match=r"The loss became nan\. This happened in epoch 5, with lr=0\.05") as error:
        start(config, graph=small_graph, model=Breaks())
    assert "last: epoch_000004" in str(error.value)
    last = Checkpoints(_path(config) / "checkpoints").load("last")
    assert all(bool(torch.isfinite(value).all()) for value in last.model.values())
    assert len(rows_of(config)) == 4


def test_a_run_that_diverges_at_once_says_so(config, small_graph):
    config = dataclasses.replace(config, model=parse_model("gcn(hidden=8, dropout=0.0)"))
    with pytest.raises(DivergedError, match="This happened in epoch"):
        start(changed(config, lr=1e38, epochs=20, optimizer="sgd"), graph=small_graph)


def test_a_model_of_ones_own_is_trained_in_place_and_its_weights_are_pygs(config, small_graph):
    model = GCN(8, 16, 2, 4)
    start(config, graph=small_graph, model=model)
    plain = GCN(8, 16, 2, 4)
    plain.load_state_dict(dict(Checkpoints(_path(config) / "checkpoints").load("last").model))
    assert all(torch.equal(plain.state_dict()[key], value) for key, value in model.state_dict().items())


def test_a_model_of_ones_own_is_plain_again_after_a_run_and_after_one_that_never_began(config, small_graph, tmp_path):
    model = GCN(8, 16, 2, 4)
    plain = set(vars(model))
    with pytest.raises(ConfigError):
        start(changed(config, batch_size=8), graph=small_graph, model=model)
    assert set(vars(model)) == plain
    for name in ("one", "two"):
        start(changed(config, tmp_path / name), graph=small_graph, model=model)
        assert set(vars(model)) == plain


def test_a_model_of_ones_own_needs_fanouts_for_batches(config, small_graph):
    with pytest.raises(ConfigError, match=r"training\.fanouts"):
        start(changed(config, batch_size=8), graph=small_graph, model=GCN(8, 16, 2, 4))


def test_fanouts_have_to_match_the_hops_of_the_model(config, small_graph):
    with pytest.raises(ConfigError, match=r"one number per hop of the model, 2; got \[5\]"):
        start(changed(config, batch_size=8, fanouts=(5,)), graph=small_graph)


def test_what_cannot_be_trained_leaves_no_folder(config, small_graph):
    with pytest.raises(UnsupportedModelError):
        start(config, graph=small_graph, model=nn.Linear(8, 4))
    assert not _path(config).exists()


def test_an_unknown_strategy_is_refused_with_the_choices(config, small_graph):
    with pytest.raises(ConfigError, match="Unknown strategy 'singel'"):
        start(changed(config, strategy="singel"), graph=small_graph)


def test_a_folder_in_use_is_refused_before_the_graph_is_loaded(config):
    _path(config).mkdir()
    (_path(config) / "file").touch()
    with pytest.raises(CheckpointError, match="exists already"):
        start(dataclasses.replace(config, data=dataclasses.replace(config.data, source="no such graph")))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("file/run", r"file/run cannot be written: file is not a folder\. Choose another with --name"),
        ("/proc/run", "/proc/run cannot be written: nothing can be made in /proc"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_before_the_graph_is_loaded(
    config, tmp_path, monkeypatch, folder, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    absent = dataclasses.replace(config.data, source="no such graph")
    with pytest.raises(CheckpointError, match=message):
        start(dataclasses.replace(changed(config, folder), data=absent))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_for_runs_that_cannot_be_made_is_refused_before_the_graph_is_loaded(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    absent = dataclasses.replace(config.data, source="no such graph")
    with pytest.raises(CheckpointError, match="runs/ cannot be written: runs is not a folder"):
        start(dataclasses.replace(changed(config, ""), data=absent))


def test_a_run_leaves_a_whole_folder(config, small_graph):
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, tensorboard=True))
    summary = start(config, graph=small_graph)
    names = sorted(path.name for path in _path(config).iterdir())
    assert names == [
        "checkpoints",
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
        "tensorboard",
    ]
    saved = json.loads((_path(config) / "summary.json").read_text())
    assert saved["best"]["val"] == summary.best.val
    assert saved["num_parameters"] == 8 * 8 + 8 + 8 * 4 + 4


def test_tensorboard_events_hold_the_scores(config, small_graph):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = dataclasses.replace(config, run=dataclasses.replace(config.run, tensorboard=True))
    start(config, graph=small_graph)
    events = EventAccumulator(str(_path(config) / "tensorboard")).Reload()
    assert [point.step for point in events.Scalars("accuracy/val")] == [1, 2, 3, 4, 5, 6]
    assert events.Scalars("loss")[-1].value == pytest.approx(rows_of(config)[-1].loss)


def test_edge_weights_that_a_model_does_not_take_are_warned_of(config, make_graph, caplog, tmp_path):
    graph = make_graph(weighted=True)
    start(config, graph=graph)
    assert "edge weights" not in caplog.text
    start(changed(dataclasses.replace(config, model=parse_model("sage")), tmp_path / "other"), graph=graph)
    assert "GraphSAGEWithInputDropout does not take them" in caplog.text


def test_edge_weights_change_the_result_where_they_are_taken(config, make_graph, tmp_path):
    weighted = make_graph(weighted=True)
    start(config, graph=weighted)
    other = changed(config, tmp_path / "other")
    start(other, graph=dataclasses.replace(weighted, edge_weight=None))
    assert rows_of(config)[0].loss != rows_of(other)[0].loss


def test_only_data_that_is_loaded_is_said_to_be(config, small_graph):
    class Phases(Silent):
        def __init__(self):
            self.told = []

        def phase(self, text):
            self.told.append(text)

    display = Phases()
    start(config, graph=small_graph, display=display)
    assert "Preparing the graph" in display.told
    assert not [text for text in display.told if config.data.source in text]


def test_a_run_in_another_thread_works(config, small_graph):
    ended = []
    thread = threading.Thread(target=lambda: ended.append(start(config, graph=small_graph).ending))
    thread.start()
    thread.join()
    assert ended == ["finished"]
