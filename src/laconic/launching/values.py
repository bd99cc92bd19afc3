"""Values that go from process to process as two files: JSON for their structure, safetensors for their numbers.

write_value({"loss": 0.3, "weights": tensor}, folder / "result-0")
value = read_value(folder / "result-0")

Nothing is pickled. Of dataclasses, only Laconic's own are known.
"""

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from laconic.errors import ConfigError

_KNOWN = "numbers, texts, paths, lists, tuples, dicts, tensors, arrays and what Laconic returns"


def write_value(value: Any, path: Path) -> None:
    """Writes `path`.json and `path`.safetensors. Raises ConfigError, saying where, for what cannot be written."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(value, tensors, "the value"))
    save_file(tensors, path.with_name(f"{path.name}.safetensors"))
    path.with_name(f"{path.name}.json").write_text(text, encoding="utf-8")


def read_value(path: Path) -> Any:
    """Returns what `write_value` wrote."""
    tensors = load_file(path.with_name(f"{path.name}.safetensors"))
    return _decode(json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8")), tensors)


def _encode(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """Returns the value as JSON: plain ones as they are, others as a list of their kind and what they hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return ["path", str(value)]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_encode(item, tensors, f"{where}[{k}]") for k, item in enumerate(value)]]
    if isinstance(value, dict):
        pairs = [(_encode(key, tensors, where), key, item) for key, item in value.items()]
        return ["dict", [[key, _encode(item, tensors, f"{where}[{name!r}]")] for key, name, item in pairs]]
    if isinstance(value, Tensor):
        return ["tensor", _add(value.detach().cpu().clone().contiguous(), tensors)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return ["array", _add(torch.from_numpy(np.array(value, order="C")), tensors)]
    if isinstance(value, np.ndarray) and all(isinstance(item, str) for item in value.flat):
        return ["texts", str(value.dtype), list(value.shape), value.flatten().tolist()]
    kind_of = type(value)
    if dataclasses.is_dataclass(value) and kind_of.__module__.startswith("laconic."):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return ["dataclass", kind_of.__module__, kind_of.__qualname__, _encode(fields, tensors, where)]
    raise ConfigError(f"Between processes go {_KNOWN}; {where} is a {kind_of.__name__}.")


def _add(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    name = str(len(tensors))
    tensors[name] = tensor
    return name


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, list):
        return value
    match value:
        case ["path", str(text)]:
            return Path(text)
        case ["list", items]:
            return [_decode(item, tensors) for item in items]
        case ["tuple", items]:
            return tuple(_decode(item, tensors) for item in items)
        case ["dict", pairs]:
            return {_decode(key, tensors): _decode(item, tensors) for key, item in pairs}
        case ["tensor", str(name)]:
            return tensors[name]
        case ["array", str(name)]:
            return tensors[name].numpy()
        case ["texts", str(dtype), shape, texts]:
            return np.array(texts, dtype=dtype).reshape(shape)
        case ["dataclass", str(module), str(name), fields] if module.startswith("laconic."):
            return getattr(import_module(module), name)(**_decode(fields, tensors))
    raise ConfigError(f"A value of an unknown kind came: {str(value)[:60]}.")
