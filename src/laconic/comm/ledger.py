"""Ledger: counts what a rank sends and receives, by the place of the step that asked for it.

    with ledger.phase("forward", layer=2):
        communicator.all_to_all(rows, splits)       # books itself
    records = ledger.take(epoch)

One dictionary entry is updated per operation; nothing is measured, so counts are exact and alike in every run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from laconic.records import LedgerRecord

# In the order in which a run comes to them; also the order of the records.
PHASES = ("setup", "forward", "backward", "gradients", "evaluation", "repartition", "checkpoint", "records")

_PURPOSES = {
    "setup": "the set-up",
    "forward": "the forward pass of a training step",
    "backward": "the backward pass of a training step",
    "gradients": "the sum of gradients after a backward pass",
    "evaluation": "an evaluation",
    "repartition": "a refresh of neighbours",
    "checkpoint": "a checkpoint",
    "records": "the records of an epoch",
}


@final
class Ledger:
    """The traffic of one rank. Outside of any `phase`, traffic belongs to "setup".

    Args:
        rank: whose traffic.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.epoch = 0
        """The epoch that the training loop is in, for messages; 0 before the first, and where the loop does not say."""
        self.position = ("setup", -1)
        """The phase and the layer that traffic is booked under now."""
        # (phase, layer, operation): messages sent, bytes sent, messages received, bytes received
        self._counts: dict[tuple[str, int, str], list[int]] = {}

    @property
    def purpose(self) -> str:
        """What traffic at the current position is for, in words. All ranks say the same at the same operation."""
        phase, layer = self.position
        # The sum of the losses is the one thing that a forward pass sends outside of its layers.
        words = "the loss of a training step" if (phase, layer) == ("forward", -1) else _PURPOSES[phase]
        in_layer = f", layer {layer}" if layer >= 0 else ""
        return f"{words}{in_layer}{f', epoch {self.epoch}' if self.epoch else ''}"

    @contextmanager
    def phase(self, name: str, *, layer: int = -1) -> Iterator[None]:
        """Inside, traffic is booked under `name` and `layer`; afterwards, where it was before.

        Args:
            name: one of PHASES.
            layer: number of the layer that asks; -1 where no single layer does.
        """
        assert name in PHASES, f"{name!r} is none of {PHASES}"
        before = self.position
        self.position = (name, layer)
        try:
            yield
        finally:
            self.position = before

    def count(
        self, operation: str, sent_messages: int, sent_bytes: int, received_messages: int, received_bytes: int
    ) -> None:
        """Books one operation at the current position; `laconic.comm.traffic` says what to book."""
        if not sent_messages and not received_messages:
            return
        counts = self._counts.setdefault((*self.position, operation), [0, 0, 0, 0])
        counts[0] += sent_messages
        counts[1] += sent_bytes
        counts[2] += received_messages
        counts[3] += received_bytes

    def take(self, epoch: int) -> list[LedgerRecord]:
        """Returns what was counted since the last `take`, as records of `epoch`, and begins anew.

        They are in the order of PHASES, then of layers, operations and directions.
        """
        records = []
        for key in sorted(self._counts, key=lambda key: (PHASES.index(key[0]), *key[1:])):
            sent_messages, sent_bytes, received_messages, received_bytes = self._counts[key]
            for direction, num_messages, num_bytes in (
                ("received", received_messages, received_bytes),
                ("sent", sent_messages, sent_bytes),
            ):
                if num_messages:
                    records.append(LedgerRecord(epoch, self.rank, *key, direction, num_messages, num_bytes))
        self._counts = {}
        return records


def merged(rows: list[LedgerRecord]) -> list[LedgerRecord]:
    """Returns the rows of one rank and epoch, those of one place added up, in the ledger's order."""
    if not rows:
        return []
    ledger = Ledger(rows[0].rank)
    for row in rows:
        counts = (row.num_messages, row.num_bytes)
        with ledger.phase(row.phase, layer=row.layer):
            ledger.count(row.operation, *((*counts, 0, 0) if row.direction == "sent" else (0, 0, *counts)))
    return ledger.take(rows[0].epoch)
