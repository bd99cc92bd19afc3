"""NodeOwners: which rank owns each node that a change of the graph speaks of; the same table on all ranks."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.comm.communicator import Communicator
from laconic.graph.change import GraphChange, refuse_change

# Shapes: I ids that a change speaks of, A nodes added, P ranks

_NOWHERE = -1


@final
class Numbers:
    """Where each id stands in a list of different ids."""

    def __init__(self, ids: NDArray[np.int64]) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the place of each id, or -1 for one that is not in the list."""
        if not len(self._sorted):
            return np.full(len(ids), -1)
        places = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        return np.where(self._sorted[places] == ids, self._order[places], -1)


@final
@dataclass(frozen=True, eq=False)
class NodeOwners:
    """The rank of each node that a change speaks of, new nodes included.

    Args:
        numbers: places of the ids in `rank`.
        rank: (I,).
    """

    numbers: Numbers
    rank: NDArray[np.int64]

    @staticmethod
    def find(change: GraphChange, own: Numbers, num_owned: int, communicator: Communicator) -> "NodeOwners":
        """Finds the nodes, and places new ones; all ranks call it together, and get the same or the same error.

        Traffic: an all_reduce of 8 I bytes, and an all_gather of 8.

        Args:
            own: the ids of the rows here.
        """
        mentioned = [change.add_edges.flatten(), change.remove_edges.flatten(), change.remove_nodes, change.new_ids]
        ids = torch.unique(torch.cat(mentioned)).numpy()
        here = np.where(own.of(ids) >= 0, communicator.rank, _NOWHERE)
        rank = communicator.all_reduce(torch.from_numpy(here), op="max").numpy()
        sizes = communicator.all_gather(torch.tensor([num_owned])).flatten().numpy()
        owners = NodeOwners(Numbers(ids), rank)
        owners._check(change)
        leaving = owners.of(change.remove_nodes.numpy())
        owners._place(change, sizes - np.bincount(leaving, minlength=len(sizes)))
        return owners

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the ranks of nodes that the change speaks of."""
        return self.rank[self.numbers.of(ids)]

    def _check(self, change: GraphChange) -> None:
        new, removed = change.new_ids.numpy(), change.remove_nodes.numpy()
        there = new[self.of(new) != _NOWHERE]
        if len(there):
            refuse_change(
                f"add_nodes holds node {there[0]}, which the graph has already. Give new nodes ids of their own"
            )
        gone = removed[self.of(removed) == _NOWHERE]
        if len(gone):
            refuse_change(
                f"remove_nodes holds node {gone[0]}, which is not in the graph; it may have been removed before"
            )
        for name, edges in (("add_edges", change.add_edges.numpy()), ("remove_edges", change.remove_edges.numpy())):
            is_known = self.of(edges.ravel()) != _NOWHERE
            if name == "add_edges":
                is_known = (is_known & ~np.isin(edges.ravel(), removed)) | np.isin(edges.ravel(), new)
            wrong = np.flatnonzero(~is_known)
            if len(wrong):
                source, destination = edges[:, wrong[0] % edges.shape[1]]
                node = edges.ravel()[wrong[0]]
                refuse_change(f"{name} holds {source} -> {destination}, but node {node} is not in the graph then")

    def _place(self, change: GraphChange, sizes: NDArray[np.int64]) -> None:
        """Gives each new node to the rank with most of its neighbours, then fewest nodes, then the lowest number.

        One after the other, so that a new node follows the new ones before it that it is joined to.
        """
        new = self.numbers.of(change.new_ids.numpy())
        sources, destinations = (self.numbers.of(ends) for ends in change.add_edges.numpy())
        # Ends of edges at new nodes, grouped by the new node.
        ends = np.concatenate([sources, destinations])
        others = np.concatenate([destinations, sources])
        order = np.argsort(ends, kind="stable")
        first, last = (np.searchsorted(ends[order], new, side=side) for side in ("left", "right"))
        for number, begin, end in zip(new, first, last, strict=True):
            near = self.rank[np.unique(others[order[begin:end]])]
            counts = np.bincount(near[near != _NOWHERE], minlength=len(sizes))
            self.rank[number] = np.lexsort([np.arange(len(sizes)), sizes, -counts])[0]
            sizes[self.rank[number]] += 1
