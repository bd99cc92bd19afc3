"""HeldChunk: what a rank has in memory of a chunk: its rows, and every edge that arrives at them.

Sources are named by their *place*: where they stand when all chunks stand one after the other. A view over several
chunks renumbers places in one pass; nothing is sorted again when a rank changes what it holds.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.kernels.compress import compress_edges, index_dtype
from laconic.store import Chunk

# Shapes: N rows of the chunk, E edges that arrive at them, C chunks


@final
@dataclass(frozen=True, eq=False)
class HeldChunk:
    """Rows of one chunk and their in-edges, as compressed rows by destination.

    Args:
        number: of the chunk.
        x: features, (N, F).
        node_ids: id of each row in the whole graph, (N,).
        indptr: where each row's edges begin, (N + 1,).
        places: source of each edge, (E,).
        weight: of each edge, or None, (E,).
    """

    number: int
    x: Tensor
    node_ids: Tensor
    indptr: NDArray[np.int64]
    places: NDArray[Any]
    weight: Tensor | None

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @staticmethod
    def read(chunk: Chunk, chunk_starts: NDArray[np.int64], x: Tensor) -> "HeldChunk":
        """Reads all of a chunk but its features.

        Args:
            chunk_starts: where each chunk's rows begin among the places, (C + 1,).
            x: its features as they are trained on, (N, F).
        """
        start, num_places = chunk_starts[chunk.number], int(chunk_starts[-1])
        source_chunk = np.repeat(np.arange(len(chunk_starts) - 1), np.diff(chunk.bridge_ptr))
        places = np.concatenate([chunk.intra_indices + start, chunk.bridge_src + chunk_starts[source_chunk]])
        intra_rows = np.repeat(np.arange(chunk.num_nodes), np.diff(chunk.intra_indptr))
        rows = np.concatenate([intra_rows, chunk.bridge_dst])
        indptr, sources, order = compress_edges(places, rows, chunk.num_nodes, num_places)
        weight = None
        if chunk.has_weights:
            weight = torch.cat([chunk.tensor("intra_weight"), chunk.tensor("bridge_weight")])
            weight = weight[torch.from_numpy(order.astype(np.int64))]
        return HeldChunk(chunk.number, x, chunk.tensor("node_ids"), indptr, sources, weight)

    def to_bytes(self) -> list[Tensor]:
        """Returns its arrays as flat bytes, in the order of `HeldChunkSize.from_bytes`."""
        arrays = [self.x, self.node_ids, torch.from_numpy(self.indptr), torch.from_numpy(self.places)]
        if self.weight is not None:
            arrays.append(self.weight)
        return [array.contiguous().view(-1).view(torch.uint8) for array in arrays]


@final
@dataclass(frozen=True)
class HeldChunkSize:
    """All that has to be known of a chunk to read it from bytes; the same on all ranks."""

    number: int
    num_rows: int
    num_edges: int
    num_features: int
    num_places: int
    features_dtype: torch.dtype
    weight_dtype: torch.dtype | None

    @property
    def _layout(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        index = torch.int32 if index_dtype(self.num_places) is np.int32 else torch.int64
        layout: list[tuple[torch.dtype, tuple[int, ...]]] = [
            (self.features_dtype, (self.num_rows, self.num_features)),
            (torch.int64, (self.num_rows,)),
            (torch.int64, (self.num_rows + 1,)),
            (index, (self.num_edges,)),
        ]
        return layout if self.weight_dtype is None else [*layout, (self.weight_dtype, (self.num_edges,))]

    @property
    def num_bytes(self) -> int:
        return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self._layout)

    def from_bytes(self, message: Tensor) -> HeldChunk:
        """Returns the chunk that was written as `message`, in memory of its own."""
        assert len(message) == self.num_bytes, f"{len(message)} bytes, not the {self.num_bytes} of chunk {self.number}"
        arrays, begin = [], 0
        for dtype, shape in self._layout:
            size = dtype.itemsize * int(np.prod(shape))
            # Copied: a piece of a message need not begin where its type may.
            arrays.append(message[begin : begin + size].clone().view(dtype).view(shape))
            begin += size
        x, node_ids, indptr, places = arrays[:4]
        weight = arrays[4] if len(arrays) > 4 else None
        return HeldChunk(self.number, x, node_ids, indptr.numpy(), places.numpy(), weight)
