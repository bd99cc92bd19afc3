"""`laconic train data --model my_model.py:Net`: what a run folder keeps of it, and who uses the copy."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from laconic.cli.main import app
from laconic.records import EpochRecord, read_records

RUNNER = CliRunner()
QUICK = ["--set", "run.tensorboard=false", "--threads", "1"]
NET = """
from torch import nn
from torch_geometric.nn import GCNConv

class Net(nn.Module):
    def __init__(self, in_channels, out_channels, hidden=8):
        super().__init__()
        self.first, self.second = GCNConv(in_channels, hidden), GCNConv(hidden, out_channels)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)
"""


def laconic(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch, small_graph):
    monkeypatch.chdir(tmp_path)
    arrays = {key: getattr(small_graph, key).numpy() for key in ("x", "y", "train_mask", "val_mask", "test_mask")}
    np.savez(tmp_path / "small.npz", edge_index=small_graph.edge_index.numpy(), **arrays)
    (tmp_path / "my_model.py").write_text(NET)


def losses(folder):
    return [row.loss for row in read_records(folder / "metrics.jsonl", EpochRecord)]


def test_a_run_keeps_its_model_and_goes_on_when_the_original_has_changed_or_is_gone(tmp_path):
    own = ["--model", "my_model.py:Net", "-s", "model.hidden=6"]
    result = laconic("train", "small.npz", *own, "--epochs", 6, "--name", "whole", *QUICK)
    assert result.exit_code == 0, result.output
    result = laconic("train", "small.npz", *own, "--epochs", 4, *QUICK)
    assert result.exit_code == 0, result.output
    run = tmp_path / "runs/small-Net-001"
    section = json.loads((run / "config.json").read_text())["model"]
    assert (section["name"], section["source"], section["hidden"]) == ("Net", str(tmp_path / "my_model.py"), 6)
    assert (run / "model/my_model.py").read_text() == NET

    (tmp_path / "my_model.py").write_text("class Net:\n    'another thing'\n")
    result = laconic("train", "--resume", run, "--epochs", 6, *QUICK)
    assert result.exit_code == 0, result.output
    assert losses(run) == losses(tmp_path / "whole")
    said = " ".join(result.stderr.split())
    assert f"The model is Net of {run.resolve()}/model/my_model.py." in said
    assert "my_model.py, has changed since" in said

    (tmp_path / "my_model.py").unlink()
    result = laconic("predict", run, "--out", "a.npz", "--checkpoint", "last")
    assert result.exit_code == 0, result.output
    assert "is not there any more" in " ".join(result.stderr.split())
    laconic("predict", tmp_path / "whole", "--out", "b.npz", "--checkpoint", "last")
    with np.load("a.npz") as one, np.load("b.npz") as other:
        np.testing.assert_array_equal(one["probabilities"], other["probabilities"])

    # A run folder may move: nothing in it leads back.
    shutil.move(run, tmp_path / "moved")
    assert laconic("predict", tmp_path / "moved", "--out", "c.npz").exit_code == 0
    (tmp_path / "moved/model/my_model.py").write_text(NET + "\n")
    result = laconic("predict", tmp_path / "moved", "--out", "c.npz")
    assert result.exit_code == 2
    assert "was altered" in result.stderr


def test_a_resumed_run_keeps_its_own_settings(tmp_path):
    assert laconic("train", "small.npz", "-m", "my_model.py:Net", "-e", 2, "--name", "run", *QUICK).exit_code == 0
    result = laconic("train", "--resume", "run", "-e", 3, "-s", "model.hidden=99", *QUICK)
    assert result.exit_code == 2
    assert "model.hidden: 8 -> 99" in result.stderr
    # Named again, it is the same model.
    assert laconic("train", "--resume", "run", "-e", 3, "-m", "my_model.py:Net", *QUICK).exit_code == 0


def test_an_equal_run_of_a_configuration_says_when_the_file_is_another(tmp_path):
    assert laconic("train", "small.npz", "-m", "my_model.py:Net", "-e", 2, "--name", "run", *QUICK).exit_code == 0
    (tmp_path / "my_model.py").write_text(NET + "# longer\n")
    result = laconic("train", "--config", "run/config.json", "--name", "again", *QUICK)
    assert result.exit_code == 0, result.output
    assert "is not the code that this configuration was made with" in " ".join(result.stderr.split())
    assert losses(tmp_path / "again") == losses(tmp_path / "run")


def test_mini_batches_of_an_own_model_ask_for_fanouts():
    batched = ["-s", "training.batch_size=8", *QUICK]
    result = laconic("train", "small.npz", "-m", "my_model.py:Net", "-e", 1, *batched)
    assert result.exit_code == 2
    assert "training.fanouts" in result.stderr
    result = laconic("train", "small.npz", "-m", "my_model.py:Net", "-e", 1, "-s", "training.fanouts=[4, 4]", *batched)
    assert result.exit_code == 0, result.output


def test_the_constructors_parameters_are_listed():
    result = laconic("train", "--settings", "--model", "my_model.py:Net")
    assert result.exit_code == 0, result.output
    assert "model.hidden" in result.stdout
    assert "Filled in from the graph" in result.stdout


def test_a_model_that_cannot_be_imported_is_refused_before_ranks_are_started(tmp_path):
    (tmp_path / "my_model.py").write_text("import torch\nraise ValueError('not today')\n")
    result = laconic("train", "small.npz", "--ranks", 2, "--model", "my_model.py:Net")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "ValueError: not today" in said
    assert "my_model.py, line 2" in said


def test_two_processes_train_an_own_model_as_one_does(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "laconic", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr

    own = ["--model", "my_model.py:Net(hidden=6)", "--epochs", 3]
    run("train", "small.npz", *own, "--ranks", 2, "--name", "two", *QUICK)
    assert laconic("train", "small.npz", *own, "--name", "one", *QUICK).exit_code == 0
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5)
    assert (tmp_path / "two/model/my_model.py").read_text() == NET
