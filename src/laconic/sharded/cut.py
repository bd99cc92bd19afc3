"""Cut: how much of the graph lies between ranks, agreed on by all of them.

    counts[r, s] = fetched[r, s] + folded[r, s]         (P, P): rows and sums from rank r to rank s

Rates and sizes of messages go by these counts.
"""

from dataclasses import dataclass
from typing import Literal, final

import torch

from laconic.comm.message_sizes import Counts
from laconic.sharded.axis import AxisExchange
from laconic.sharded.placement import Placement

# Rows of x come to whoever holds an edge from them; partial sums go to the owner of their row.
Way = Literal["fetch", "fold"]


@final
@dataclass(frozen=True, eq=False)
class Cut:
    """What all ranks know of the messages of one product.

    Args:
        fetched: rows that go from each rank to each, forward, (P, P).
        folded: partial sums that do, (P, P).
        remote_share: share of all edges whose source another rank owns.
        degree: edges per node.
    """

    fetched: Counts
    folded: Counts
    remote_share: float
    degree: float

    @staticmethod
    def of(placement: Placement) -> "Cut":
        """Adds up the shares of all ranks, which call it together. Traffic: an all_gather of 16 (P + 1) bytes."""
        communicator, adjacency = placement.communicator, placement.shard.adjacency
        columns, rows = placement.columns, placement.rows
        assert isinstance(columns, AxisExchange)
        num_remote = int((adjacency.indices >= placement.shard.num_rows).sum())
        own = torch.tensor([*columns.splits.send, *rows.splits.receive, adjacency.num_edges, num_remote])
        with communicator.ledger.phase("setup"):
            table = communicator.all_gather(own).numpy()
        num_edges, num_remote = table[:, -2:].sum(axis=0)
        num_ranks = communicator.num_ranks
        share, degree = float(num_remote / max(num_edges, 1)), float(num_edges / max(placement.num_nodes, 1))
        return Cut(table[:, :num_ranks], table[:, num_ranks : 2 * num_ranks], share, degree)

    @property
    def counts(self) -> Counts:
        """Rows and sums that go from each rank to each in one product, (P, P)."""
        return self.fetched + self.folded

    def of_way(self, way: Way) -> Counts:
        """Returns the rows, or the sums, that go from each rank to each, (P, P)."""
        return self.fetched if way == "fetch" else self.folded
