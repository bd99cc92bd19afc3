"""Where a run stands, as far as it is not in the weights: saved with every checkpoint, so that a run can go on."""

import dataclasses
from dataclasses import dataclass
from typing import Any, final

from laconic.records import EpochRecord


@final
@dataclass
class TrainingState:
    """The position of a run and its best epoch so far. The one thing in the trainer that changes."""

    epoch: int = 0
    """Finished epochs."""
    step: int = 0
    """Finished steps of the epoch under way."""
    loss_sum: float = 0.0
    """Loss of those steps, summed over rows."""
    num_rows: int = 0
    """Rows of those steps."""
    seconds: float = 0.0
    """Time of those steps."""
    wait_seconds: float = 0.0
    """Time within it spent waiting for batches."""
    switch_seconds: float = 0.0
    """Time within it spent moving on to what is trained on."""
    best: EpochRecord | None = None
    """The epoch with the best validation score; the earliest of several."""

    def count_step(self, loss: float, *, num_rows: int, seconds: float, wait_seconds: float) -> None:
        """Adds one finished step."""
        self.step += 1
        self.loss_sum += loss * num_rows
        self.num_rows += num_rows
        self.seconds += seconds
        self.wait_seconds += wait_seconds

    def count_switch(self, seconds: float) -> None:
        """Adds the time it took to begin the epoch."""
        self.seconds += seconds
        self.switch_seconds += seconds

    @property
    def loss(self) -> float:
        """Mean loss of the epoch under way, of the rows so far."""
        return self.loss_sum / self.num_rows

    def close_epoch(self, loss: float, scores: dict[str, float], evaluate_seconds: float) -> EpochRecord:
        """Ends the epoch under way and returns its row."""
        self.epoch += 1
        record = EpochRecord(
            epoch=self.epoch,
            loss=loss,
            **scores,
            seconds=round(self.seconds, 6),
            evaluate_seconds=round(evaluate_seconds, 6),
            wait_seconds=round(self.wait_seconds, 6),
            switch_seconds=round(self.switch_seconds, 6),
        )
        self.step, self.loss_sum, self.num_rows = 0, 0.0, 0
        self.seconds, self.wait_seconds, self.switch_seconds = 0.0, 0.0, 0.0
        return record

    def is_better(self, record: EpochRecord) -> bool:
        """Whether `record` has a better validation score than any before it."""
        if record.val is None:
            return False
        return self.best is None or self.best.val is None or record.val > self.best.val

    def is_exhausted(self, patience: int, *, at: int | None = None) -> bool:
        """Whether the last `patience` epochs brought nothing better: up to now, or up to the epoch `at`."""
        epoch = self.epoch if at is None else at
        return patience > 0 and self.best is not None and epoch - self.best.epoch >= patience

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> "TrainingState":
        best = values.pop("best")
        return TrainingState(**values, best=None if best is None else EpochRecord(**best))
