"""Single files of a store: arrays written and summed, checked and mapped; and the flush of all of them to disk."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.atomic import sync
from laconic.errors import StoreError
from laconic.specs import one_syntax_tree
from laconic.store.layout import REBUILD, FileEntry, dtype_name, torch_dtype

_BLOCK_BYTES = 1 << 22


@final
class _SummingFile:
    """A file to write to that keeps the sum of what passes; so no file is read again to know its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sum = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> int:
        self.sum.update(data)
        self.num_bytes += len(data)
        return self._file.write(data)


def write_array(path: Path, values: NDArray[Any] | Tensor) -> FileEntry:
    """Writes `values` as `.npy` and returns its entry for the manifest."""
    dtype = dtype_name(values.dtype) if isinstance(values, Tensor) else str(values.dtype)
    array = as_array(values) if isinstance(values, Tensor) else np.ascontiguousarray(values)
    with path.open("wb") as raw:
        file = _SummingFile(raw)
        np.lib.format.write_array(file, array, allow_pickle=False)
    return FileEntry(dtype, tuple(array.shape), file.num_bytes, file.sum.hexdigest())


def sync_tree(folder: Path) -> None:
    """Flushes all that is in `folder` to disk, so that no later rename is seen before what it names."""
    # File systems gather flushes that wait at the same time: a thousand small files take 0.2 s, one by one 5 s.
    with ThreadPoolExecutor(max_workers=16) as pool:
        list(pool.map(sync, [*folder.rglob("*"), folder]))


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Returns the tensor's elements as numpy has them: bfloat16 as its bits in uint16."""
    tensor = tensor.contiguous()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def as_tensor(array: NDArray[Any], dtype: str) -> Tensor:
    """Returns a copy of `array`, whose elements mean `dtype`, as a tensor."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor.to(torch_dtype(dtype))


def check_size(path: Path, entry: FileEntry) -> None:
    """Raises StoreError unless the file is there and as long as it was written."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path}: a file of the store cannot be read ({error.strerror}). {REBUILD}") from error
    if found != entry.num_bytes:
        what = "was cut short" if found < entry.num_bytes else "has grown"
        raise StoreError(f"{path} {what}: it has {found} bytes, not the {entry.num_bytes} written. {REBUILD}")


def check_sum(path: Path, entry: FileEntry) -> None:
    """Raises StoreError unless the file holds what was written; reads all of it."""
    check_size(path, entry)
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                found.update(block)
    except OSError as error:
        raise StoreError(f"{path}: a file of the store cannot be read ({error.strerror}). {REBUILD}") from error
    if found.hexdigest() != entry.sha256:
        raise StoreError(f"{path} has been altered since it was written: its checksum does not fit. {REBUILD}")


def map_array(path: Path, entry: FileEntry) -> NDArray[Any]:
    """Returns the array in the file, memory-mapped and read-only."""
    check_size(path, entry)
    stored = "uint16" if entry.dtype == "bfloat16" else entry.dtype
    try:
        with one_syntax_tree:
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is not a readable .npy file ({error}). {REBUILD}") from error
    if str(array.dtype) != stored or array.shape != entry.shape:
        raise StoreError(
            f"{path} holds {array.dtype} of shape {array.shape}, but the manifest says {stored} of shape "
            f"{entry.shape}. {REBUILD}"
        )
    return array
