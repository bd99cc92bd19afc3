"""Reach: over how many hops rows of other ranks are computed here, so that their messages vanish.

With reach k a rank holds n_k rows, those within k hops of its n_0 own rows. A model sums up rows that change L times.
The first k sums turn n_k rows into n_0, with the matrices of `hops.py`; rows are exchanged in the other L - k.
"""

from dataclasses import replace

import numpy as np
import torch

from laconic.errors import ConfigError
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.hops import find_hops
from laconic.sharded.placement import Placement


def check_reach(reach: int | None, strategy: str) -> None:
    """Raises ConfigError unless `reach` is a number of hops, or left out."""
    if reach is not None and reach < 0:
        raise ConfigError(f"{strategy}: reach should be 0 or more hops, or left out; got {reach}.")


def check_rows(reach: int | None, chunk_map: ChunkMap) -> None:
    """Raises ConfigError where a reach is asked for and a rank has fewer than two rows."""
    if reach and int(np.diff(chunk_map.rank_starts).min()) < 2:
        raise ConfigError(
            f"reach={reach} needs two nodes at least on every rank, and one of the {len(chunk_map.rank_starts) - 1} "
            f"ranks has fewer. Use fewer ranks, or leave reach out."
        )


def with_reach(placement: Placement, reach: int) -> Placement:
    """Returns the placement with the rows within `reach` hops computed here; all ranks call it together.

    Without any where a rank has fewer than two rows: hops are told apart by their numbers of rows, and torch would add
    a tensor of one row to one of many.
    """
    shard, communicator = placement.shard, placement.communicator
    if communicator.num_ranks == 1 or not reach:
        return placement
    with communicator.ledger.phase("setup"):
        if communicator.all_reduce(torch.tensor([shard.num_rows]), op="min") < 2:
            return placement
    hops = find_hops(placement.exchange, shard.adjacency, shard.edge_weight, shard.node_ids, reach)
    return replace(placement, hops=hops)
