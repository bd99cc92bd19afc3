"""The chunks of a graph, wherever it is: in a store, or in memory and cut here, alike on all ranks."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.sharded.chunk_map import ChunkMap
from laconic.specs import parse_spec
from laconic.store import Chunk, Store, chunk_in_memory


@final
@dataclass(frozen=True, eq=False)
class Chunks:
    """Which rank owns which chunk, and a way to each of them.

    Args:
        are_in_memory: every rank has the whole graph, and cuts a chunk out of it when it is opened.
        check: raises StoreError unless arrays of a chunk are there, by name; where they are in memory, never.
    """

    chunk_map: ChunkMap
    open: Callable[[int], Chunk]
    are_in_memory: bool
    check: Callable[[int, Iterable[str]], None] = lambda number, names: None


def chunks_of(
    source: Graph | Store, communicator: Communicator, *, partitioner: str, num_chunks: int | None = None
) -> Chunks:
    """Returns the chunks of `source`; all ranks call it together.

    Args:
        partitioner: cuts a graph that does not come from a store.
        num_chunks: into how many chunks; one per rank by default. A store has its own number.
    """
    num_ranks = communicator.num_ranks
    if isinstance(source, Store):
        _check_fits(source, num_ranks, num_chunks)
        sizes = [chunk.num_nodes for chunk in source.manifest.chunks]
        return Chunks(ChunkMap.even(sizes, num_ranks), source.chunk, are_in_memory=False, check=source.check_chunk)
    wanted = num_ranks if num_chunks is None else num_chunks
    if wanted < num_ranks:
        raise ConfigError(f"There are {num_ranks} ranks, and each needs a chunk at least; chunks is {wanted}.")
    # Every rank cuts alike: partitioners are deterministic; another version of METIS might not.
    parts = assign_parts(source, parse_spec(partitioner, PARTITIONERS, family="partitioner"), wanted, seed=0)
    check_agreement(communicator, {"partition": hashlib.sha256(parts.tobytes()).hexdigest()})
    return Chunks(
        ChunkMap.even(np.bincount(parts, minlength=wanted).tolist(), num_ranks),
        lambda number: chunk_in_memory(source, parts, wanted, number),
        are_in_memory=True,
    )


def _check_fits(store: Store, num_ranks: int, num_chunks: int | None) -> None:
    if num_ranks > store.num_chunks:
        raise ConfigError(
            f"{store.folder} has {store.num_chunks} chunks, and each of the {num_ranks} ranks needs one at least. Run "
            f"on 1 to {store.num_chunks} ranks, or write it again with `laconic partition ... --parts {num_ranks}`."
        )
    if num_chunks is not None and num_chunks != store.num_chunks:
        raise ConfigError(
            f"{store.folder} has {store.num_chunks} chunks, but the strategy asks for {num_chunks}. Leave chunks out, "
            f"or write it again with `laconic partition ... --parts {num_chunks}`."
        )
