"""The folder of a run: what lies where in it, and that no run ever overwrites another.

config.json         every setting, resolved; `--config runs/x/config.json` starts an equal run
model/              the Python files of a model of one's own; `predict` and `--resume` execute these
environment.json    one entry per start: versions, threads, platform, arguments
metrics.jsonl       one row per epoch (records.py)
ledger.jsonl        what each rank sent and received, per epoch, where there are several (records.py)
checkpoints/        the last and the best (checkpoint.py)
tensorboard/        events
summary.json        what was learned, written when the run ends
"""

import contextlib
import datetime
import itertools
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch

from laconic import __version__
from laconic.atomic import find_obstacle, new_folder, write_json
from laconic.errors import CheckpointError
from laconic.models import OwnModel
from laconic.trainer.config import Config
from laconic.trainer.config_file import as_layer, model_name, read_layer, resolve

_PARENT = Path("runs")
_PACKAGES = ("torch", "torch_geometric", "numba", "numpy", "safetensors")


@final
class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.json"
        self.model_path = path / "model"
        self.environment_path = path / "environment.json"
        self.metrics_path = path / "metrics.jsonl"
        self.ledger_path = path / "ledger.jsonl"
        self.checkpoints_path = path / "checkpoints"
        self.tensorboard_path = path / "tensorboard"
        self.summary_path = path / "summary.json"

    @staticmethod
    def create(config: Config, graph_name: str) -> "RunFolder":
        """Makes the folder of a new run, with its configuration and environment in it."""
        try:
            if config.run.folder:
                path = Path(config.run.folder)
                _check_is_free(path)
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                path = _claim_next(_PARENT, f"{_plain(graph_name)}-{model_name(config)}")
            _fill(path, config)
        except OSError as error:
            raise _unwritable(config, error.strerror or str(error)) from error
        return RunFolder(path)

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """Returns the folder of a run that exists."""
        folder = RunFolder(path)
        if not folder.config_path.is_file():
            raise CheckpointError(
                f"{path} is not the folder of a run: it has no config.json. Give one that `laconic train` made, such "
                f"as runs/sbm-gcn-001."
            )
        return folder

    def check_is_writable(self) -> None:
        """Raises CheckpointError unless a run can go on here; asked before the graph is loaded."""
        obstacle = find_obstacle(self.config_path)
        if obstacle:
            raise CheckpointError(
                f"The run folder {self.path} cannot be written: {obstacle}. Mend that, or resume a copy of it."
            )

    def config(self) -> Config:
        """Returns the configuration of the run."""
        return resolve([read_layer(self.config_path)], kept=self.model_path)

    def note_resumption(self, config: Config) -> int | None:
        """Saves the configuration, which may have grown, adds an environment, and returns the threads of the last."""
        write_json(self.config_path, as_layer(config))
        try:
            entries = json.loads(self.environment_path.read_text(encoding="utf-8"))
            threads = entries[-1]["threads"]
        except (OSError, ValueError, LookupError, TypeError):
            # It is for people to read; a run can go on without it.
            entries, threads = [], None
        write_json(self.environment_path, [*entries, describe_environment()])
        return threads if isinstance(threads, int) else None


def check_target(config: Config) -> None:
    """Raises CheckpointError unless the folder of a new run can be made; asked before the graph is loaded."""
    path = Path(config.run.folder) if config.run.folder else _PARENT / "any"
    obstacle = find_obstacle(path)
    if obstacle:
        raise _unwritable(config, obstacle)
    if config.run.folder:
        _check_is_free(path)


def _unwritable(config: Config, reason: str) -> CheckpointError:
    where = config.run.folder or f"{_PARENT}/"
    return CheckpointError(f"The run folder {where} cannot be written: {reason}. Choose another with --name.")


def _check_is_free(path: Path) -> None:
    # The current folder, ".", has no name to which the finished one could be renamed.
    if path.name and path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        hint = f"continue it with --resume {path}, or " if (path / "config.json").is_file() else ""
        raise CheckpointError(
            f"{path} exists already, and a run never overwrites anything: {hint}choose another folder with --name."
        )


def describe_environment() -> dict[str, Any]:
    """Returns what the result may depend on beside the configuration."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "arguments": sys.argv,
        "versions": {"laconic": __version__, "python": platform.python_version()}
        | {package: version(package) for package in _PACKAGES},
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
    }


def _fill(path: Path, config: Config) -> None:
    try:
        with new_folder(path) as temporary:
            unfinished = RunFolder(temporary)
            write_json(unfinished.config_path, as_layer(config))
            if isinstance(config.model, OwnModel):
                config.model.code.keep(unfinished.model_path)
            write_json(unfinished.environment_path, [describe_environment()])
    except OSError:
        # The claimed name is given back; a folder with something in it stays.
        with contextlib.suppress(OSError):
            path.rmdir()
        raise


def _claim_next(parent: Path, stem: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = parent / f"{stem}-{number:03d}"
        try:
            # Claims the name: of two runs that start together only one succeeds here.
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("itertools.count ends")


def _plain(name: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip("-.")
    return kept[:60] or "graph"
