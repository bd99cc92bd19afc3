"""Cut: how much of the graph lies between ranks, agreed on by all of them; what rates and sizes go by."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.comm.schedules.base import PAPER_RATE
from laconic.halo.placement import Placement

# Of the error that leaving out all remote rows would make, so much may be there at the beginning.
_FIRST_ERROR = 0.5


@final
@dataclass(frozen=True, eq=False)
class Cut:
    """What all ranks know of what lies between them.

    Args:
        counts: rows that go from each rank to each, (P, P).
        remote_share: share of all edges whose source another rank owns.
    """

    counts: NDArray[np.int64]
    remote_share: float

    @staticmethod
    def of(placement: Placement) -> "Cut":
        """Adds up the shares of all ranks, which call it together. Traffic: an all_gather of 8 (P + 2) bytes."""
        communicator, adjacency = placement.communicator, placement.shard.adjacency
        num_remote = int((adjacency.indices >= placement.shard.num_owned).sum())
        own = torch.tensor([*placement.exchange.splits.send, adjacency.num_edges, num_remote])
        with communicator.ledger.phase("setup"):
            table = communicator.all_gather(own).numpy()
        num_edges, num_remote = table[:, -2:].sum(axis=0)
        return Cut(table[:, :-2], float(num_remote / max(num_edges, 1)))

    @property
    def first_rate(self) -> float:
        """The rate to begin with: a mask at it leaves half of what all remote rows say, weighed by their share.

        With a share s of neighbours elsewhere, a mask at rate c loses s (1 - 1 / c) of an aggregated row; that is held
        at one half. Where little is remote, the paper's rate.
        """
        if self.remote_share <= _FIRST_ERROR:
            return PAPER_RATE
        return min(PAPER_RATE, 1 / (1 - _FIRST_ERROR / self.remote_share))
