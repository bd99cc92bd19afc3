import json

import pytest
import torch

from laconic.errors import CheckpointError
from laconic.models import parse_model
from laconic.trainer.config import Config, RunConfig
from laconic.trainer.run_folder import RunFolder, check_target


def test_a_new_run_has_its_configuration_and_environment(tmp_path):
    config = Config(model=parse_model("gat(hidden=16)"), run=RunConfig(folder=str(tmp_path / "deep" / "run")))
    folder = RunFolder.create(config, "graph")
    assert folder.path == tmp_path / "deep" / "run"
    assert RunFolder.open(folder.path).config() == config
    (environment,) = json.loads(folder.environment_path.read_text())
    assert environment["threads"] == torch.get_num_threads()
    assert environment["versions"]["torch"] == torch.__version__
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.json", "environment.json"]


def test_runs_without_a_name_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [RunFolder.create(Config(), name).path for name in ("cora", "cora", "../odd name(x=1)")]
    assert [path.as_posix() for path in paths] == [
        "runs/cora-gcn-001",
        "runs/cora-gcn-002",
        "runs/odd-name-x-1-gcn-001",
    ]


def test_an_empty_folder_may_become_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    assert RunFolder.create(Config(run=RunConfig(folder=str(tmp_path / "run"))), "g").config_path.is_file()


def test_the_current_folder_cannot_become_a_run_even_if_it_is_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"^\. exists already"):
        check_target(Config(run=RunConfig(folder=".")))


def test_a_run_never_overwrites_a_run_and_says_how_to_go_on(tmp_path):
    config = Config(run=RunConfig(folder=str(tmp_path / "run")))
    before = RunFolder.create(config, "g").config_path.read_bytes()
    with pytest.raises(CheckpointError, match=f"--resume {tmp_path}/run, or choose another folder with --name"):
        RunFolder.create(config, "g")
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_a_run_never_overwrites_anything_else(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(CheckpointError, match="exists already"):
            RunFolder.create(Config(run=RunConfig(folder=str(tmp_path / name))), "g")


def test_a_folder_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="file/run cannot be written"):
        RunFolder.create(Config(run=RunConfig(folder=str(tmp_path / "file" / "run"))), "g")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_claimed_name_is_given_back_when_the_disk_is_full(tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("laconic.trainer.run_folder.write_json", full)
    with pytest.raises(CheckpointError, match="No space left"):
        RunFolder.create(Config(), "g")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_of_something_else_is_no_run(tmp_path):
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        RunFolder.open(tmp_path)


def test_each_start_adds_its_environment(tmp_path):
    config = Config(run=RunConfig(folder=str(tmp_path / "run")))
    folder = RunFolder.create(config, "g")
    assert folder.note_resumption(config) == torch.get_num_threads()
    assert len(json.loads(folder.environment_path.read_text())) == 2
    folder.environment_path.write_text("scribble")
    assert folder.note_resumption(config) is None
