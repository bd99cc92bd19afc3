"""A run that was interrupted and continued is, bit by bit, the run that was not."""

import dataclasses
import signal
import tempfile

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCN

from laconic.errors import CheckpointError, ConfigError
from laconic.models import parse_model
from laconic.records import EpochRecord, read_records
from laconic.trainer import Config, RunConfig, TrainingConfig, loop, resume, start
from laconic.trainer.checkpoint import Checkpoints
from laconic.trainer.progress import Display, Silent

FULL = TrainingConfig(epochs=9, lr=0.05, evaluate_every=1)
MINI = TrainingConfig(epochs=4, lr=0.05, evaluate_every=1, batch_size=8, fanouts=(4, 4))


def config_at(folder, training=FULL, model="gcn(hidden=8)", **run):
    settings = {"checkpoint_every": 3, "tensorboard": False, "threads": 1} | run
    return Config(model=parse_model(model), training=training, run=RunConfig(folder=str(folder), **settings))


def interrupt_after_steps(monkeypatch, num_steps, number=signal.SIGINT):
    """Sends a signal after so many steps from now on, once."""
    plain, taken = loop.train_step, [0]

    def step(*arguments):
        value = plain(*arguments)
        taken[0] += 1
        if taken[0] == num_steps:
            signal.raise_signal(number)
        return value

    monkeypatch.setattr(loop, "train_step", step)


def without_times(folder):
    rows = read_records(folder / "metrics.jsonl", EpochRecord)
    return [dataclasses.replace(row, seconds=0, evaluate_seconds=0, wait_seconds=0, switch_seconds=0) for row in rows]


def assert_equal_runs(one, other):
    assert without_times(one) == without_times(other)
    for which in ("last", "best"):
        mine, theirs = (Checkpoints(folder / "checkpoints").load(which) for folder in (one, other))
        assert (mine.epoch, mine.step) == (theirs.epoch, theirs.step)
        for tensors, others in ((mine.model, theirs.model), (mine.training, theirs.training)):
            if which == "last":
                assert set(tensors) == set(others)
            assert all(torch.equal(tensors[key], others[key]) for key in set(tensors) & set(others))


