"""Arrays from .npz and .npy files, never pickled ones. Errors name the file and the array, and say how to convert."""

import difflib
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
from laconic.specs import one_syntax_tree

PICKLED_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle")

# The first bytes of a zip archive (which an .npz file is), of an .npy file, and of what pickle writes.
_ZIP, _NPY, _PICKLE = b"PK", b"\x93NUMPY", b"\x80"

# The arrays of our own format; see npz.py.
_KNOWN = {"edge_index", "x", "y", "train_mask", "val_mask", "test_mask", "edge_weight", "node_ids", "num_classes"}
_KNOWN |= {"id_names", "class_names", "train_masks", "val_masks", "test_masks"}

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
            raise DataError(self._say_missing(name))
        try:
            with one_syntax_tree:
                return np.asarray(self._file[name])
        except _BROKEN as error:
            raise _unreadable(self.path, error, array=name) from error

    def _say_missing(self, name: str) -> str:
        # Never another array of the format: "train_mask" is no misspelt "val_mask".
        strangers = [other for other in self.names if other not in _KNOWN]
        near = difflib.get_close_matches(name, strangers, n=1)
        guess = f" Is {near[0]!r} meant?" if near else ""
        return f"{self.path} has no array {name!r}; it holds {', '.join(self.names) or 'none'}.{guess}"

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
    _check_first_bytes(path, handle)
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
        with path.open("rb") as handle, one_syntax_tree:
            _check_first_bytes(path, handle)
            array = np.load(handle, allow_pickle=False)
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} is an .npz file of several arrays, not one .npy array. Rename it to .npz.")
    return array


def _check_first_bytes(path: Path, handle: BinaryIO) -> None:
    # numpy takes all that is neither of its own for pickled, a text too.
    head = handle.read(len(_NPY))
    handle.seek(0)
    if head.startswith(_PICKLE):
        raise refuse_pickle(path)
    if head and not head.startswith((_ZIP, _NPY)):
        raise DataError(f"{path} is not an {path.suffix} file, whatever its name says. Fetch or write it again.")


def require_file(path: Path) -> None:
    """Raises DataError unless `path` is a file."""
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'there is no such file'}.")


def refuse_pickle(path: Path) -> DataError:
    """Returns the error for a pickled file, with the lines that convert it."""
    is_torch = path.suffix in (".pt", ".pth")
    converted = path.with_suffix(".npz") if path.suffix != ".npz" else path.with_name(f"{path.stem}_converted.npz")
    read = f"torch.load({str(path)!r}, weights_only=False)" if is_torch else f"pickle.load(open({str(path)!r}, 'rb'))"
    return DataError(
        f"{path}: Laconic reads no pickled file ({path.suffix}), because reading one can run any program that is in "
        f"it. If you trust where it comes from, and it holds a PyG Data object, convert it once:\n"
        f"  import {'torch' if is_torch else 'pickle'}; from laconic import datasets\n"
        f"  graph = datasets.from_pyg({read})\n"
        f"  datasets.save_npz(graph, {str(converted)!r})"
    )


def _unreadable(path: Path, error: BaseException, *, array: str = "") -> DataError:
    what = f"{path}: array {array!r}" if array else f"{path}:"
    # numpy has no class of its own for this; the word is in all of its messages about object arrays.
    if "pickle" in str(error):
        return DataError(
            f"{what} holds Python objects (dtype object), which Laconic does not read, because reading them can run "
            f"any program that is in them. If you trust where they come from, save the numbers or words alone:\n"
            f"  import numpy as np\n{_conversion(path)}"
        )
    return DataError(
        f"{what} cannot be read ({str(error).strip() or type(error).__name__}): the file is cut short, altered or of "
        f"another kind. Fetch or write it again."
    )


def _conversion(path: Path) -> str:
    if path.suffix == ".npy":
        return f"  np.save({str(path)!r}, np.array(np.load({str(path)!r}, allow_pickle=True).tolist()))"
    return (
        f"  old = np.load({str(path)!r}, allow_pickle=True)\n"
        f"  plain = {{name: np.array(old[name].tolist()) for name in old.files}}\n"
        f"  np.savez({str(path.with_name(f'{path.stem}_converted.npz'))!r}, **plain)"
    )


def to_text(values: NDArray[np.bytes_], where: str) -> NDArray[np.str_]:
    """Returns bytes as text. Raises DataError if they are not UTF-8.

    Args:
        where: the file and array, for errors.
    """
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} holds bytes that are not UTF-8. Save it as text, from the encoding that it has: "
            f"np.char.decode(values, 'latin-1')."
        ) from error
