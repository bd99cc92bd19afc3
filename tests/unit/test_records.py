from pathlib import Path

import pytest

from laconic.errors import CheckpointError
from laconic.records import (
    EpochRecord,
    LedgerRecord,
    RecordFile,
    format_record,
    keep_epochs,
    parse_record,
    read_records,
    write_records,
)

ROWS = [EpochRecord(epoch=n, loss=1 / n, train=0.1 * n, val=1 / 3, test=None, seconds=0.25) for n in range(1, 6)]
TRAFFIC = LedgerRecord(1, 0, "forward", 0, "all_to_all", "sent", num_messages=2, num_bytes=4096)


def write(path: Path, rows: list[EpochRecord]) -> Path:
    with RecordFile(path) as file:
        for row in rows:
            file.append(row)
    return path


@pytest.mark.parametrize("record", [*ROWS, TRAFFIC, EpochRecord(epoch=1, loss=0.1 + 0.2)], ids=repr)
def test_a_row_comes_back_from_its_line_bit_by_bit(record):
    assert parse_record(format_record(record)) == record


def test_rows_come_back_in_order_and_by_kind(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    with RecordFile(path) as file:
        file.append(TRAFFIC)
    assert read_records(path, EpochRecord) == ROWS
    assert read_records(path, LedgerRecord) == [TRAFFIC]


def test_a_row_is_in_the_file_before_the_file_is_closed(tmp_path):
    with RecordFile(tmp_path / "rows.jsonl") as file:
        file.append(ROWS[0])
        assert read_records(tmp_path / "rows.jsonl", EpochRecord) == ROWS[:1]


def test_a_last_line_that_was_cut_anywhere_is_left_out(tmp_path):
    whole = write(tmp_path / "whole.jsonl", ROWS).read_bytes()
    last_line_starts = whole[:-1].rfind(b"\n") + 1
    for length in range(last_line_starts, len(whole)):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:length])
        assert read_records(cut, EpochRecord) == ROWS[:-1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "line 2"),
        ("[1, 2]", "known kind"),
        ('{"kind": ["epoch"], "schema": 1}', "known kind"),
        ('{"kind": "epoch", "schema": 2, "epoch": 1, "loss": 0.5}', "schema"),
        ('{"kind": "epoch", "schema": 1, "epoch": 1}', "loss"),
        ('{"kind": "epoch", "schema": 1, "epoch": 1, "loss": 0.5, "colour": 3}', "colour"),
        ('{"kind": "epoch", "schema": 1, "epoch": "one", "loss": 0.5}', "epoch is 'one'"),
        ('{"kind": "epoch", "schema": 1, "epoch": 1, "loss": true}', "loss is True"),
    ],
)
def test_a_bad_line_is_an_error_that_names_file_and_line(tmp_path, line, reason):
    path = tmp_path / "rows.jsonl"
    path.write_text(format_record(ROWS[0]) + "\n" + line + "\n")
    with pytest.raises(CheckpointError, match=reason) as error:
        read_records(path, EpochRecord)
    assert str(path) in str(error.value)
    assert "line 2" in str(error.value)


def test_keeping_epochs_cuts_the_file_to_what_it_was_then(tmp_path):
    then = write(tmp_path / "then.jsonl", ROWS[:3]).read_bytes()
    later = write(tmp_path / "later.jsonl", ROWS)
    with later.open("a") as file:
        file.write('{"kind": "epo')
    assert keep_epochs(later, 3, EpochRecord) == ROWS[:3]
    assert later.read_bytes() == then
    assert sorted(path.name for path in tmp_path.iterdir()) == ["later.jsonl", "then.jsonl"]


def test_keeping_epochs_of_a_file_that_is_not_there_makes_an_empty_one(tmp_path):
    assert keep_epochs(tmp_path / "new.jsonl", 3, EpochRecord) == []
    assert (tmp_path / "new.jsonl").read_bytes() == b""


def test_a_loss_that_is_not_a_number_is_never_written():
    with pytest.raises(ValueError, match="JSON"):
        format_record(EpochRecord(epoch=1, loss=float("nan")))


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(ValueError, match="JSON"):
        write_records(path, [ROWS[0], EpochRecord(epoch=2, loss=float("nan"))])
    assert list(tmp_path.iterdir()) == [path]
    assert read_records(path, EpochRecord) == ROWS
