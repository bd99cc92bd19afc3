"""Columns from CSV (also .csv.gz) and Parquet files, by pyarrow. Errors name the file.

Pyarrow is imported by those who read a table: no other run waits for it, or has the thread that it starts.
"""

import gzip
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.datasets._arrays import require_file
from laconic.errors import DataError

# UTF-8 with or without the mark that spreadsheets begin a file with.
_ENCODING = "utf-8-sig"


def read_columns(path: Path, *, words: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Returns the columns by name, in order; those of a CSV file without a header line are called "0", "1", ...

    Args:
        path: the file.
        words: what may stand in the rows beside numbers; any other word in the first line makes it a header.
    """
    import pyarrow.parquet

    require_file(path)
    try:
        table = pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else _read_csv(path, words)
    except (ValueError, OSError, EOFError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read ({str(error).strip().rstrip('.')}): the file is cut short, altered or not "
            f"{'Parquet' if path.suffix == '.parquet' else 'comma-separated values'}. Write or fetch it again."
        ) from error
    names = [str(name) for name in table.column_names]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DataError(f"{path} has two columns called {min(twice)!r}. Rename one.")
    return {name: _to_numpy(table.column(i), f"{path}: column {name}") for i, name in enumerate(names)}


def stack(columns: dict[str, NDArray[Any]], where: str) -> NDArray[Any]:
    """Returns columns side by side, (rows, columns); a column of lists is as many columns as its lists are long."""
    parts = [column if column.ndim == 2 else column[:, None] for column in columns.values()]
    for name, part in zip(columns, parts, strict=True):
        if part.dtype.kind not in "fiub":
            got = f"text such as {str(part.flat[0])!r}" if part.dtype.kind == "U" and part.size else part.dtype
            raise DataError(f"{where}: column {name} should hold numbers, got {got}.")
    return np.concatenate(parts, axis=1) if parts else np.empty((0, 0))


def _read_csv(path: Path, words: Collection[str]) -> Any:
    import pyarrow.csv

    cells = [cell.strip().strip('"') for cell in _first_line(path).split(",")]
    is_header = any(not _is_number(cell) and cell not in words for cell in cells)
    names = None if is_header else [str(i) for i in range(len(cells))]
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(column_names=names),
        # In a file of one column an empty line is a row without a value: a node without a label.
        parse_options=pyarrow.csv.ParseOptions(ignore_empty_lines=len(cells) > 1),
    )


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


def _to_numpy(column: Any, where: str) -> NDArray[Any]:
    import pyarrow.compute

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
    return values


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    # Which of the three a Parquet file says depends on what wrote it.
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