class Noisy(nn.Module):
    """Draws from torch's global generator, as a user's model may."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            self.linear = nn.Linear(8, 4)

    def forward(self, x, edge_index):
        return self.linear(x + 0.1 * torch.randn_like(x) if self.training else x)


@pytest.mark.parametrize("model", ["gcn(hidden=8)", "gin(hidden=8)", "sage(hidden=8, norm='batch')", "appnp(hidden=8)"])
@pytest.mark.parametrize("num_steps", [1, 3, 5, 8])
def test_a_whole_graph_run_continues_bit_by_bit(tmp_path, small_graph, monkeypatch, model, num_steps):
    start(config_at(tmp_path / "whole", model=model), graph=small_graph)
    with monkeypatch.context() as patch:
        interrupt_after_steps(patch, num_steps)
        summary = start(config_at(tmp_path / "cut", model=model), graph=small_graph)
    assert (summary.ending, summary.num_epochs, summary.signal) == ("interrupted", num_steps, signal.SIGINT)
    assert resume(tmp_path / "cut", graph=small_graph).ending == "finished"
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("num_steps", [1, 4, 6, 9])
def test_a_mini_batch_run_continues_in_the_middle_of_an_epoch(tmp_path, small_graph, monkeypatch, num_steps):
    start(config_at(tmp_path / "whole", MINI), graph=small_graph)
    with monkeypatch.context() as patch:
        interrupt_after_steps(patch, num_steps, signal.SIGTERM)
        summary = start(config_at(tmp_path / "cut", MINI), graph=small_graph)
    # 30 training nodes in batches of 8: four steps per epoch.
    assert (summary.ending, summary.num_epochs, summary.signal) == ("interrupted", num_steps // 4, signal.SIGTERM)
    assert Checkpoints(tmp_path / "cut" / "checkpoints").load("last").step == num_steps % 4
    assert resume(tmp_path / "cut", graph=small_graph).ending == "finished"
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_two_threads_continue_bit_by_bit_too(tmp_path, small_graph, monkeypatch):
    start(config_at(tmp_path / "whole", MINI, threads=2), graph=small_graph)
    with monkeypatch.context() as patch:
        interrupt_after_steps(patch, 6)
        start(config_at(tmp_path / "cut", MINI, threads=2), graph=small_graph)
    resume(tmp_path / "cut", graph=small_graph)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_run_can_be_interrupted_again_and_again(tmp_path, small_graph, monkeypatch):
    start(config_at(tmp_path / "whole", MINI), graph=small_graph)
    with monkeypatch.context() as patch:
        interrupt_after_steps(patch, 2)
        start(config_at(tmp_path / "cut", MINI), graph=small_graph)
    for _ in range(4):
        with monkeypatch.context() as patch:
            interrupt_after_steps(patch, 3)
            resume(tmp_path / "cut", graph=small_graph)
    assert resume(tmp_path / "cut", graph=small_graph).ending == "finished"
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_run_that_was_killed_loses_only_what_came_after_its_last_checkpoint(tmp_path, small_graph):
    class Killer(Display):
        def start(self, *, done, total, metric): ...
        def stop(self): ...
        def show(self, record):
            if record.epoch == 8:
                raise ZeroDivisionError

    start(config_at(tmp_path / "whole"), graph=small_graph)
    with pytest.raises(ZeroDivisionError):
        start(config_at(tmp_path / "cut"), graph=small_graph, display=Killer())
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "sch')
    assert Checkpoints(tmp_path / "cut" / "checkpoints").load("last").epoch == 6
    resume(tmp_path / "cut", graph=small_graph)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_model_that_draws_from_torchs_own_generator_continues_bit_by_bit(tmp_path, small_graph, monkeypatch):
    torch.manual_seed(11)
    start(config_at(tmp_path / "whole"), graph=small_graph, model=Noisy())
    with monkeypatch.context() as patch:
        interrupt_after_steps(patch, 4)
        start(config_at(tmp_path / "cut"), graph=small_graph, model=Noisy())
    torch.manual_seed(12)
    resume(tmp_path / "cut", graph=small_graph, model=Noisy())
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_every_optimizer_continues_bit_by_bit(tmp_path, small_graph, monkeypatch, optimizer):
    training = dataclasses.replace(FULL, optimizer=optimizer)
    start(config_at(tmp_path / "whole", training), graph=small_graph)
    with monkeypatch.context() as patch:
        interrupt_after_steps(patch, 5)
        start(config_at(tmp_path / "cut", training), graph=small_graph)
    resume(tmp_path / "cut", graph=small_graph)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_may_go_on_for_more_epochs(tmp_path, small_graph):
    start(config_at(tmp_path / "long"), graph=small_graph)
    start(config_at(tmp_path / "grown", dataclasses.replace(FULL, epochs=4)), graph=small_graph)
    summary = resume(tmp_path / "grown", [{"training": {"epochs": 9}}], graph=small_graph)
    assert (summary.ending, summary.num_epochs) == ("finished", 9)
    assert_equal_runs(tmp_path / "long", tmp_path / "grown")
    assert resume(tmp_path / "grown", graph=small_graph).num_epochs == 9, "the longer run is what is configured now"


def test_continuing_a_finished_run_changes_nothing_but_tells_its_summary_again(tmp_path, small_graph):
    first = start(config_at(tmp_path / "run"), graph=small_graph)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert resume(tmp_path / "run", graph=small_graph) == first
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_early_stopping_is_remembered(tmp_path, small_graph, monkeypatch):
    training = dataclasses.replace(FULL, epochs=60, patience=6)
    whole = start(config_at(tmp_path / "whole", training), graph=small_graph)
    assert whole.ending == "stopped early"
    with monkeypatch.context() as patch:
        interrupt_after_steps(patch, whole.num_epochs - 2)
        start(config_at(tmp_path / "cut", training), graph=small_graph)
    assert resume(tmp_path / "cut", graph=small_graph).ending == "stopped early"
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")
    assert resume(tmp_path / "cut", graph=small_graph).ending == "stopped early"


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ({"training": {"lr": 0.5}}, r"training\.lr: 0\.05 -> 0\.5"),
        ({"training": {"seed": 3}}, r"training\.seed: 0 -> 3"),
        ({"model": {"hidden": 16}}, r"model\.hidden: 8 -> 16"),
        ({"model": {"name": "mlp"}}, r"model\.name: gcn -> mlp"),
        ({"data": {"source": "rmat"}}, r"data\.source: given\(name='random'.* -> rmat"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, small_graph, layer, named):
    start(config_at(tmp_path / "run"), graph=small_graph)
    with pytest.raises(ConfigError, match=named):
        resume(tmp_path / "run", [layer], graph=small_graph)


def test_settings_given_again_as_they_were_are_fine(tmp_path, small_graph):
    start(config_at(tmp_path / "run"), graph=small_graph)
    layers = [
        {"training": {"lr": 0.05, "epochs": 10}},
        {"model": {"name": "gcn", "hidden": 8}},
        {"run": {"threads": 1}},
    ]
    assert resume(tmp_path / "run", layers, graph=small_graph).num_epochs == 10


def test_fewer_epochs_than_are_done_are_refused(tmp_path, small_graph):
    start(config_at(tmp_path / "run"), graph=small_graph)
    with pytest.raises(ConfigError, match="already been trained for 9 epochs"):
        resume(tmp_path / "run", [{"training": {"epochs": 5}}], graph=small_graph)


def test_a_graph_that_changed_is_refused(tmp_path, small_graph, make_graph):
    start(config_at(tmp_path / "run"), graph=small_graph)
    with pytest.raises(CheckpointError, match=r"num_edges: 300 -> 301"):
        resume(tmp_path / "run", graph=make_graph(num_edges=301))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_touched(tmp_path, small_graph):
    start(config_at(tmp_path / "run"), graph=small_graph, model=Noisy())
    before = contents(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"epoch_000009/model\.safetensors does not fit this model"):
        resume(tmp_path / "run", [{"training": {"epochs": 12}}], graph=small_graph, model=GCN(8, 8, 2, 4))
    assert contents(tmp_path / "run") == before


def test_a_state_of_another_optimizer_is_refused_and_nothing_is_touched(tmp_path, small_graph, monkeypatch):
    start(config_at(tmp_path / "run"), graph=small_graph)
    before = contents(tmp_path / "run")

    def refuse(*arguments):
        raise ValueError("loaded state dict has a different number of parameter groups")

    monkeypatch.setattr("laconic.trainer.run.load_optimizer", refuse)
    with pytest.raises(CheckpointError, match="cannot be continued from: loaded state dict"):
        resume(tmp_path / "run", [{"training": {"epochs": 12}}], graph=small_graph)
    assert contents(tmp_path / "run") == before


def test_a_run_folder_that_cannot_be_written_is_refused_before_the_graph_is_loaded(tmp_path, small_graph, monkeypatch):
    start(config_at(tmp_path / "run"), graph=small_graph)

    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr("laconic.trainer.prepared.open_data", lambda *source: pytest.fail("the graph was loaded"))
    with pytest.raises(CheckpointError, match=r"run cannot be written: .*Permission denied"):
        resume(tmp_path / "run", [{"training": {"epochs": 12}}])


def test_a_harmed_checkpoint_is_refused_and_nothing_is_touched(tmp_path, small_graph):
    start(config_at(tmp_path / "run"), graph=small_graph)
    path = tmp_path / "run" / "checkpoints" / "epoch_000009" / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"epoch_000009/training\.safetensors"):
        resume(tmp_path / "run", graph=small_graph)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_another_number_of_threads_is_warned_of(tmp_path, small_graph, caplog):
    start(config_at(tmp_path / "run", threads=1), graph=small_graph)
    resume(tmp_path / "run", [{"training": {"epochs": 10}, "run": {"threads": 2}}], graph=small_graph, display=Silent())
    assert "used 1 threads before and uses 2 now" in caplog.text
