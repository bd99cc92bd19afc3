"""What can be loaded by name, for `laconic datasets`: reads the headers of files only, so it is quick."""

import inspect
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np

from laconic.datasets._ogb_raw import is_ogb_folder
from laconic.datasets._search import datasets_in, find_by_name, search_folders
from laconic.datasets.base import Generator
from laconic.datasets.load import GENERATORS
from laconic.errors import DataError


@final
@dataclass(frozen=True)
class Entry:
    """A dataset that `load` knows by name.

    Args:
        name: what to give to `load`.
        kind: a built-in generator, an .npz file, an OGB folder, or a folder of tables.
        summary: what it is, in a line; empty for data.
        arguments: of a generator, with their defaults: "nodes=2000", ...
        path: where the data lies; None for a generator.
        num_nodes, num_edges, num_features: of an .npz file; 0 where unknown.
        is_hidden: whether its name does not lead to it, as something else of that name comes first.
    """

    name: str
    kind: Literal["generator", "npz", "ogb", "tables"]
    summary: str = ""
    arguments: tuple[str, ...] = ()
    path: Path | None = None
    num_nodes: int = 0
    num_edges: int = 0
    num_features: int = 0
    is_hidden: bool = False


def available() -> list[Entry]:
    """Returns the generators, then what the folders of LACONIC_DATA hold; of two with one name, the later is hidden."""
    entries = [_describe_generator(name, kind) for name, kind in GENERATORS.items()]
    return entries + [_describe_data(path) for folder in search_folders() for path in datasets_in(folder)]


def _describe_generator(name: str, kind: type[Generator]) -> Entry:
    summary = (kind.__doc__ or "").splitlines()[0].rstrip(".")
    arguments = tuple(f"{key}={argument.default!r}" for key, argument in inspect.signature(kind).parameters.items())
    return Entry(name, "generator", summary, arguments)


def _describe_data(path: Path) -> Entry:
    if path.is_dir():
        kind: Literal["ogb", "tables"] = "ogb" if is_ogb_folder(path) else "tables"
        return Entry(path.name, kind, path=path, is_hidden=_is_hidden(path.name, path))
    shapes = _shapes(path)
    rows, columns = (*shapes.get("x", ()), 0, 0)[:2]
    return Entry(
        path.stem,
        "npz",
        path=path,
        num_nodes=rows or (*shapes.get("y", ()), 0)[0],
        num_edges=(*shapes.get("edge_index", ()), 0, 0)[1],
        num_features=columns,
        is_hidden=_is_hidden(path.stem, path),
    )


def _is_hidden(name: str, path: Path) -> bool:
    if name in GENERATORS:
        return True
    try:
        return find_by_name(name) != path
    except DataError:
        # Two of this name in one folder: loading it tells the user so.
        return True


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each array of an .npz file, from the first bytes of each; none for a file that is broken."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as file:
                    version = np.lib.format.read_magic(file)
                    read = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shapes[member.removesuffix(".npy")] = read(file)[0]
        if "x" not in shapes and "x_shape" in shapes:
            with np.load(path, allow_pickle=False) as arrays:
                shapes["x"] = tuple(int(size) for size in arrays["x_shape"])
    except (OSError, ValueError, zipfile.BadZipFile):
        # Loading it is what tells the user why; a list of names must not fail for one of them.
        return {}
    return shapes
