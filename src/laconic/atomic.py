"""Files that are there whole or not at all: written under a temporary name beside their own, then renamed.

`find_obstacle` tells before long work whether they can be written at its end.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Replaces the file at `path` by `value` as indented JSON."""
    write_file(path, lambda temporary: temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8"))


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Replaces the file at `path` by what `write` puts at the path it is given. If it fails, nothing is left behind."""
    # The suffix stays last: some writers choose their format by it.
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder to fill; when the block ends well, renames it to `path`, which is absent or empty."""
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(path.parent)


def find_obstacle(path: Path) -> str:
    """Returns why no file or folder can be made at `path`, such as "notes.txt is not a folder"; empty if one can.

    Parents that are not there yet are no obstacle, if they can be made.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return error.strerror or str(error)
    nearest = next((parent for parent in path.parents if os.path.lexists(parent)), path)
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    try:
        # Tried, not asked: root has all rights, and still cannot write to a read-only disk. Nothing is left behind.
        with tempfile.TemporaryFile(dir=nearest):
            return ""
    except OSError as error:
        return f"nothing can be made in {nearest} ({error.strerror or error})"


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
