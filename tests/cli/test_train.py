import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from laconic.cli.main import app
from laconic.cli.traffic_table import print_traffic
from laconic.records import EpochRecord, read_records
from laconic.trainer.traffic import Traffic

RUNNER = CliRunner()
QUICK = ["--set", "run.tensorboard=false", "--threads", "1"]


def laconic(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def npz(tmp_path, small_graph):
    arrays = {key: getattr(small_graph, key).numpy() for key in ("x", "y", "train_mask", "val_mask", "test_mask")}
    np.savez(tmp_path / "small.npz", edge_index=small_graph.edge_index.numpy(), **arrays)
    return tmp_path / "small.npz"


def test_a_file_is_trained_on_and_the_end_says_what_was_learned(npz, tmp_path):
    result = laconic("train", npz, "--model", "gcn(hidden=8)", "--epochs", 3, *QUICK)
    assert result.exit_code == 0, result.output
    for words in (
        "Best epoch",
        "Train accuracy",
        "Validation accuracy",
        "Test accuracy",
        "Time per epoch",
        "Parameters",
    ):
        assert words in result.stdout
    assert "runs/small-gcn-001" in result.stdout
    assert len(read_records(tmp_path / "runs/small-gcn-001/metrics.jsonl", EpochRecord)) == 3


def test_without_data_the_built_in_graph_is_used(tmp_path):
    result = laconic("train", "--epochs", 1, *QUICK)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "runs/sbm-gcn-001/config.json").read_text())["data"]["source"] == "sbm"


def test_settings_come_from_the_file_then_the_flags_then_set(npz, tmp_path):
    (tmp_path / "a.toml").write_text(
        '[data]\nsource = "rmat"\n[model]\nname = "gat"\nheads = 2\n[training]\nlr = 0.5\nepochs = 50\nseed = 4\n'
    )
    result = laconic(
        "train", npz, "--config", "a.toml", "--epochs", 9, "--set", "training.epochs=2", "-s", "model.hidden=8",
        "--name", "here/x", *QUICK,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "here/x/config.json").read_text())
    assert config["data"]["source"] == str(npz)
    assert (config["model"]["name"], config["model"]["heads"], config["model"]["hidden"]) == ("gat", 2, 8)
    training = config["training"]
    assert (training["lr"], training["epochs"], training["seed"]) == (0.5, 2, 4)
    assert config["run"]["threads"] == 1


def test_a_runs_own_configuration_starts_an_equal_run(npz, tmp_path):
    assert laconic("train", npz, "--epochs", 2, "--name", "a", *QUICK).exit_code == 0
    assert laconic("train", "--config", "a/config.json", "--name", "b").exit_code == 0
    losses = [[row.loss for row in read_records(tmp_path / run / "metrics.jsonl", EpochRecord)] for run in "ab"]
    assert losses[0] == losses[1]


