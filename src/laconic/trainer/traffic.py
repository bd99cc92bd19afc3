"""What a run moves between its ranks, by what it is for, beside what exact exchange would have moved.

    rows           rows of neighbours and their gradients, in training (phases "forward" and "backward")
    gradients      gradients of the model's weights
    refresh        what ranks keep of their neighbours for some epochs, and other parts of the graph ("repartition")
    evaluation     scores on the whole graph, which are always exact
    setup          what comes once: who needs which rows, features, first weights
    checkpoint, records    beside the work: equal weights are confirmed, the rows of the ledger collected

Exact exchange is the prediction of a run that exchanges all rows as they are in each step, between the same parts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import torch

from laconic.comm import Communicator
from laconic.comm.ledger import PHASES
from laconic.gradients.worker import Worker
from laconic.records import LedgerRecord

_PURPOSES = {"forward": "rows", "backward": "rows", "repartition": "refresh"}
EVERY_EPOCH = ("rows", "gradients", "refresh", "evaluation")
"""What is counted per epoch; the rest comes once, or lies beside the work."""


@final
@dataclass(frozen=True)
class ExactTraffic:
    """What all ranks together would receive with exact exchange, predicted in bytes."""

    rows: int
    """In a training step."""
    gradients: int
    """In a training step."""
    evaluation: int
    """In an evaluation, the adding up of its scores excepted."""


@final
@dataclass(frozen=True)
class Traffic:
    """Payload that all ranks together received in a run, in bytes."""

    num_epochs: int
    """Epochs that were counted: those in which ranks exchanged something."""
    received: Mapping[str, int]
    """What was counted, by what it was for."""
    exact: Mapping[str, int] | None
    """What exact exchange would have moved in as many epochs and evaluations; None where it is not known, as with
    mini-batches, which exact exchange does not draw."""

    @property
    def bytes_per_epoch(self) -> int:
        """Mean over the epochs, evaluations included, set-up not."""
        return round(sum(self.received.get(purpose, 0) for purpose in EVERY_EPOCH) / max(1, self.num_epochs))


@final
class TrafficCount:
    """Adds up rows of the ledger.

    Args:
        exact: what exact exchange would cost, where that is known.
    """

    def __init__(self, exact: ExactTraffic | None) -> None:
        self._exact = exact
        self._received: Counter[str] = Counter()
        self._score_bytes = 0
        self._epochs: set[int] = set()
        self._evaluated: set[int] = set()

    def add(self, records: Iterable[LedgerRecord]) -> None:
        """Adds rows of all ranks."""
        for record in records:
            purpose = _purpose(record)
            # Epochs on one rank have no rows, and a resumed run books its set-up under the epoch before it.
            if record.epoch and purpose in EVERY_EPOCH:
                self._epochs.add(record.epoch)
            if record.epoch and purpose == "evaluation":
                self._evaluated.add(record.epoch)
            if record.direction == "received":
                self._received[purpose] += record.num_bytes
                self._score_bytes += record.num_bytes * _is_of_scores(record)

    def so_far(self) -> Traffic:
        """Returns what was added up to now."""
        return Traffic(len(self._epochs), dict(self._received), self._exact_so_far())

    def _exact_so_far(self) -> dict[str, int] | None:
        exact = self._exact
        if exact is None:
            return None
        return {
            "rows": exact.rows * len(self._epochs),
            "gradients": exact.gradients * len(self._epochs),
            # Scores are added up alike, however rows travel.
            "evaluation": exact.evaluation * len(self._evaluated) + self._score_bytes,
        }


def predict_exact(worker: Worker, communicator: Communicator) -> ExactTraffic:
    """Returns what exact exchange would cost in steps on the whole graph; all ranks call it together."""
    sums: Counter[str] = Counter()
    for record in worker.exact_traffic():
        if record.direction == "received" and record.epoch and not _is_of_scores(record):
            sums[_purpose(record)] += record.num_bytes
    with communicator.ledger.phase("records"):
        own = torch.tensor([sums["rows"], sums["gradients"], sums["evaluation"]])
        return ExactTraffic(*map(int, communicator.all_reduce(own)))


def _purpose(record: LedgerRecord) -> str:
    assert record.phase in PHASES, record
    return _PURPOSES.get(record.phase, record.phase)


def _is_of_scores(record: LedgerRecord) -> bool:
    # No layer asks for them.
    return record.phase == "evaluation" and record.layer == -1
