"""Opens a store: the manifest first, then chunk by chunk what is used. A rank reads its own chunks and no other.

    store = open_store("store/arxiv")
    store.chunk(3).intra_indices

Every file is checked: its size whenever it is opened, and its whole content (sha256, over 1 GB/s where the processor
helps) the first time that a Store opens it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import StoreError
from laconic.graph import Graph
from laconic.graph.id_names import decode_names
from laconic.kernels.compress import compress_edges
from laconic.store._file import check_size, check_sum, map_array
from laconic.store.chunk import Chunk
from laconic.store.layout import MANIFEST_NAME, FileEntry, Manifest, chunk_folder, torch_dtype

Numbering = Literal["source", "store"]

_NODE_ARRAYS = ("x", "y", "train_mask", "val_mask", "test_mask", "node_ids")


def is_store(folder: str | Path) -> bool:
    """Whether `folder` looks like a store: it has a manifest. Whether that is sound, `open_store` says."""
    # Not Path.is_file, which raises for a text that is too long to be a path.
    return os.path.isfile(Path(folder) / MANIFEST_NAME)


def looks_like_store(folder: str | Path) -> bool:
    """Whether `folder` is a store or what is left of one, about which `open_store` has more to say than a loader."""
    return is_store(folder) or (os.path.isdir(folder) and any(Path(folder).glob("chunk_*/rows.npy")))


def open_store(folder: str | Path, *, verify: bool = False, trust: bool = False) -> "Store":
    """Returns the store in `folder`.

    Args:
        verify: check the content of every file now, not on first use.
        trust: check sizes only, never contents; for files that were checked before.
    """
    path = Path(folder) / MANIFEST_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StoreError(
            f"{folder} is not a store: it has no {MANIFEST_NAME}. Make one with `laconic partition DATA {folder} "
            f"--parts N`."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: the manifest of the store cannot be read ({error}).") from error
    store = Store(Path(folder), Manifest.from_json(text, str(path)), trust=trust)
    if verify:
        store.verify()
    return store


@final
class Store:
    """A partitioned graph on disk; made by `open_store`."""

    def __init__(self, folder: Path, manifest: Manifest, *, trust: bool = False) -> None:
        self.folder = folder
        self.manifest = manifest
        self._trust = trust
        self._checked: set[Path] = set()

    @property
    def num_chunks(self) -> int:
        return self.manifest.num_chunks

    @property
    def features_dtype(self) -> torch.dtype:
        """The type of features that readers get: the written graph's, or the stored one where that is wider."""
        manifest = self.manifest
        return torch.promote_types(torch_dtype(manifest.source_dtype), torch_dtype(manifest.features_dtype))

    def chunk(self, number: int) -> Chunk:
        """Returns one chunk; its arrays are opened as they are used."""
        if not 0 <= number < self.num_chunks:
            raise StoreError(f"{self.folder} has chunks 0 to {self.num_chunks - 1}; there is no chunk {number}.")
        return Chunk(number, self.manifest.chunks[number], self.features_dtype, self._open_array)

    def check_sizes(self) -> None:
        """Raises StoreError unless every file is there and as long as it was written; reads none of them."""
        for path, entry in self._files():
            check_size(path, entry)

    def check_chunk(self, number: int, names: Iterable[str]) -> None:
        """Raises StoreError unless these arrays of a chunk are there and as long as written; reads none of them."""
        files = self.manifest.chunks[number].files
        for name in names:
            if name in files:
                check_size(self._path(number, name), files[name])

    def verify(self) -> None:
        """Raises StoreError unless every file holds what was written; reads all of them."""
        for path, entry in self._files():
            check_sum(path, entry)
            self._checked.add(path)

    def to_graph(self, *, numbering: Numbering = "source") -> Graph:
        """Returns the whole graph, in memory; its edges are sorted by (destination, source).

        Args:
            numbering: "source" numbers the nodes as in the graph that was written, and gives its very adjacency back;
                "store" numbers them chunk by chunk in stored order, which is faster to train on if they were reordered.
        """
        chunks = [self.chunk(number) for number in range(self.num_chunks)]
        rows = [_rows(chunks, number, numbering) for number in range(self.num_chunks)]
        sources, destinations, weight = _gather_edges(chunks, rows)
        num_nodes = self.manifest.num_nodes
        order = compress_edges(sources, destinations, num_nodes, num_nodes)[2]
        edge_index = torch.from_numpy(np.stack([sources[order], destinations[order]]))
        fields = {name: _gather_rows(chunks, rows, name) for name in _NODE_ARRAYS}
        names = _gather_rows(chunks, rows, "id_names") if self.manifest.has_id_names else None
        return Graph(
            edge_index=edge_index,
            edge_weight=None if weight is None else weight[torch.from_numpy(order)],
            num_classes=self.manifest.num_classes,
            name=self.manifest.name,
            id_names=None if names is None else decode_names(names),
            class_names=self.manifest.class_names,
            split_origin=self.manifest.split_origin,
            **fields,
        )

    def _files(self) -> Iterator[tuple[Path, FileEntry]]:
        for number, chunk in enumerate(self.manifest.chunks):
            for name, entry in chunk.files.items():
                yield self._path(number, name), entry

    def _path(self, number: int, name: str) -> Path:
        return self.folder / chunk_folder(number) / f"{name}.npy"

    def _open_array(self, number: int, name: str) -> NDArray[Any]:
        path = self._path(number, name)
        files = self.manifest.chunks[number].files
        if name not in files:
            lacks = "its node ids are numbers" if name == "id_names" else "the edges of its graph have no weights"
            raise StoreError(f"{self.folder} has no {name} in its chunks: {lacks}.")
        if self._trust:
            check_size(path, files[name])
        elif path not in self._checked:
            check_sum(path, files[name])
            self._checked.add(path)
        return map_array(path, files[name])


def _rows(chunks: list[Chunk], number: int, numbering: Numbering) -> NDArray[np.int64]:
    if numbering == "source":
        return np.array(chunks[number].rows)
    start = sum(chunk.num_nodes for chunk in chunks[:number])
    return np.arange(start, start + chunks[number].num_nodes)


def _gather_rows(chunks: list[Chunk], rows: list[NDArray[np.int64]], name: str) -> Tensor:
    # Filled chunk by chunk: never more than the whole and one chunk in memory.
    whole: Tensor | None = None
    for chunk, numbers in zip(chunks, rows, strict=True):
        values = chunk.features() if name == "x" else chunk.tensor(name)
        if whole is None:
            whole = values.new_empty((sum(map(len, rows)), *values.shape[1:]))
        whole[torch.from_numpy(numbers)] = values
    assert whole is not None
    return whole


def _gather_edges(
    chunks: list[Chunk], rows: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Tensor | None]:
    sources, destinations, weights = [], [], []
    starts = np.cumsum([0, *(len(numbers) for numbers in rows)])
    of_row = np.concatenate(rows)
    for number, chunk in enumerate(chunks):
        destinations += [np.repeat(rows[number], np.diff(chunk.intra_indptr)), rows[number][chunk.bridge_dst]]
        source_chunk = np.repeat(np.arange(len(chunks)), np.diff(chunk.bridge_ptr))
        sources += [rows[number][chunk.intra_indices], of_row[starts[source_chunk] + chunk.bridge_src]]
        if chunk.has_weights:
            weights += [chunk.tensor("intra_weight"), chunk.tensor("bridge_weight")]
    return np.concatenate(sources), np.concatenate(destinations), torch.cat(weights) if weights else None
