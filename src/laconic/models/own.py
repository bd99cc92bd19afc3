"""OwnModel: a class or a function of the user's own Python code, its widths filled in from the graph.

    laconic train cora.npz --model "my_model.py:Net(hidden=64)"
    laconic train cora.npz --model my_model.py:Net -s model.hidden=64

The constructor's signature says which settings there are. A parameter that is called as one of INPUT_NAMES gets the
number of features of a node, one of OUTPUT_NAMES the number of classes, unless a setting says otherwise.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from torch import nn

from laconic.errors import CheckpointError, ConfigError, describe_exception
from laconic.models.base import ModelSpec
from laconic.models.own_code import FORMS, ModelCode, import_code, importing_from, is_file, read_code
from laconic.specs import split_spec, unknown_name

INPUT_NAMES = (
    "in_channels", "in_features", "in_feats", "in_dim", "input_dim", "num_features", "num_node_features", "n_features",
    "nfeat",
)  # fmt: skip
OUTPUT_NAMES = (
    "out_channels", "out_features", "out_feats", "out_dim", "output_dim", "num_classes", "n_classes", "num_labels",
    "nclass",
)  # fmt: skip
_RESERVED = ("name", "source", "sha256")


@final
@dataclass(frozen=True, slots=True)
class OwnModel(ModelSpec):
    """A model of the user's own code. `own_model` makes one.

    Args:
        source: the absolute path of a Python file, or the name of a module.
        name: the class or function in it.
        sha256: hash of the code.
        settings: the constructor's arguments that are known without a graph, its plain defaults among them.
        code: the files.
        changed_since: the hash that the code had when the settings were saved, where it was another.
    """

    source: str
    name: str
    sha256: str
    settings: tuple[tuple[str, Any], ...]
    code: ModelCode = field(compare=False, repr=False)
    changed_since: str | None = field(default=None, compare=False)

    @property
    def num_hops(self) -> None:
        return None

    def section(self) -> dict[str, Any]:
        """Returns what the configuration says of it."""
        return {"name": self.name, "source": self.source, "sha256": self.sha256, **dict(self.settings)}

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        builder = _find_builder(self.code, self.name)
        arguments = dict(self.settings)
        widths = dict.fromkeys(INPUT_NAMES, num_features) | dict.fromkeys(OUTPUT_NAMES, num_classes)
        parameters = _parameters(builder)
        arguments |= {name: widths[name] for name in parameters if name in widths and name not in arguments}
        missing = [
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty and parameter.kind in _NAMED and name not in arguments
        ]
        if missing:
            raise ConfigError(
                f"{self.name} needs {_and(missing)}, which no setting gives. Give it as "
                f"-s model.{missing[0]}=NUMBER. Where it follows from the graph, which has {num_features} features "
                f"and {num_classes} classes, name it in_channels or out_channels, and it is filled in (or "
                f"{', '.join(INPUT_NAMES[1:])}; {', '.join(OUTPUT_NAMES[1:])})."
            )
        try:
            # A constructor may import files beside its own.
            with importing_from(self.code):
                model = builder(**arguments)
        except Exception as error:
            given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            raise ConfigError(
                f"{self.name}({given}) cannot be built: {describe_exception(error, self.code.root)}."
            ) from error
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"{self.name} of {self.code.path} should give a torch.nn.Module; it gave {_a(type(model).__name__)}."
            )
        return model

    def describe_origin(self) -> str:
        """Returns in a sentence which file a run executes in place of the original."""
        said = f"The model is {self.name} of {self.code.path}."
        if is_file(self.source) and str(self.code.path) != self.source:
            try:
                differs = read_code(self.source).sha256 != self.sha256
            except (ConfigError, OSError):
                return f"{said} The original, {self.source}, is not there any more."
            return f"{said} The original, {self.source}, has changed since." if differs else said
        return said


def own_model(
    source: str, name: str, settings: Mapping[str, Any], *, sha256: str | None = None, kept: Path | None = None
) -> OwnModel:
    """Returns a model whose code is there, can be imported, and takes these settings. Raises ConfigError otherwise.

    Args:
        sha256: the hash that the code had when these settings were saved.
        kept: the folder of a run's own copy.
    """
    code = read_code(source, kept)
    is_kept = kept is not None and code.root == kept.resolve()
    if is_kept and sha256 is not None and sha256 != code.sha256:
        raise CheckpointError(
            f"{code.path}, the run's own copy of its model, was altered: its sha256 is {code.sha256[:12]}..., "
            f"config.json says {sha256[:12]}... Restore it from {source}, or start a new run."
        )
    parameters = _parameters(_find_builder(code, name))
    given = {key: _check_value(name, key, value, parameters) for key, value in settings.items()}
    widths = (*INPUT_NAMES, *OUTPUT_NAMES)
    defaults = {
        key: parameter.default
        for key, parameter in parameters.items()
        if key not in (*widths, *_RESERVED) and isinstance(parameter.default, int | float | str | None)
    }
    changed = sha256 if sha256 != code.sha256 else None
    return OwnModel(code.source, name, code.sha256, tuple({**defaults, **given}.items()), code, changed)


def split_own(text: str) -> tuple[str, str, dict[str, Any]] | None:
    """Returns source, name and settings of "my_model.py:Net(hidden=64)"; None for the name of a sample model."""
    head, bracket, rest = text.strip().partition("(")
    source, colon, name = head.rpartition(":")
    if not colon:
        if is_file(head.strip()):
            raise ConfigError(f"--model {text} does not say which class of the file to train. {FORMS}")
        return None
    plain, settings = split_spec(f"{name.strip()}{bracket}{rest}", family="model")
    for key in settings:
        if key in _RESERVED:
            raise ConfigError(f"A setting of a model cannot be called {key!r}: rename the parameter of {plain}.")
    source = source.strip()
    return str(Path(source).expanduser().resolve()) if is_file(source) else source, plain, settings


def constructor_parameters(model: OwnModel) -> dict[str, inspect.Parameter]:
    """Returns what the model's class or function takes, by name."""
    return _parameters(_find_builder(model.code, model.name))


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _find_builder(code: ModelCode, name: str) -> Callable[..., Any]:
    module = import_code(code)
    found = getattr(module, name, None)
    if inspect.isfunction(found) or (inspect.isclass(found) and issubclass(found, nn.Module)):
        return found
    there = [
        key
        for key, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
        and (inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, nn.Module)))
    ]
    has = f"It has {_and(there)}." if there else "It has none."
    what = f"its {name} is {_a(type(found).__name__)}" if found is not None else f"it has no {name!r}"
    if inspect.isclass(found):
        what = f"its {name} is a class of another kind"
    raise ConfigError(
        f"{code.path}: the model should be a torch.nn.Module class, or a function that returns one, but {what}. {has}"
    )


def _parameters(builder: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(builder).parameters)


def _check_value(name: str, key: str, value: Any, parameters: Mapping[str, inspect.Parameter]) -> Any:
    """Returns the value as JSON gives it back; raises ConfigError unless the constructor takes such a one."""
    named = {each for each, parameter in parameters.items() if parameter.kind in _NAMED}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if key not in named and not takes_any:
        raise ConfigError(unknown_name(key, named, family=f"setting of model {name}"))
    try:
        value = json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model.{key} should be a number, a text, or a list of them; got {value!r}.") from error
    default = parameters[key].default if key in named else None
    if isinstance(default, float) and type(value) is int:
        return float(value)
    for kinds, words in ((bool, "true or false"), (str, "a text"), (int | float, "a number")):
        if isinstance(default, kinds):
            if not isinstance(value, kinds) or isinstance(value, bool) is not isinstance(default, bool):
                raise ConfigError(f"model.{key} should be {words}, such as {json.dumps(default)}; got {value!r}.")
            return value
    return value


def _and(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
