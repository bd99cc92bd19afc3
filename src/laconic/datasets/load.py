"""A graph by name, file or spec: what stands behind `laconic train GRAPH`.

A source is one of: a generator's spec, "sbm(nodes=5000)"; a path to an .npz file, an unpacked OGB folder or a folder of
tables; or a name such as "cora", looked for as cora.npz and as a folder cora in the folders of LACONIC_DATA, or
"cora.npz", looked for in the current folder first. A path or a name takes the options of its loader as a spec does:
"minesweeper(split=3)", "papers(add_reverse_edges=True)".
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from laconic.datasets._arrays import PICKLED_SUFFIXES, refuse_pickle
from laconic.datasets._fields import check_options, normalise_rows
from laconic.datasets._ogb_raw import is_ogb_folder
from laconic.datasets._search import SEARCH_PATH, datasets_in, find_by_name, search_folders
from laconic.datasets.base import Generator
from laconic.datasets.files import load_files
from laconic.datasets.grid import Grid
from laconic.datasets.npz import load_npz
from laconic.datasets.ogb import load_ogb
from laconic.datasets.rmat import Rmat
from laconic.datasets.sbm import Sbm
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph
from laconic.specs import parse_spec, shorten, split_spec, unknown_name

GENERATORS: dict[str, type[Generator]] = {"sbm": Sbm, "rmat": Rmat, "grid": Grid}

Loader = Callable[..., Graph]

# Letters of a path that an error repeats: more than any path in use has.
_LONG = 500


def load(source: str | Path, *, labelled: bool = True, undirected: bool = False, **options: Any) -> Graph:
    """Returns the graph that `source` names.

    Args:
        source: a generator's spec, a path, or a name (see above).
        undirected: the same as the option `add_reverse_edges=True`, for every source. A graph to predict for may have
            the option `add_reverse_edges=False` all the same, and stays as it is then.
        labelled: False leaves labels and masks of a file alone, of which there need be none: a graph to predict for.
        options: `dtype` ("float32", "float64"), `normalise_features` ("none", "row") and `add_reverse_edges` for all;
            beside them the fields of a generator, or the keyword arguments of `load_npz`, `load_ogb` or `load_files`.
    """
    text = str(source).strip()
    name, arguments = (text, {}) if os.path.exists(text) else _split(text)
    options = {key: _truth(value) for key, value in {**arguments, **options}.items()}
    if undirected and options.setdefault("add_reverse_edges", True) is not True and labelled:
        raise ConfigError(
            f"{shorten(text, _LONG)}: add_reverse_edges is {options['add_reverse_edges']}, but the graph is to be "
            f"undirected. Leave one of them out."
        )
    if name in GENERATORS:
        return _generate(name, options)
    path = _locate(name)
    loader = _loader_of(path)
    if not labelled:
        options["labelled"] = False
    choices = {
        key: kind for key, kind in inspect.signature(loader).parameters.items() if kind.kind is kind.KEYWORD_ONLY
    }
    _check_names(options, choices, f"{loader.__name__} option")
    for key, value in options.items():
        if isinstance(choices[key].default, bool) != isinstance(value, bool):
            kind = "True or False" if isinstance(choices[key].default, bool) else f"such as {choices[key].default!r}"
            raise ConfigError(f"{path}: {key} should be {kind}; got {value!r}.")
    return loader(path, **options)


def check_source(source: str | Path) -> None:
    """Raises what `load` would of a source that is not there or that no loader takes; opens no file."""
    text = str(source).strip()
    name = text if os.path.exists(text) else _split(text)[0]
    if name not in GENERATORS:
        _loader_of(_locate(name))


def _split(text: str) -> tuple[str, dict[str, Any]]:
    match = re.fullmatch(r"([^()]+)(\(.*\))", text, flags=re.DOTALL)
    if match is None:
        return text, {}
    try:
        return match[1].strip(), split_spec(f"source{match[2]}", family="dataset")[1]
    except ConfigError:
        raise ConfigError(
            f"dataset {shorten(text, _LONG)!r} cannot be read. Write a name or a path, with options in brackets if "
            f'need be, such as "sbm(nodes=5000)" or "cora.npz(normalise_features=\'row\')".'
        ) from None


def _truth(value: Any) -> Any:
    # A spec on the command line is written by hand: true and false are as good as Python's words.
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _generate(name: str, options: dict[str, Any]) -> Graph:
    # Their edges are there in both directions already.
    options.pop("add_reverse_edges", None)
    dtype, normalise = options.pop("dtype", "float32"), options.pop("normalise_features", "none")
    check_options(dtype, normalise)
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    graph = parse_spec(f"{name}({given})", GENERATORS, family="dataset").build()
    x = graph.x.to(getattr(torch, dtype))
    x = normalise_rows(x) if normalise == "row" else x
    return graph if x is graph.x else dataclasses.replace(graph, x=x)


def _locate(name: str) -> Path:
    path = Path(os.path.expanduser(name))
    if path.suffix in PICKLED_SUFFIXES:
        raise refuse_pickle(path)
    # Not Path.exists, which raises for what is too long to be a path.
    if os.path.exists(path):
        return path
    found = find_by_name(name) if path.name == name else None
    if found is not None:
        return found
    folders = ", ".join(map(str, search_folders()))
    if path.name != name or path.suffix == ".npz":
        also = f" Nor is it in the folders of {SEARCH_PATH} ({folders})." if path.name == name and folders else ""
        raise DataError(f"{shorten(str(path), _LONG)}: there is no such file or folder.{also}")
    known = {entry.stem for folder in search_folders() for entry in datasets_in(folder)}
    raise ConfigError(
        f"{unknown_name(name, {*GENERATORS, *known}, family='dataset')} Names are looked for in the folders of "
        f"{SEARCH_PATH} ({folders or 'not set'}); a file or folder elsewhere is given by its path."
    )


def _loader_of(path: Path) -> Loader:
    if path.is_dir():
        return load_ogb if is_ogb_folder(path) else load_files
    if path.suffix == ".npz":
        return load_npz
    raise DataError(
        f"{path} is no graph: that is an .npz file, an unpacked OGB folder (raw/, split/), or a folder that holds "
        f"edges, features and labels as .csv, .parquet or .npy."
    )


def _check_names(given: Iterable[str], choices: Iterable[str], family: str) -> None:
    for name in given:
        if name not in choices:
            raise ConfigError(unknown_name(name, choices, family=family))
