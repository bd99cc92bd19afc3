"""From TOML, flags and `--set` to one Config, and back to the JSON that a run folder keeps.

A layer is a nested dict of some settings, such as {"training": {"lr": 0.05}}; later layers win. The `model` section
holds the model's name and that model's own fields, so a layer that names another model replaces the whole section.
What a user gives together (flags and `--set`) is one layer, made with `merge`, so that none of it is lost that way.

    config = resolve([read_layer(Path("cora.toml")), parse_override("training.lr=0.05")])
"""

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from laconic.errors import ConfigError
from laconic.models import MODELS, GivenModel, ModelSpec, OwnModel, own_model, split_own
from laconic.models.given import SOURCE as GIVEN
from laconic.specs import split_spec, unknown_name
from laconic.trainer.config import Config, DataConfig, RunConfig, TrainingConfig

Layer = Mapping[str, Mapping[str, Any]]

_SECTIONS: dict[str, type[Any]] = {"data": DataConfig, "model": ModelSpec, "training": TrainingConfig, "run": RunConfig}
_DEFAULT_MODEL = "gcn"


def resolve(layers: Iterable[Layer], *, kept: Path | None = None) -> Config:
    """Returns the configuration that the layers give, later ones over earlier ones.

    Args:
        kept: where a run keeps its copy of a model of the user's own; used in place of the original.
    """
    merged: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            if section not in _SECTIONS:
                raise ConfigError(unknown_name(section, _SECTIONS, family="section of the configuration"))
            if not isinstance(values, Mapping):
                raise ConfigError(f"{section} should be a section with settings of its own; got {values!r}.")
            if section == "model" and "name" in values:
                values = _with_source(values)
                before = merged[section].get("name", _DEFAULT_MODEL), merged[section].get("source")
                if (values["name"], values.get("source")) != before:
                    merged[section] = {}
            merged[section].update(values)
    model = _build_model_spec(merged.pop("model"), kept)
    sections = {
        section: _build(_SECTIONS[section], values, section, f"setting in section {section}")
        for section, values in merged.items()
    }
    return Config(model=model, **sections)


def merge(layers: Iterable[Layer]) -> Layer:
    """Returns one layer with the settings of all, later ones over earlier ones, whichever model each names."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            merged.setdefault(section, {}).update(values)
    return merged


def read_layer(path: Path) -> Layer:
    """Returns the settings of a TOML file, or of the config.json of another run."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error}.") from error
    try:
        layer = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ConfigError(f"The configuration file {path} is not sound {kind}: {error}.") from error
    if not isinstance(layer, dict):
        raise ConfigError(f"The configuration file {path} should hold sections ({', '.join(_SECTIONS)}).")
    return layer


def parse_override(text: str) -> Layer:
    """Returns the layer of one "section.key=value"; the value is written as in TOML, quotes around a word may go."""
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"--set should be section.key=value, such as training.lr=0.05; got {text!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return {section: {key: parsed}}


def model_layer(spec: str) -> Layer:
    """Returns the layer of a model spec such as "sage(hidden=256)" or "my_model.py:Net(hidden=64)"."""
    own = split_own(spec)
    if own is not None:
        source, name, arguments = own
        return {"model": {**arguments, "name": name, "source": source}}
    name, arguments = split_spec(spec, family="model")
    return {"model": {"name": name, **arguments}}


def as_layer(config: Config) -> dict[str, dict[str, Any]]:
    """Returns every setting, as JSON can write it; `resolve([as_layer(config)])` gives an equal configuration."""
    sections = {section: dataclasses.asdict(getattr(config, section)) for section in _SECTIONS if section != "model"}
    sections = {"data": sections.pop("data"), "model": _model_section(config), **sections}
    return typing.cast(dict[str, dict[str, Any]], json.loads(json.dumps(sections)))


def model_name(config: Config) -> str:
    """Returns the name of the configured model: of a sample, or of a class or function of the user's own."""
    if isinstance(config.model, OwnModel | GivenModel):
        return config.model.name
    return next(name for name, kind in MODELS.items() if kind is type(config.model))


def differences(old: Config, new: Config) -> list[str]:
    """Returns, for each setting that decides the result and differs, a text such as "training.lr: 0.01 -> 0.05"."""
    before, after = as_layer(old), as_layer(new)
    found = []
    for section in ("data", "model", "training"):
        for key in {**before[section], **after[section]}:
            one, other = before[section].get(key), after[section].get(key)
            if one != other and (section, key) != ("training", "epochs"):
                found.append(f"{section}.{key}: {one} -> {other}")
    return found


def _with_source(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the section with "my_model.py:Net", as a person writes it, taken apart into source and name."""
    own = split_own(str(section["name"]))
    if own is None:
        return section
    source, name, arguments = own
    return {**arguments, **section, "name": name, "source": source}


def _build_model_spec(section: Mapping[str, Any], kept: Path | None) -> ModelSpec:
    settings = dict(section)
    name, source = str(settings.pop("name", _DEFAULT_MODEL)), settings.pop("source", None)
    if source == GIVEN and "module" in settings:
        return GivenModel(name, str(settings["module"]))
    if source is not None:
        sha256 = settings.pop("sha256", None)
        return own_model(str(source), name, settings, sha256=sha256, kept=kept)
    if name not in MODELS:
        raise ConfigError(f"{unknown_name(name, MODELS, family='model')} Of your own: FILE.py:NAME.")
    spec: ModelSpec = _build(MODELS[name], settings, "model", f"setting of model {name}")
    return spec


def _model_section(config: Config) -> dict[str, Any]:
    if isinstance(config.model, OwnModel | GivenModel):
        return config.model.section()
    return {"name": model_name(config), **dataclasses.asdict(config.model)}


def _build(cls: type[Any], values: Mapping[str, Any], section: str, family: str) -> Any:
    hints = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in fields:
            raise ConfigError(unknown_name(key, fields, family=family))
    return cls(**{key: _coerce(value, hints[key], f"{section}.{key}") for key, value in values.items()})


def _coerce(value: Any, hint: Any, name: str) -> Any:
    """Returns `value` as the field's type, or raises ConfigError saying which values it takes."""
    if typing.get_origin(hint) is typing.Union:
        # A number, or one of a few words.
        number, words = typing.get_args(hint)
        if value in typing.get_args(words):
            return value
        if isinstance(value, str):
            raise ConfigError(f"{name} should be a number or {' or '.join(typing.get_args(words))}; got {value!r}.")
        return _coerce(value, number, name)
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        raise ConfigError(unknown_name(str(value), choices, family=f"value of {name}"))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if isinstance(value, list | tuple):
            return tuple(_coerce(entry, item, name) for entry in value)
        raise ConfigError(f"{name} should be a list, such as [10, 5]; got {value!r}.")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ConfigError(f"{name} should be {words[hint]}; got {value!r}.")
    return value
