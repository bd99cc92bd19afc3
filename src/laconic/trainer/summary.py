"""What a run learned, in a few numbers: shown at its end and kept as summary.json."""

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from laconic.records import EpochRecord
from laconic.trainer.loop import Ending
from laconic.trainer.run import Run
from laconic.trainer.traffic import Traffic


@final
@dataclass(frozen=True)
class Summary:
    """The end of a run."""

    folder: Path
    """The run folder."""
    ending: Ending
    """Why it ended."""
    signal: int | None
    """Number of the signal that interrupted it."""
    metric: str
    """What the scores are."""
    num_epochs: int
    """Finished epochs."""
    best: EpochRecord | None
    """The epoch with the best validation score; its test score is the one to quote."""
    num_parameters: int
    """Trained weights of the model."""
    seconds_per_epoch: float
    """Training: median over the epochs, evaluations not counted."""
    wait_share: float
    """Share of the training time spent waiting for batches."""
    num_ranks: int = 1
    """How many ranks trained it."""
    evaluation_seconds: float = 0.0
    """Median over the evaluations."""
    num_evaluations: int = 0
    """How many there were, in all epochs."""
    strategy: str = "single"
    """How the ranks learned together."""
    bytes_per_epoch: int | None = None
    """Payload that all ranks together received in an epoch, on average, evaluations included and set-up not; rank 0,
    which keeps the ledger, knows it, and the others have None."""
    traffic: Traffic | None = None
    """The same over the whole run, by what it was for."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"folder": str(self.folder)}


def summarise(run: Run, folder: Path, ending: Ending) -> Summary:
    """Returns the summary of a run that has ended; `folder` is rank 0's."""
    records, traffic = run.outputs.epochs(), run.outputs.traffic()
    seconds = sum(record.seconds for record in records)
    evaluations = [record.evaluate_seconds for record in records if record.train is not None]
    return Summary(
        folder=folder,
        ending=ending,
        signal=run.signal if ending == "interrupted" else None,
        metric=run.prepared.evaluation.metric,
        # Not the rows: ranks other than 0 have none of those before a resumption.
        num_epochs=run.state.epoch,
        best=run.state.best,
        num_parameters=sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        seconds_per_epoch=statistics.median(record.seconds for record in records) if records else 0.0,
        wait_share=sum(record.wait_seconds for record in records) / seconds if seconds else 0.0,
        num_ranks=run.session.communicator.num_ranks,
        evaluation_seconds=statistics.median(evaluations) if evaluations else 0.0,
        num_evaluations=len(evaluations),
        strategy=run.config.training.strategy,
        bytes_per_epoch=None if traffic is None else traffic.bytes_per_epoch,
        traffic=traffic,
    )
