"""Chunk: one part of a stored graph, its arrays memory-mapped. Opening one reads nothing; using an array reads that."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from laconic.store._file import as_tensor
from laconic.store.layout import ChunkEntry

Item = TypeVar("Item", bound=np.generic)
# Shapes: N nodes of the chunk, E edges within it, B edges into it from other chunks, C chunks


@final
class _Mapped(Generic[Item]):
    """An array of a chunk, mapped on first use and kept; StoreError where the store has no such file."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, chunk: "Chunk", owner: type) -> NDArray[Item]:
        array: NDArray[Item] = chunk.array(self._name)
        chunk.__dict__[self._name] = array
        return array


@final
class Chunk:
    """One chunk. Nodes are numbered 0 to N - 1 within it; edges name their ends by these numbers.

    Every array is a read-only `np.memmap`. `intra_*` are the edges within the chunk, in compressed rows by destination;
    `bridge_*` are those from other chunks, sorted by source chunk, destination and source:
    chunk c's are at `bridge_ptr[c]:bridge_ptr[c + 1]`.
    """

    rows = _Mapped[np.int64]()  # number of each node in the graph that was written, (N,)
    node_ids = _Mapped[np.int64]()  # id of each node in the data it came from, (N,)
    id_names = _Mapped[np.uint8]()  # only where ids are text: the text of each, (N, B); see graph/id_names.py
    x = _Mapped[Any]()  # features as stored, bfloat16 as uint16, (N, F); `features()` gives numbers
    y = _Mapped[Any]()  # labels, (N,) or (N, labels)
    train_mask = _Mapped[np.bool_]()
    val_mask = _Mapped[np.bool_]()
    test_mask = _Mapped[np.bool_]()
    in_degree = _Mapped[np.int32]()  # edges that arrive at each node in the whole graph, (N,)
    out_degree = _Mapped[np.int32]()  # edges that leave it in the whole graph, (N,)
    intra_indptr = _Mapped[np.int64]()  # (N + 1,)
    intra_indices = _Mapped[np.int32]()  # source of each edge within the chunk, (E,)
    bridge_ptr = _Mapped[np.int64]()  # where the edges from each chunk begin, (C + 1,)
    bridge_src = _Mapped[np.int32]()  # source, numbered within its own chunk, (B,)
    bridge_dst = _Mapped[np.int32]()  # destination, numbered within this chunk, (B,)
    # Only where edges have weights; see `has_weights`.
    in_weight = _Mapped[np.float64]()  # sum of the weights that arrive at each node in the whole graph, (N,)
    intra_weight = _Mapped[Any]()  # (E,)
    bridge_weight = _Mapped[Any]()  # (B,)

    def __init__(
        self, number: int, entry: ChunkEntry, features_dtype: Any, open_array: Callable[[int, str], NDArray[Any]]
    ) -> None:
        self.number = number
        self.entry = entry
        self._features_dtype = features_dtype
        self._open_array = open_array

    @property
    def num_nodes(self) -> int:
        return self.entry.num_nodes

    @property
    def has_weights(self) -> bool:
        return "intra_weight" in self.entry.files

    def array(self, name: str) -> NDArray[Any]:
        """Returns the array called `name`, checked and mapped."""
        return self._open_array(self.number, name)

    def tensor(self, name: str) -> Tensor:
        """Returns a copy of the array called `name`, in memory, as a tensor of the type it means."""
        return as_tensor(getattr(self, name), self.entry.files[name].dtype)

    def features(self) -> Tensor:
        """Returns a copy of the features, (N, F), in the type of the graph that was written, or a wider stored one."""
        return self.tensor("x").to(self._features_dtype)
