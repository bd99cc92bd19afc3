"""TensorBoard events of a run: the numbers of metrics.jsonl as curves. Nothing reads them back."""

from pathlib import Path
from types import TracebackType
from typing import final

from laconic.records import EpochRecord
from laconic.trainer.event_file import EventFile


@final
class Board:
    """Writes events into `folder`, or nowhere when it is None.

    Args:
        folder: where events go.
        next_epoch: the first epoch to come; events of a run that got further before it was interrupted are purged.
    """

    def __init__(self, folder: Path | None, *, next_epoch: int) -> None:
        self._file = None if folder is None else EventFile(folder, next_step=next_epoch)

    def add(self, record: EpochRecord, metric: str) -> None:
        """Adds the curves' next points."""
        if self._file is None:
            return
        points = {"loss": record.loss, "seconds": record.seconds, "wait_seconds": record.wait_seconds}
        points |= {f"{metric}/{split}": getattr(record, split) for split in ("train", "val", "test")}
        self._file.add({name: value for name, value in points.items() if value is not None}, record.epoch)

    def __enter__(self) -> "Board":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
