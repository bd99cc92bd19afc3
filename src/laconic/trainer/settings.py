"""Every setting with its default and its explanation, taken from where they are declared: the dataclasses' own lines.

for setting in list_settings("gat"): ...
for setting in list_settings("my_model.py:Net"): ...
"""

import ast
import dataclasses
import inspect
import json
import textwrap
from dataclasses import dataclass
from typing import Any, final

from laconic.errors import ConfigError
from laconic.models import MODELS, OwnModel, own_model, split_own
from laconic.models.own import INPUT_NAMES, OUTPUT_NAMES, constructor_parameters
from laconic.specs import split_spec, unknown_name
from laconic.strategies import STRATEGIES
from laconic.trainer.config import DataConfig, RunConfig, TrainingConfig


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as `--set` takes it."""

    name: str
    """Section and key, such as "training.lr"."""
    default: str
    """Its default, as it would be written."""
    explanation: str
    """What it does."""


def list_settings(model: str) -> list[Setting]:
    """Returns all settings, those of the section `model` for this model: a sample's name or spec, or FILE.py:NAME."""
    return [
        *_settings_of("data", DataConfig),
        *_model_settings(model),
        *_settings_of("training", TrainingConfig),
        *_settings_of("run", RunConfig),
    ]


def _settings_of(section: str, cls: type[Any]) -> list[Setting]:
    return [
        Setting(f"{section}.{field.name}", json.dumps(field.default), explanations(cls)[field.name])
        for field in dataclasses.fields(cls)
    ]


def list_strategy_settings(strategy: str) -> list[Setting]:
    """Returns the settings of a strategy, as its spec takes them, in the words of its docstring."""
    if strategy == "auto":
        return []
    if strategy not in STRATEGIES:
        raise ConfigError(unknown_name(strategy, STRATEGIES, family="strategy"))
    cls = STRATEGIES[strategy]
    told = documented_arguments(cls)
    return [
        Setting(field.name, "None" if field.default is None else str(field.default), told[field.name])
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.init
    ]


def documented_arguments(cls: type[Any]) -> dict[str, str]:
    """Returns what the section Args of a docstring says, by argument; "codec, schedule: ..." is of both."""
    _, _, section = (inspect.getdoc(cls) or "").partition("Args:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in textwrap.dedent(section).splitlines():
        head, colon, text = line.partition(": ")
        if colon and not line.startswith(" "):
            names = [name.strip() for name in head.split(",")]
            found |= dict.fromkeys(names, text)
        elif line.startswith(" "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break
    return found


def _model_settings(model: str) -> list[Setting]:
    own = split_own(model)
    if own is not None:
        return _own_settings(own_model(*own))
    name, _ = split_spec(model, family="model")
    if name not in MODELS:
        raise ConfigError(unknown_name(name, MODELS, family="model"))
    return _settings_of("model", MODELS[name])


def _own_settings(model: OwnModel) -> list[Setting]:
    filled = dict.fromkeys(INPUT_NAMES, "the number of features") | dict.fromkeys(OUTPUT_NAMES, "the number of classes")
    settings = []
    for name, parameter in constructor_parameters(model).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = "" if parameter.default is parameter.empty else str(parameter.default)
        explanation = f"A parameter of {model.name}" + ("" if default else ", to be given") + "."
        if name in filled:
            default, explanation = "", f"Filled in from the graph: {filled[name]}."
        settings.append(Setting(f"model.{name}", default, explanation))
    return settings


def explanations(cls: type[Any]) -> dict[str, str]:
    """Returns the text below each field of a dataclass and of its bases; Python itself does not keep it."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _own_explanations(base)
    return found


def _own_explanations(cls: type[Any]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[name] = " ".join(str(statement.value.value).split())
            name = ""
    return found
