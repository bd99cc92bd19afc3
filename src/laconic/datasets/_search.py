"""Datasets by name in the folders of LACONIC_DATA: name.npz, with or without its ending, or a folder of that name."""

import os
from pathlib import Path

from laconic.datasets._ogb_raw import is_ogb_folder
from laconic.datasets.files import holds_tables
from laconic.errors import DataError

SEARCH_PATH = "LACONIC_DATA"


def search_folders() -> list[Path]:
    """Returns the folders of LACONIC_DATA, as they are now; those that do not exist are left out."""
    folders = [Path(part).expanduser() for part in os.environ.get(SEARCH_PATH, "").split(os.pathsep) if part]
    return [folder for folder in folders if folder.is_dir()]


def find_by_name(name: str) -> Path | None:
    """Returns the first dataset called `name`; "ogbn-arxiv" also finds ogbn_arxiv, as the ogb package unpacks it."""
    for folder in search_folders():
        tried = [folder / f"{spelling}{suffix}" for spelling in _spellings(name) for suffix in (".npz", "")]
        found = [path for path in tried if is_dataset(path)]
        if len(found) > 1:
            raise DataError(
                f"{folder} holds both {found[0].name} and {found[1].name}. Give the path of the one you mean, or "
                f"remove the other."
            )
        if found:
            return found[0]
    return None


def datasets_in(folder: Path) -> list[Path]:
    """Returns the datasets of a folder, in order of their names; hidden files are those still being written."""
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted((path for path in shown if is_dataset(path)), key=lambda path: path.name)


def is_dataset(path: Path) -> bool:
    """Whether a loader would take `path`, by its name or, for a folder, by the names of the files in it."""
    # Not Path.is_dir, which raises for what is too long to be a path.
    if os.path.isdir(path):
        return is_ogb_folder(path) or holds_tables(path)
    return path.suffix == ".npz" and os.path.isfile(path)


def _spellings(name: str) -> list[str]:
    # A file name means that file.
    return [name] if name.endswith(".npz") else list(dict.fromkeys([name, name.replace("-", "_")]))
