"""The rows that a run leaves behind, one JSON object per line: `metrics.jsonl` and `ledger.jsonl`.

Each line says its kind and the version of the schema, so that a report can read the files of older runs. What a row
means is in the docstring of its field; nothing here knows how a row was measured.

    with RecordFile(folder / "metrics.jsonl") as metrics:
        metrics.append(EpochRecord(epoch=1, loss=1.9, train=0.4, val=0.3, test=0.3))
    rows = read_records(folder / "metrics.jsonl", EpochRecord)
"""

import dataclasses
import json
import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, final

from laconic.atomic import write_file
from laconic.errors import CheckpointError

SCHEMA_VERSION = 1


@final
@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One finished epoch. Scores are shares from 0 to 1, exact on the whole graph; None where none were asked for."""

    epoch: int
    """Number of the epoch; the first is 1."""
    loss: float
    """Mean training loss over the epoch's rows, as seen while training (dropout on, weights moving)."""
    train: float | None = None
    """Score on the training nodes after the epoch."""
    val: float | None = None
    """Score on the validation nodes after the epoch."""
    test: float | None = None
    """Score on the test nodes after the epoch."""
    seconds: float = 0.0
    """Time the epoch's training steps took, waiting for batches and moving on to other rows included."""
    evaluate_seconds: float = 0.0
    """Time the scores took."""
    wait_seconds: float = 0.0
    """Time within `seconds` in which training waited for a batch."""
    switch_seconds: float = 0.0
    """Time within `seconds` that a strategy took to move on to what it trains on from this epoch on."""


@final
@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """What one rank sends, or receives, in one epoch at one place of the step, counted or predicted.

    Where nothing goes, there is no row.
    """

    epoch: int
    """Number of the epoch; 0 for what came before the first."""
    rank: int
    """Whose count this is."""
    phase: str
    """What the bytes served, such as "forward"."""
    layer: int
    """Number of the layer that asked for them; -1 where no single layer did."""
    operation: str
    """The collective operation, such as "all_to_all"."""
    direction: str
    """Which way: "sent" or "received"."""
    num_messages: int
    """Messages, as `laconic.comm.traffic` counts them."""
    num_bytes: int
    """Payload that went to, or came from, other ranks."""


@final
@dataclass(frozen=True, slots=True)
class CoverageRecord:
    """How much of their neighbourhoods the training nodes had on their ranks, from one epoch on; in metrics.jsonl."""

    epoch: int
    """The epoch from which on it is so."""
    mean: float
    """Mean over the training nodes of all ranks: 1 where nothing is missing."""
    minimum: float
    """The smallest."""
    effective_sample_size: float
    """How many equally covered nodes would average as steadily."""
    histogram: list[int]
    """Training nodes in ten equal bins from 0 to 1."""


_KINDS: dict[str, type[Any]] = {"epoch": EpochRecord, "ledger": LedgerRecord, "coverage": CoverageRecord}
Record = EpochRecord | LedgerRecord | CoverageRecord
AnyRecord = TypeVar("AnyRecord", EpochRecord, LedgerRecord, CoverageRecord)


def format_record(record: Record) -> str:
    """Returns the line of one row, without its line end. Floats come back bit by bit."""
    kind = next(kind for kind, cls in _KINDS.items() if cls is type(record))
    return json.dumps({"kind": kind, "schema": SCHEMA_VERSION, **dataclasses.asdict(record)}, allow_nan=False)


def parse_record(line: str) -> Record:
    """Returns the row of one line. Raises ValueError, with the reason, for anything else."""
    row = json.loads(line)
    if not isinstance(row, dict) or str(row.get("kind")) not in _KINDS:
        raise ValueError(f"it is not a row of a known kind ({', '.join(_KINDS)})")
    if row.pop("schema", None) != SCHEMA_VERSION:
        raise ValueError(f"its schema is not {SCHEMA_VERSION}, the one that this version of Laconic reads")
    cls = _KINDS[str(row.pop("kind"))]
    try:
        record: Record = cls(**row)
    except TypeError as error:
        raise ValueError(f"its fields are not those of {cls.__name__}: {error}") from error
    for name, hint in typing.get_type_hints(cls).items():
        value = getattr(record, name)
        # JSON from elsewhere may have a whole float written without its point; and True is no number.
        kind = list if typing.get_origin(hint) is list else hint
        fits = isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))
        if not fits or isinstance(value, bool):
            raise ValueError(f"its {name} is {value!r}")
    return record


def read_records(path: Path, kind: type[AnyRecord]) -> list[AnyRecord]:
    """Returns the rows of one kind.

    A last line without its line end was cut while it was written, and is left out; any other bad line is an error.
    """
    return [record for record in _read_all(path) if isinstance(record, kind)]


def _read_all(path: Path) -> list[Record]:
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    records = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = parse_record(line)
        except ValueError as error:
            raise CheckpointError(
                f"{path}, line {number}, cannot be read: {error}. The file was altered or comes from another version; "
                f"restore it, or start a new run."
            ) from error
        records.append(record)
    return records


def keep_epochs(path: Path, last_epoch: int, kind: type[AnyRecord]) -> list[AnyRecord]:
    """Cuts a file of rows back to those up to `last_epoch`: a resumed run writes on. Returns those of one kind."""
    kept = [record for record in _read_all(path) if record.epoch <= last_epoch] if path.exists() else []
    write_records(path, kept)
    return [record for record in kept if isinstance(record, kind)]


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Replaces the file at `path`, all at once."""
    text = "".join(format_record(record) + "\n" for record in records)
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@final
class RecordFile:
    """A file that rows are added to, each handed to the operating system at once: they outlive a crash of ours."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Record) -> None:
        self._file.write(format_record(record) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Waits until every row is on the disk; a checkpoint that counts on them is written after this."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