def test_a_run_goes_on_for_more_epochs(npz, tmp_path):
    assert laconic("train", npz, "--epochs", 2, "--name", "a", *QUICK).exit_code == 0
    result = laconic("train", "--resume", "a", "--epochs", 4)
    assert result.exit_code == 0, result.output
    assert len(read_records(tmp_path / "a/metrics.jsonl", EpochRecord)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-graph.npz"], "no-such-graph"),
        (["--model", "gcnn"], "Did you mean 'gcn'"),
        (["--model", "gat(hidden=10, heads=4)"], "multiple of heads"),
        (["--strategy", "alone"], "Unknown strategy"),
        (["--set", "training.lrr=1"], "Did you mean 'lr'"),
        (["--set", "lr"], "section.key=value"),
        (["--epochs", "0"], "training.epochs should be 1 or more"),
        (["--config", "absent.toml"], "absent.toml"),
        (["--resume", "absent"], "is not the folder of a run"),
        (["--resume", "a", "--name", "b"], "give one of them"),
        (["--name", "full"], "exists already"),
        (["--name", "full/file/x"], "full/file/x cannot be written: full/file is not a folder"),
        (["--name", "/proc/x"], "/proc/x cannot be written: nothing can be made in /proc"),
        (["x" * 5000], f"Unknown dataset '{'x' * 60}...'"),
        (["--model", "gat(heads=2)", "--set", "model.name=sage"], "Unknown setting of model sage 'heads'"),
        (["--set", "training.batch_size=4", "--set", "training.fanouts=[3]"], "one number per hop"),
    ],
)
def test_what_cannot_work_is_one_paragraph_and_exit_code_2(tmp_path, npz, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    data = [] if not arguments[0].startswith("-") or "--resume" in arguments else [npz]
    result = laconic("train", *data, *arguments, *QUICK)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left behind"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "model.hidden=8", "--set", "model.name=sage"],
        ["--model", "gcn(hidden=8)", "--set", "model.name=sage"],
        ["--config", "gat.toml", "--set", "model.hidden=8", "--model", "sage"],
    ],
)
def test_a_setting_that_was_given_is_kept_when_the_model_is_named_elsewhere(npz, tmp_path, arguments):
    (tmp_path / "gat.toml").write_text('[model]\nname = "gat"\nheads = 2\nhidden = 32\n')
    result = laconic("train", npz, *arguments, "--epochs", 1, "--name", "a", *QUICK)
    assert result.exit_code == 0, result.output
    model = json.loads((tmp_path / "a/config.json").read_text())["model"]
    assert (model["name"], model["hidden"]) == ("sage", 8)


def test_a_file_name_is_looked_for_on_the_search_path_too(npz, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    npz.rename(tmp_path / "data" / "mine.npz")
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path / "data"))
    assert laconic("train", "mine.npz", "--epochs", 1, "--name", "a", *QUICK).exit_code == 0
    assert laconic("train", "--resume", "a", "--epochs", 2).exit_code == 0


def test_a_checkpoint_of_another_model_is_one_paragraph(npz, tmp_path):
    assert laconic("train", npz, "--epochs", 1, "--name", "a", *QUICK).exit_code == 0
    config = tmp_path / "a/config.json"
    config.write_text(config.read_text().replace('"hidden": 64', '"hidden": 16'))
    for arguments in (["train", "--resume", "a", "--epochs", 2], ["predict", "a"]):
        result = laconic(*arguments)
        assert result.exit_code == 2
        said = " ".join(result.stderr.split())
        assert "convs.0.lin.weight: expected 16x8, came 64x8" in said
        assert "state_dict" not in said


def test_divergence_is_exit_code_2_and_names_the_epoch(npz):
    result = laconic("train", npz, "--set", "training.lr=1e38", "--set", "training.optimizer=sgd", *QUICK)
    assert result.exit_code == 2
    assert "in epoch" in result.stderr


def test_settings_are_listed_for_the_model_at_hand():
    result = laconic("train", "--settings", "--model", "gat(hidden=16)")
    assert result.exit_code == 0
    for name in ("training.lr", "model.heads", "run.checkpoint_every", "data.normalise_features"):
        assert name in result.stdout
    assert "model.heads" not in laconic("train", "--settings").stdout


def test_help_has_an_example():
    for verb in ("train", "predict"):
        result = laconic(verb, "--help")
        assert result.exit_code == 0
        assert f"laconic {verb} " in result.stdout


