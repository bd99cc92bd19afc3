"""Supply: how variable chunks come to a rank: read from storage that it sees, or handed over by their owners.

Both begin early and are waited for late: `start` when a super-epoch begins, for the next one; training goes on between.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.papers.grappa.held import HeldChunk, HeldChunkSize
from laconic.store import Chunk


class Supply(ABC):
    """Where variable chunks come from."""

    @abstractmethod
    def start(self, wanted: Sequence[Sequence[int]]) -> Pending[list[HeldChunk]]:
        """Begins to bring chunks here; all ranks call it together.

        Args:
            wanted: by rank, the chunks that it wants and has not got.
        """

    @abstractmethod
    def between(self, wanted: Sequence[Sequence[int]]) -> tuple[Sequence[int], Sequence[int]]:
        """Returns the bytes that `start` sends from this rank to each, and brings here from each, over the network."""


@final
class StorageSupply(Supply):
    """Every rank can read every chunk: a graph that all have in memory, or a store on storage that all see.

    Args:
        rank: whose.
        open_chunk: gives a chunk by its number.
        chunk_starts: where each chunk's rows begin among the places, (C + 1,).
        prepare: makes of features as they are stored those that are trained on.
    """

    def __init__(
        self,
        rank: int,
        open_chunk: Callable[[int], Chunk],
        chunk_starts: NDArray[np.int64],
        prepare: Callable[[Tensor], Tensor],
    ) -> None:
        self._rank = rank
        self._open_chunk = open_chunk
        self._chunk_starts = chunk_starts
        self._prepare = prepare
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="chunks")

    def start(self, wanted: Sequence[Sequence[int]]) -> Pending[list[HeldChunk]]:
        reading = [self._reader.submit(self._read, number) for number in wanted[self._rank]]
        return Pending(lambda: [chunk.result() for chunk in reading])

    def between(self, wanted: Sequence[Sequence[int]]) -> tuple[Sequence[int], Sequence[int]]:
        return [0] * len(wanted), [0] * len(wanted)

    def _read(self, number: int) -> HeldChunk:
        chunk = self._open_chunk(number)
        return HeldChunk.read(chunk, self._chunk_starts, self._prepare(chunk.features()))


@final
class PeerSupply(Supply):
    """Each chunk comes from the rank that owns it, while training goes on: nobody needs to see the others' files.

    Args:
        communicator: how ranks talk.
        owned: the chunks of this rank.
        sizes: of all chunks.
        owner: the rank of each chunk, (C,).
    """

    def __init__(
        self,
        communicator: Communicator,
        owned: Mapping[int, HeldChunk],
        sizes: Sequence[HeldChunkSize],
        owner: NDArray[np.int64],
    ) -> None:
        self._communicator = communicator
        self._owned = owned
        self._sizes = sizes
        self._owner = owner

    def start(self, wanted: Sequence[Sequence[int]]) -> Pending[list[HeldChunk]]:
        splits = self._splits(wanted)
        pieces = [
            piece
            for chunks in wanted
            for number in chunks
            if number in self._owned
            for piece in self._owned[number].to_bytes()
        ]
        message = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)
        with self._communicator.ledger.phase("repartition"):
            pending = self._communicator.start_all_to_all(message, splits)
        own = list(wanted[self._communicator.rank])

        def unpack(message: Tensor) -> list[HeldChunk]:
            # By owner: that is the order in which they come.
            order = sorted(own, key=lambda number: int(self._owner[number]))
            parts = torch.split(message, [self._sizes[number].num_bytes for number in order])
            come = {number: self._sizes[number].from_bytes(part) for number, part in zip(order, parts, strict=True)}
            return [come[number] for number in own]

        return pending.then(unpack)

    def between(self, wanted: Sequence[Sequence[int]]) -> tuple[Sequence[int], Sequence[int]]:
        splits = self._splits(wanted)
        return splits.send, splits.receive

    def _splits(self, wanted: Sequence[Sequence[int]]) -> Splits:
        num_ranks, rank = len(wanted), self._communicator.rank
        # Known to all: no sizes have to be exchanged.
        between = np.zeros((num_ranks, num_ranks), np.int64)
        for receiver, chunks in enumerate(wanted):
            for number in chunks:
                between[self._owner[number], receiver] += self._sizes[number].num_bytes
        return Splits(tuple(between[rank].tolist()), tuple(between[:, rank].tolist()), int(between.max()))
