"""Arrays from .npz and .npy files, never pickled ones. Errors name the file and the array, and say how to convert."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from laconic.errors import DataError
from laconic.specs import unknown_name

PICKLED_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle")

# What numpy, zipfile and zlib raise on a file that is cut short, altered or of another kind.
_BROKEN = (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


@final
@dataclass(frozen=True)
class NpzArrays:
    """The arrays of an open .npz file, each read when asked for."""

    path: Path
    _file: Any

    @property
    def names(self) -> list[str]:
        return list(self._file.files)

    def __contains__(self, name: str) -> bool:
        return name in self._file.files

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self:
            raise DataError(f"{self.path} lacks an array. {unknown_name(name, self.names, family='array')}")
        try:
            return np.asarray(self._file[name])
        except _BROKEN as error:
            raise _unreadable(self.path, error, array=name) from error

    def find(self, name: str) -> NDArray[Any] | None:
        """Returns the array, or None if the file has none of this name."""
        if name not in self:
            return None
        return self[name]


@contextmanager
def open_npz(path: Path) -> Iterator[NpzArrays]:
    """Opens an .npz file for the length of a block."""
    require_file(path)
    # Opened here and not by numpy, which leaves a broken file open.
    with path.open("rb") as handle:
        yield NpzArrays(path, _read_names(path, handle))


def _read_names(path: Path, handle: BinaryIO) -> Any:
    try:
        file = np.load(handle, allow_pickle=False)
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise DataError(
            f"{path} holds one .npy array, not the several named arrays of an .npz file. Rename it to .npy."
        )
    return file


def read_npy(path: Path) -> NDArray[Any]:
    """Returns the array of an .npy file."""
    require_file(path)
    try:
        with path.open("rb") as handle:
            array = np.load(handle, allow_pickle=False)
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} is an .npz file of several arrays, not one .npy array. Rename it to .npz.")
    return array


def require_file(path: Path) -> None:
    """Raises DataError unless `path` is a file."""
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'there is no such file'}.")


def refuse_pickle(path: Path) -> DataError:
    """Returns the error for a pickled file, with the lines that convert it."""
    is_torch = path.suffix in (".pt", ".pth")
    read = f"torch.load({str(path)!r}, weights_only=False)" if is_torch else f"pickle.load(open({str(path)!r}, 'rb'))"
    return DataError(
        f"{path}: Laconic reads no pickled file ({path.suffix}), because reading one can run any program that is in "
        f"it. If you trust where it comes from, and it holds a PyG Data object, convert it once:\n"
        f"  import {'torch' if is_torch else 'pickle'}; from laconic import datasets\n"
        f"  graph = datasets.from_pyg({read})\n"
        f"  datasets.save_npz(graph, {str(path.with_suffix('.npz'))!r})"
    )


def _unreadable(path: Path, error: BaseException, *, array: str = "") -> DataError:
    what = f"{path}: array {array!r}" if array else f"{path}:"
    # numpy has no class of its own for this; the word is in all of its messages about object arrays.
    if "pickle" in str(error):
        return DataError(
            f"{what} holds Python objects (dtype object) or is a pickled file, which Laconic does not read, because "
            f"reading them can run any program that is in them. If you trust where it comes from, save the numbers "
            f"alone:\n"
            f"  import numpy as np\n"
            f"  old = dict(np.load({str(path)!r}, allow_pickle=True))\n"
            f"  np.savez('numbers.npz', edge_index=old['edge_index'], x=old['x'].astype('float32'), ...)"
        )
    return DataError(
        f"{what} cannot be read ({str(error).strip() or type(error).__name__}): the file is cut short, altered or of "
        f"another kind. Fetch or write it again."
    )