def start_and_signal(npz, folder, *signals, arguments=()):
    """Runs the command in a process of its own, sends it signals once it has trained a while, and returns it."""
    # A shell that runs the tests in the background has them ignore Ctrl-C.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code = f"{heed}from laconic.cli.main import main; main()"
    command = [sys.executable, "-c", code, "train", str(npz), "--epochs", "1000000", "--name", str(folder)]
    process = subprocess.Popen(
        [*command, *QUICK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(npz, tmp_path, number, code):
    arguments = ["--set", "run.checkpoint_every=1000000", "--set", "training.batch_size=4"]
    returncode, out, err = start_and_signal(npz, tmp_path / "run", number, arguments=arguments)
    assert returncode == code, (out, err)
    assert "laconic train --resume" in err
    assert "Traceback" not in err
    done = len(read_records(tmp_path / "run/metrics.jsonl", EpochRecord))
    index = json.loads((tmp_path / "run/checkpoints/index.json").read_text())
    assert index["last"].startswith(f"epoch_{done:06d}")
    result = laconic("train", "--resume", tmp_path / "run", "--epochs", done + 2)
    assert result.exit_code == 0, result.output
    assert len(read_records(tmp_path / "run/metrics.jsonl", EpochRecord)) == done + 2


def test_undirected_is_kept_in_the_settings_and_the_split_is_shown(npz, tmp_path):
    result = laconic("train", npz, "--undirected", "--model", "gcn(hidden=4)", "--epochs", 1, "--name", "run", *QUICK)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run/config.json").read_text())["data"]["undirected"] is True
    assert "Split: 30 train, 15 val, 15 test (given)" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (["--lr", "0.1"], "-s training.lr=0.1"),
        (["--batch-size=64"], "-s training.batch_size=64"),
        (["--hidden", "32"], "-s model.hidden=32"),
        (["--dropout", "0.2"], "-s model.dropout=0.2"),
        (["--tensorboard"], "-s run.tensorboard=VALUE"),
        (["--codec", "cast"], '--strategy "exchange(codec=cast)"'),
    ],
)
def test_a_setting_that_is_given_as_an_option_is_shown_as_it_is_given(given, advice):
    result = laconic("train", *given)
    assert result.exit_code == 2
    words = " ".join(result.stderr.replace("│", " ").split())
    assert f"No such option: {given[0].partition('=')[0]}." in words
    assert advice in words


def test_an_option_that_is_nothing_at_all_gets_no_advice():
    assert "setting:" not in laconic("train", "--colour", "red").stderr
    assert "setting:" not in laconic("info", "--lr", "0.1").stderr


def test_the_settings_of_a_strategy_are_listed_with_it():
    plain, with_strategy = laconic("train", "--settings"), laconic("train", "--settings", "--strategy", "full_graph")
    assert "link_mbit" not in plain.stdout
    assert '--strategy "full_graph(grid=...)"' in with_strategy.stdout
    for name in ("training.lr", "grid", "exchange", "link_mbit"):
        assert name in with_strategy.stdout
    assert "has no settings" in laconic("train", "--settings", "--strategy", "single").stdout
    assert '--strategy "exchange(codec=...)"' in laconic("train", "--settings", "--strategy", "compressed_halo").stdout


def test_the_strategy_is_told_before_training_and_in_the_end(npz):
    result = laconic("train", npz, "--epochs", 1, *QUICK)
    assert "Strategy single on 1 rank, by default." in " ".join(result.stderr.split())
    assert result.stderr.index("Strategy single") < result.stderr.index("epoch 1/1")
    assert re.search(r"^Strategy +single", result.stdout, re.MULTILINE)
    chosen = laconic("train", npz, "--epochs", 1, "--strategy", "single", *QUICK)
    assert "by default" not in chosen.stderr


def test_time_per_epoch_is_that_of_training_and_evaluations_are_told_apart(npz):
    result = laconic("train", npz, "--epochs", 12, *QUICK)
    assert re.search(r"^Time per epoch +\S+ m?s, evaluations not counted", result.stdout, re.MULTILINE)
    # Of twelve epochs the fifth, the tenth and the last.
    assert re.search(r"^Evaluations +3, \S+ m?s each", result.stdout, re.MULTILINE)


def test_what_ranks_moved_is_a_table_beside_exact_exchange(capsys):
    received = {"rows": 10_240, "gradients": 20_480, "evaluation": 1024, "setup": 4096}
    exact = {"rows": 204_800, "gradients": 20_480, "evaluation": 1024}
    print_traffic(Console(width=80), Traffic(10, received, exact))
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "Received by all ranks per epoch exact exchange share",
        "rows 1.0 KiB 20.0 KiB 5.0%",
        "gradients 2.0 KiB 2.0 KiB 100%",
        "evaluation 102 B 102 B 100%",
        "all 3.1 KiB 22.1 KiB 14%",
        "set-up, once 4.0 KiB",
    ]
    print_traffic(Console(width=80), Traffic(10, {"gradients": 20_480, "refresh": 10_240}, None))
    assert "exact" not in capsys.readouterr().out
