"""Snapshot: one checkpoint in memory, and its folder on disk. Nothing in it is pickled.

model.safetensors       the model's state_dict, under its own keys: loads into the plain PyG model
training.safetensors    the optimizer's tensors and torch's random state; the best checkpoint may do without
manifest.json           format, position in the run, sha256 of the files, and what else has to be remembered
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from laconic.errors import CheckpointError

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_MODEL = "model.safetensors"
_TRAINING = "training.safetensors"
_MOST_NAMED = 3


@final
@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on.

    Args:
        epoch: finished epochs.
        step: finished steps of the epoch under way.
        model: the model's state_dict.
        training: tensors of the optimizer, as "3.exp_avg" (of parameter 3), and "torch_rng"; empty in a best one.
        notes: the rest, as JSON: optimizer settings, training state, strategy state, what the model was trained on.
    """

    epoch: int
    step: int
    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"epoch_{self.epoch:06d}" + (f"_step_{self.step:06d}" if self.step else "")

    @property
    def is_complete(self) -> bool:
        """Whether a run can go on from it, not only predict."""
        return bool(self.training)


def copy_model(model: nn.Module) -> dict[str, Tensor]:
    """Returns the model's state_dict as it is now, in memory of its own."""
    return {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}


def copy_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the optimizer's tensors, and the rest of its state as JSON can write it."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for number, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{number}.{key}"] = value.detach().clone().contiguous()
            else:
                scalars[f"{number}.{key}"] = value
    return tensors, {"scalars": scalars, "param_groups": state["param_groups"]}


def load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Gives the optimizer back what `copy_optimizer` took."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **rest["scalars"]}.items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": rest["param_groups"]})


def load_model(model: nn.Module, snapshot: Snapshot, where: Path) -> None:
    """Gives the model its weights back. Raises CheckpointError, before any is changed, unless they fit."""
    misfits = _misfits(model.state_dict(), snapshot.model)
    if misfits:
        more = f"; and {len(misfits) - _MOST_NAMED} more" if len(misfits) > _MOST_NAMED else ""
        raise CheckpointError(
            f"{where / _MODEL} does not fit this model ({type(model).__name__}): {'; '.join(misfits[:_MOST_NAMED])}"
            f"{more}. Give the model and settings that the run was made with, or start a new run."
        )
    model.load_state_dict(dict(snapshot.model))


def _misfits(expected: Mapping[str, Tensor], came: Mapping[str, Tensor]) -> list[str]:
    """Returns a text for each name that one of them lacks or has in another shape, in the model's order."""
    # A lazy parameter takes the shape that comes.
    lazy = {name for name, tensor in expected.items() if is_lazy(tensor) and name in came}
    shapes = {
        name: (_say_shape(expected.get(name)), _say_shape(came.get(name)))
        for name in {**expected, **came}
        if name not in lazy
    }
    return [f"{name}: expected {one}, came {other}" for name, (one, other) in shapes.items() if one != other]


def _say_shape(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return "any shape" if is_lazy(tensor) else "x".join(map(str, tensor.shape)) or "one number"


def write_snapshot(snapshot: Snapshot, folder: Path) -> None:
    """Writes the files of a checkpoint into an empty folder."""
    save_file(dict(snapshot.model), folder / _MODEL)
    if snapshot.is_complete:
        save_file(dict(snapshot.training), folder / _TRAINING)
    manifest: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "epoch": snapshot.epoch,
        "step": snapshot.step,
        "files": {file.name: _sha256(file) for file in sorted(folder.glob("*.safetensors"))},
        "notes": dict(snapshot.notes),
    }
    manifest["checksum"] = _checksum(manifest)
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_snapshot(folder: Path) -> Snapshot:
    """Returns the checkpoint in `folder`. Raises CheckpointError, naming the file, unless every part is sound."""
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, files = manifest["format"], manifest["files"]
        epoch, step, notes = int(manifest["epoch"]), int(manifest["step"]), dict(manifest["notes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {_reason(error)}. {_REMEDY}") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {version}, this version of Laconic reads {FORMAT_VERSION}. Use the one that wrote it."
        )
    if manifest.pop("checksum", None) != _checksum(manifest):
        raise CheckpointError(f"{path} does not agree with its checksum. {_REMEDY}")
    parts = {name: _read_tensors(folder / name, files[name]) for name in (_MODEL, _TRAINING) if name in files}
    if _MODEL not in parts:
        raise CheckpointError(f"{path} lists no {_MODEL}. {_REMEDY}")
    return Snapshot(epoch, step, parts[_MODEL], parts.get(_TRAINING, {}), notes)


_REMEDY = "The checkpoint was cut or altered; restore it from a copy, or start a new run."


def _read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    try:
        found = _sha256(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {_reason(error)}. {_REMEDY}") from error
    if found != sha256:
        raise CheckpointError(f"{path} has sha256 {found[:12]}..., its manifest says {str(sha256)[:12]}... {_REMEDY}")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a sound safetensors file: {error}. {_REMEDY}") from error
    return tensors


def _checksum(manifest: dict[str, Any]) -> str:
    # Read back first: what is compared is what was written, and a tuple is written as a list.
    text = json.dumps(json.loads(json.dumps(manifest)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
