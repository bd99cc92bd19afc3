"""ChunkMap: which rank owns which chunk of the graph, and so which rows.

The rows of all ranks stand one after the other, rank by rank and chunk by chunk; the *place* of a row is its number
there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Shapes: C chunks, P ranks


@final
@dataclass(frozen=True)
class ChunkMap:
    """Which rank owns which chunk, and where its rows begin among the rank's rows.

    Args:
        num_nodes: nodes of each chunk, (C,).
        owner: rank of each chunk, (C,), never falling: a rank's chunks follow each other.
    """

    num_nodes: NDArray[np.int64]
    owner: NDArray[np.int64]

    @staticmethod
    def even(num_nodes: Sequence[int], num_ranks: int) -> "ChunkMap":
        """Gives each rank as many chunks as the others, or one more."""
        num_chunks = len(num_nodes)
        owner = np.repeat(
            np.arange(num_ranks),
            np.diff([num_chunks * rank // num_ranks for rank in range(num_ranks + 1)]),
        )
        return ChunkMap(np.asarray(num_nodes, np.int64), owner)

    def chunks_of(self, rank: int) -> list[int]:
        return [int(chunk) for chunk in np.flatnonzero(self.owner == rank)]

    @property
    def rank_starts(self) -> NDArray[np.int64]:
        """The place where each rank's rows begin, and where the last one's end, (P + 1,)."""
        num_ranks = int(self.owner[-1]) + 1
        return np.append(0, np.cumsum(np.bincount(self.owner, weights=self.num_nodes, minlength=num_ranks))).astype(
            np.int64
        )

    @property
    def chunk_starts(self) -> NDArray[np.int64]:
        """The same for chunks, (C + 1,)."""
        return np.append(0, np.cumsum(self.num_nodes))


def by_owner(places: NDArray[np.int64], rank_starts: NDArray[np.int64]) -> list[Tensor]:
    """Returns for each rank its own numbers of the rows at `places`, which rise, that it owns."""
    ends = np.searchsorted(places, rank_starts)
    return [
        torch.from_numpy(places[first:end] - start)
        for first, end, start in zip(ends[:-1], ends[1:], rank_starts[:-1], strict=True)
    ]
