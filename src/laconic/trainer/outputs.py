"""Outputs: where a run leaves what it has to tell. Rank 0 keeps a folder; the others keep quiet."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self, final

from laconic.records import CoverageRecord, EpochRecord, LedgerRecord, RecordFile, read_records
from laconic.trainer.board import Board
from laconic.trainer.checkpoint import Checkpoints
from laconic.trainer.progress import Display, Silent
from laconic.trainer.run_folder import RunFolder
from laconic.trainer.snapshot import Snapshot
from laconic.trainer.traffic import ExactTraffic, Traffic, TrafficCount


class Outputs(ABC):
    """What a run writes and shows."""

    display: Display

    @abstractmethod
    def tell(self, record: EpochRecord, metric: str) -> None:
        """Hands the row of an epoch to everyone who keeps or shows it."""

    @abstractmethod
    def tell_coverage(self, records: Sequence[CoverageRecord]) -> None:
        """Keeps rows on how much of their neighbourhoods training nodes had, which all ranks have alike."""

    @abstractmethod
    def tell_traffic(self, records: Sequence[LedgerRecord]) -> None:
        """Keeps rows of the ledger, of all ranks."""

    @abstractmethod
    def save(self, *, last: Snapshot | None, best: Snapshot | None) -> None:
        """Writes checkpoints; None leaves that one as it is."""

    @abstractmethod
    def describe(self) -> str:
        """Returns in a sentence which checkpoints there are."""

    @abstractmethod
    def epochs(self) -> list[EpochRecord]:
        """Returns the rows of all epochs, those before a resumption included where they are known."""

    @abstractmethod
    def traffic(self) -> Traffic | None:
        """Returns what all ranks received up to the last rows of the ledger; None where another rank keeps them."""

    @abstractmethod
    def close(self) -> None:
        """Closes what was opened."""

    @final
    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@final
class FolderOutputs(Outputs):
    """A run folder, TensorBoard events, and a display.

    Args:
        exact: what exact exchange would cost, where that is known.
    """

    def __init__(
        self,
        folder: RunFolder,
        display: Display,
        *,
        tensorboard: bool,
        next_epoch: int,
        exact: ExactTraffic | None = None,
    ) -> None:
        self.display = display
        self._folder = folder
        self._checkpoints = Checkpoints(folder.checkpoints_path)
        self._open = ExitStack()
        self._metrics = self._open.enter_context(RecordFile(folder.metrics_path))
        events = folder.tensorboard_path if tensorboard else None
        self._board = self._open.enter_context(Board(events, next_epoch=next_epoch))
        self._traffic = TrafficCount(exact)
        if folder.ledger_path.exists():
            self._traffic.add(read_records(folder.ledger_path, LedgerRecord))

    def tell(self, record: EpochRecord, metric: str) -> None:
        self._metrics.append(record)
        self._board.add(record, metric)
        self.display.show(record)

    def tell_coverage(self, records: Sequence[CoverageRecord]) -> None:
        for record in records:
            self._metrics.append(record)

    def tell_traffic(self, records: Sequence[LedgerRecord]) -> None:
        # A run on one rank has no traffic, and no file of it.
        if records:
            with RecordFile(self._folder.ledger_path) as ledger:
                for record in records:
                    ledger.append(record)
                ledger.sync()
            self._traffic.add(records)
            self.display.show_traffic(self.traffic())

    def save(self, *, last: Snapshot | None, best: Snapshot | None) -> None:
        # The rows first: a checkpoint may count on the epochs before it being recorded.
        self._metrics.sync()
        self._checkpoints.save(last=last, best=best)

    def describe(self) -> str:
        return self._checkpoints.describe()

    def epochs(self) -> list[EpochRecord]:
        return read_records(self._folder.metrics_path, EpochRecord)

    def traffic(self) -> Traffic:
        return self._traffic.so_far()

    def close(self) -> None:
        self._open.close()


@final
class NoOutputs(Outputs):
    """What a rank other than 0 leaves: nothing."""

    def __init__(self) -> None:
        self.display = Silent()
        self._epochs: list[EpochRecord] = []

    def tell(self, record: EpochRecord, metric: str) -> None:
        self._epochs.append(record)

    def tell_coverage(self, records: Sequence[CoverageRecord]) -> None:
        pass

    def tell_traffic(self, records: Sequence[LedgerRecord]) -> None:
        assert not records, "rank 0 keeps them"

    def save(self, *, last: Snapshot | None, best: Snapshot | None) -> None:
        pass

    def describe(self) -> str:
        return "Rank 0 keeps the checkpoints."

    def epochs(self) -> list[EpochRecord]:
        return self._epochs

    def traffic(self) -> None:
        return None

    def close(self) -> None:
        pass
