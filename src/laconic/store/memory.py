"""Chunks of a graph in memory, as a store would give them: for graphs that every rank can load whole."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from laconic.graph import Graph
from laconic.store._chunk_arrays import ChunkArrays
from laconic.store._file import as_array
from laconic.store.chunk import Chunk
from laconic.store.layout import ChunkEntry, FileEntry, dtype_name


def chunk_in_memory(graph: Graph, parts: NDArray[np.integer], num_parts: int, number: int) -> Chunk:
    """Returns chunk `number` of `graph` cut into `parts`, without writing anything."""
    contents = ChunkArrays(graph, parts, num_parts, None, "none").of_chunk(number)
    arrays = {name: as_array(values) if isinstance(values, Tensor) else values for name, values in contents.items()}
    files = {
        name: FileEntry(_dtype_of(contents[name]), array.shape, array.nbytes, "") for name, array in arrays.items()
    }
    entry = ChunkEntry(
        num_nodes=len(arrays["rows"]),
        num_intra_edges=len(arrays["intra_indices"]),
        num_bridge_edges=len(arrays["bridge_src"]),
        files=files,
    )
    return Chunk(number, entry, graph.x.dtype, lambda _, name: arrays[name])


def _dtype_of(values: NDArray[Any] | Tensor) -> str:
    return dtype_name(values.dtype) if isinstance(values, Tensor) else str(values.dtype)
