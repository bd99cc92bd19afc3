"""Columns from CSV (also .csv.gz) and Parquet files, by pyarrow. Errors name the file."""

import gzip
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from laconic.datasets import _arrow as pyarrow
from laconic.datasets._arrays import require_file
from laconic.errors import DataError

# UTF-8 with or without the mark that spreadsheets begin a file with.
_ENCODING = "utf-8-sig"

# What pyarrow reads at a time, and at most; and how much longer a .gz file may be when it is unpacked.
_BLOCK_BYTES = 1 << 20
_MOST_BLOCK_BYTES = (1 << 31) - 1
_MOST_PACKED = 16


@final
@dataclass(frozen=True)
class Header:
    """The names of a table's columns, in order; "0", "1", ... where a CSV file has no header line."""

    path: Path
    names: tuple[str, ...]
    has_names: bool


def read_header(path: Path, *, words: Collection[str] = ()) -> Header:
    """Returns the names of the columns.

    Args:
        path: the file.
        words: what may stand in the rows beside numbers; any other word in the first line makes it a header.
    """
    require_file(path)
    with _errors_naming(path):
        if path.suffix == ".parquet":
            names = tuple(map(str, pyarrow.parquet.read_schema(path).names))
            has_names = True
        else:
            if not path.stat().st_size:
                raise ValueError("it is empty")
            cells = [cell.strip().strip('"') for cell in _first_line(path).split(",")]
            has_names = any(not _is_number(cell) and cell not in words for cell in cells)
            names = tuple(str(place) for place in range(len(cells)))
            if has_names:
                with pyarrow.csv.open_csv(path, parse_options=_parse_options(cells)) as reader:
                    names = tuple(reader.schema.names)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DataError(f"{path} has two columns called {min(twice)!r}. Rename one.")
    return Header(path, names, has_names)


def read_columns(header: Header, names: Collection[str], *, texts: Collection[str] = ()) -> dict[str, Any]:
    """Returns the columns of these names, as arrays.

    Args:
        texts: columns that come as pyarrow arrays, and from a CSV file as text: what "007" means, the caller decides.
    """
    path = header.path
    with _errors_naming(path):
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path, columns=list(names))
        else:
            table = _read_csv(header, names, texts)
    return {
        name: _plain(table.column(name)) if name in texts else _to_numpy(table.column(name), f"{path}: column {name}")
        for name in names
    }


def _read_csv(header: Header, names: Collection[str], texts: Collection[str]) -> Any:
    def read(block_bytes: int) -> Any:
        return pyarrow.csv.read_csv(
            header.path,
            read_options=pyarrow.csv.ReadOptions(
                column_names=None if header.has_names else list(header.names), block_size=block_bytes
            ),
            parse_options=_parse_options(header.names),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=list(names), column_types=dict.fromkeys(texts, pyarrow.large_string())
            ),
        )

    num_bytes = header.path.stat().st_size * (_MOST_PACKED if header.path.suffix == ".gz" else 1)
    try:
        return read(_BLOCK_BYTES)
    except pyarrow.ArrowInvalid:
        if num_bytes <= _BLOCK_BYTES:
            raise
        # The first block decides what a column holds: numbers there, and a word or a fraction further down.
        return read(min(num_bytes, _MOST_BLOCK_BYTES))


def stack(columns: dict[str, NDArray[Any]], where: str) -> NDArray[Any]:
    """Returns columns side by side, (rows, columns); a column of lists is as many columns as its lists are long."""
    parts = [column if column.ndim == 2 else column[:, None] for column in columns.values()]
    for name, part in zip(columns, parts, strict=True):
        if part.dtype.kind not in "fiub":
            got = f"text such as {str(part.flat[0])!r}" if part.dtype.kind == "U" and part.size else part.dtype
            raise DataError(f"{where}: column {name} should hold numbers, got {got}.")
    return np.concatenate(parts, axis=1) if parts else np.empty((0, 0))


def _parse_options(columns: Collection[str]) -> Any:
    # In a file of one column an empty line is a row without a value: a node without a label.
    return pyarrow.csv.ParseOptions(ignore_empty_lines=len(columns) > 1)


@contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, EOFError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read ({str(error).strip().rstrip('.')}): the file is cut short, altered or not "
            f"{'Parquet' if path.suffix == '.parquet' else 'comma-separated values'}. Write or fetch it again."
        ) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _first_line(path: Path) -> str:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding=_ENCODING) as compressed:
            return compressed.readline().strip()
    with path.open(encoding=_ENCODING) as file:
        return file.readline().strip()


def _plain(column: Any) -> Any:
    """Returns a column as one array of the values themselves."""
    kind = column.type
    if isinstance(kind, pyarrow.DictionaryType):
        column = column.cast(kind.value_type)
    if _is_text(column.type):
        column = column.cast(pyarrow.large_string())
    return column.combine_chunks()


def _to_numpy(column: Any, where: str) -> NDArray[Any]:
    kind = column.type
    if isinstance(kind, pyarrow.ListType | pyarrow.LargeListType | pyarrow.FixedSizeListType):
        rows = column.combine_chunks()
        lengths = np.unique(pyarrow.compute.list_value_length(rows).to_numpy(zero_copy_only=False))
        if len(lengths) > 1 or rows.null_count:
            raise DataError(f"{where} holds lists of different lengths; each node needs as many features.")
        return np.asarray(rows.flatten().to_numpy(zero_copy_only=False)).reshape(len(rows), -1)
    if pyarrow.types.is_null(kind):
        return np.full(len(column), np.nan)
    if isinstance(kind, pyarrow.DictionaryType):
        column = column.cast(kind.value_type)
    values = np.asarray(column.to_numpy())
    if values.dtype.kind == "O" and _is_text(column.type):
        return np.asarray(["" if value is None else value for value in values], dtype=np.str_)
    # Torch warns of arrays that it could not write to.
    return values if values.flags.writeable else values.copy()


def _is_text(kind: Any) -> bool:
    # Which of the three a Parquet file says depends on what wrote it.
    types = pyarrow.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
