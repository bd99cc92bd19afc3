"""Cut: how much of the graph lies between ranks, agreed on by all of them; what rates and sizes go by."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.sharded.placement import Placement


@final
@dataclass(frozen=True, eq=False)
class Cut:
    """What all ranks know of what lies between them.

    Args:
        counts: rows that go from each rank to each, (P, P).
        remote_share: share of all edges whose source another rank owns.
        degree: edges per node.
    """

    counts: NDArray[np.int64]
    remote_share: float
    degree: float

    @staticmethod
    def of(placement: Placement) -> "Cut":
        """Adds up the shares of all ranks, which call it together. Traffic: an all_gather of 8 (P + 3) bytes."""
        communicator, adjacency = placement.communicator, placement.shard.adjacency
        num_remote = int((adjacency.indices >= placement.shard.num_owned).sum())
        own = torch.tensor(
            [*placement.exchange.splits.send, adjacency.num_edges, num_remote, placement.shard.num_owned]
        )
        with communicator.ledger.phase("setup"):
            table = communicator.all_gather(own).numpy()
        num_edges, num_remote, num_nodes = table[:, -3:].sum(axis=0)
        return Cut(table[:, :-3], float(num_remote / max(num_edges, 1)), float(num_edges / max(num_nodes, 1)))
