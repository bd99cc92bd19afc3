"""From settings to a Sweeper: which sweep comes when, what cannot be seen in time, where chunks come from."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, LaconicError
from laconic.papers.grappa.held import HeldChunk, HeldChunkSize
from laconic.papers.grappa.supply import PeerSupply, StorageSupply, Supply
from laconic.papers.grappa.sweep import Sweep, plan_sweep
from laconic.papers.grappa.sweeper import Sweeper
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.placement import Placement
from laconic.store import Chunk

logger = logging.getLogger(__name__)

OpenChunk = Callable[[int], Chunk]
_MOST_NAMED = 5


@final
@dataclass(frozen=True, eq=False)
class SweepPlan:
    """Which sweep a super-epoch belongs to; the same on all ranks.

    Args:
        base: the chunks that each rank owns.
        num_variable, schedule: as in `plan_sweep`.
        rechunk_every: sweeps after which chunks are grouped anew, at random; 0 never.
        bridges: edges between chunks, where the schedule needs them.
    """

    base: Sequence[Sequence[int]]
    num_variable: int
    schedule: str
    rechunk_every: int
    bridges: NDArray[np.int64] | None

    @staticmethod
    def of(
        chunk_map: ChunkMap,
        communicator: Communicator,
        num_variable: int,
        schedule: str,
        rechunk_every: int,
        open_chunk: OpenChunk,
    ) -> "SweepPlan":
        """Returns the plan; what it refuses, all ranks refuse."""
        num_chunks = len(chunk_map.num_nodes)
        base = [chunk_map.chunks_of(rank) for rank in range(communicator.num_ranks)]
        bridges = None
        if schedule == "affinity":
            own = np.zeros((num_chunks, num_chunks), np.int64)
            for number in base[communicator.rank]:
                own[number] = np.diff(open_chunk(number).bridge_ptr)
            bridges = communicator.all_reduce(torch.from_numpy(own)).numpy()
        plan = SweepPlan(base, num_variable, schedule, rechunk_every, bridges)
        plan.sweep(0)
        return plan

    def sweep(self, grouping: int) -> Sweep:
        """Returns the sweep by its grouping; the first is as the schedule says, later ones are random."""
        schedule = self.schedule if grouping == 0 else "random"
        return plan_sweep(schedule, self.base, self.num_variable, bridges=self.bridges, seed=grouping)

    def sweep_of(self, super_epoch: int) -> tuple[Sweep, int]:
        """Returns the sweep of a super-epoch, and its number within it. A fixed one never ends."""
        first = self.sweep(0)
        number, within = divmod(super_epoch, first.num_super_epochs)
        if not self.rechunk_every or number < self.rechunk_every or self.schedule == "fixed":
            return first, within
        return self.sweep(number // self.rechunk_every), within

    def warn_of_unseen(self, num_super_epochs: int, repartition_every: int) -> None:
        """Logs which pairs of chunks never come together in a run of `num_super_epochs`."""
        sweep = self.sweep(0)
        unseen = sweep.unseen_pairs(num_super_epochs)
        if not unseen or len(sweep.base) == 1:
            return
        named = ", ".join(f"{source} to {destination}" for destination, source in unseen[:_MOST_NAMED])
        more = f" and {len(unseen) - _MOST_NAMED} more" if len(unseen) > _MOST_NAMED else ""
        if self.num_variable == 0 or self.schedule == "fixed":
            advice = "Use the strategy gradient_only, or let chunks change (variable, schedule)."
        else:
            needed = sweep.num_super_epochs * repartition_every
            advice = (
                f"A whole sweep takes {needed} epochs: train longer, repartition more often or hold more variable "
                f"chunks."
            )
        logger.warning("Edges between these chunks are never seen in training: %s%s. %s", named, more, advice)


def make_sweeper(
    open_chunk: OpenChunk,
    plan: SweepPlan,
    chunk_map: ChunkMap,
    placement: Placement,
    prepare: Callable[[Tensor], Tensor],
    supply: Literal["auto", "storage", "peers"],
    *,
    is_in_memory: bool,
) -> Sweeper:
    """Returns the sweeper of this rank; all ranks call it together.

    Args:
        is_in_memory: every rank has the whole graph, and cuts a chunk out of it when it is opened.
    """
    communicator = placement.communicator
    rank, starts = communicator.rank, chunk_map.chunk_starts
    owned = _owned(open_chunk, chunk_map.chunks_of(rank), starts, placement.shard.x)
    lacking = {} if supply == "peers" or is_in_memory else _lacking(open_chunk, len(starts) - 1, communicator)
    if lacking and supply == "storage":
        named = "; ".join(f"rank {lacks} cannot read chunk {number}" for lacks, number in lacking.items())
        raise ConfigError(
            f"supply=storage, but not every rank can read every chunk: {named}. Put the store where all ranks see it, "
            f"or use supply=peers."
        )
    chosen: Supply
    if lacking or supply == "peers":
        chosen = PeerSupply(communicator, owned, _agreed_sizes(owned, chunk_map, communicator), chunk_map.owner)
    else:
        chosen = StorageSupply(rank, open_chunk, starts, prepare)
    return Sweeper(rank, placement.shard, owned, starts, chosen, lru_cache(maxsize=4)(plan.sweep_of))


def _owned(
    open_chunk: OpenChunk, numbers: Sequence[int], chunk_starts: NDArray[np.int64], x: Tensor
) -> dict[int, HeldChunk]:
    """Returns the rank's own chunks, whose features are rows of `x`: there is no second copy of them."""
    sizes = [int(chunk_starts[number + 1] - chunk_starts[number]) for number in numbers]
    return {
        number: HeldChunk.read(open_chunk(number), chunk_starts, rows)
        for number, rows in zip(numbers, torch.split(x, sizes), strict=True)
    }


def _lacking(open_chunk: OpenChunk, num_chunks: int, communicator: Communicator) -> dict[int, int]:
    """Returns the first chunk that each rank cannot read, by rank, without those that can read all; alike on all."""
    first = -1
    for number in reversed(range(num_chunks)):
        try:
            _ = open_chunk(number).bridge_ptr
        except (LaconicError, OSError):
            first = number
    with communicator.ledger.phase("setup"):
        firsts = communicator.all_gather(torch.tensor([first])).flatten().tolist()
    return {rank: number for rank, number in enumerate(firsts) if number >= 0}


def _agreed_sizes(owned: dict[int, HeldChunk], chunk_map: ChunkMap, communicator: Communicator) -> list[HeldChunkSize]:
    """Returns the sizes of all chunks, which every rank needs to know what comes."""
    num_edges = torch.zeros(len(chunk_map.num_nodes), dtype=torch.int64)
    for number, chunk in owned.items():
        num_edges[number] = len(chunk.places)
    with communicator.ledger.phase("setup"):
        num_edges = communicator.all_reduce(num_edges)
    some = next(iter(owned.values()))
    return [
        HeldChunkSize(
            number=number,
            num_rows=int(chunk_map.num_nodes[number]),
            num_edges=int(num_edges[number]),
            num_features=some.x.shape[1],
            num_places=int(chunk_map.num_nodes.sum()),
            features_dtype=some.x.dtype,
            weight_dtype=None if some.weight is None else some.weight.dtype,
        )
        for number in range(len(chunk_map.num_nodes))
    ]
