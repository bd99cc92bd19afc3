"""NewRows: rows that a change of the graph brought into the lists; their first message is as they are.

A codec that remembers knows nothing of them yet, while it goes on from what it knows of the others: so the first
message of each line after a change holds the coded rows that were there, and then the new ones at rate 1. Codecs that
do not remember treat new rows like others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory
from laconic.comm.communicator import Communicator

# Shapes: P ranks


@final
@dataclass(frozen=True, eq=False)
class NewRows:
    """Which rows have not been in a message yet.

    Args:
        counts: from each rank to each, (P, P), the same on all ranks.
        sent, received: for each peer, whether each of the rows that go there, or come, is new.
    """

    counts: NDArray[np.int64]
    sent: list[Tensor]
    received: list[Tensor]

    @staticmethod
    def agree(communicator: Communicator, sent: list[Tensor], received: list[Tensor]) -> "NewRows":
        """Counts the rows of all ranks, which call it together. Traffic: an all_gather of 8 P bytes, phase "setup"."""
        with communicator.ledger.phase("setup"):
            counts = communicator.all_gather(torch.tensor([int(part.sum()) for part in sent]))
        return NewRows(counts.numpy(), sent, received)

    def marks(self, direction: str, end: str, peer: int) -> Tensor:
        """Returns whether each row of a message is new, at one end of it."""
        return (self.sent if is_of_sent(direction, end) else self.received)[peer]

    def known_among(self, places: NDArray[np.int64], direction: str, end: str, peer: int) -> Tensor:
        """Returns where those of some rows that are not new stand in a memory, which has no others."""
        is_known, kept = ~self.marks(direction, end, peer), torch.from_numpy(places)
        return (is_known.cumsum(0) - 1)[kept[is_known[kept]]]

    def state(self) -> dict[str, Tensor]:
        """Returns all of it, by names."""
        marks = {"new.sent": torch.cat(self.sent), "new.received": torch.cat(self.received)}
        marks = {name: mark.to(torch.uint8) for name, mark in marks.items()}
        return {"new.counts": torch.from_numpy(self.counts), **marks}

    @staticmethod
    def of_state(state: Mapping[str, Tensor], send: Sequence[int], receive: Sequence[int]) -> "NewRows | None":
        """Takes back what `state` gave, among others; None where it is not there.

        Args:
            send, receive: rows that go to, and come from, each rank.
        """
        if "new.counts" not in state:
            return None
        sent = list(state["new.sent"].bool().split_with_sizes(list(send)))
        received = list(state["new.received"].bool().split_with_sizes(list(receive)))
        return NewRows(state["new.counts"].numpy(), sent, received)


def is_of_sent(direction: str, end: str) -> bool:
    """Whether a message's rows, at its end "out" or "in", are those that go from here forward."""
    return (end == "out") == (direction == "forward")


def which_new(new: NewRows | None, direction: str, end: str, peer: int, num_rows: int) -> Tensor:
    """Returns whether each row of a message is new; where nothing is, none."""
    return torch.zeros(num_rows, dtype=torch.bool) if new is None else new.marks(direction, end, peer)


def note_new(codec: Codec, rows: Tensor, are_new: Tensor, memory: Memory) -> None:
    """Adds rows that went as they are, being new, to what is remembered of the others."""
    noted = Memory()
    codec.note_exact(rows, noted)
    memory.add_rows(noted, are_new)


def mark_new(kept: Sequence[NDArray[np.int64]], sizes: Sequence[int], before: Sequence[Tensor] | None) -> list[Tensor]:
    """Returns for each peer whether each of its rows is new.

    Args:
        kept: of each peer, places in the list before of the rows that stay, which are the first of the list now.
        sizes: rows of each peer now.
        before: whether rows of the list before are still new; none by default.
    """
    marks = []
    for peer, (places, size) in enumerate(zip(kept, sizes, strict=True)):
        mark = torch.ones(size, dtype=torch.bool)
        mark[: len(places)] = False if before is None else before[peer][torch.from_numpy(places)]
        marks.append(mark)
    return marks
