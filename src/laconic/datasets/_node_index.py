"""Ids, whole numbers or text, to rows 0..N-1 and back."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.datasets import _arrow as pyarrow
from laconic.datasets._arrays import to_text
from laconic.errors import DataError

Ids = Any
"""Ids of nodes: an array of int64 where all of them are whole numbers that it holds, else pyarrow's of large_string."""

_TEXT = "large_string"
_WHOLE_NUMBER = re.compile("-?[0-9]+")

# Shapes: N nodes, M ids asked for


def to_ids(values: Any, where: str) -> Ids:
    """Returns ids of any integer type or text, as they are: a number that int64 does not hold, or 007, stays text.

    Args:
        values: an array of numpy or pyarrow.
        where: the file and column, for errors.
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise DataError(f"{where}: node ids should stand in one column, got {values.dtype} of {values.shape}.")
        if values.dtype.kind in "iu" and not (values.size and values.max() > np.iinfo(np.int64).max):
            return values.astype(np.int64, copy=False)
        values = pyarrow.array(to_text(values, where) if values.dtype.kind == "S" else values)
    if not len(values):
        # A table without rows does not tell the type of its columns.
        return np.empty(0, np.int64)
    if values.null_count:
        raise _missing_id(where, values.is_null())
    if pyarrow.types.is_integer(values.type):
        try:
            return values.cast(pyarrow.int64()).to_numpy()
        except pyarrow.ArrowInvalid:
            return values.cast(_TEXT)
    if not (pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)):
        raise DataError(f"{where}: node ids should be integers or text, got {values.type}.")
    return _numbers_or_text(pyarrow.compute.utf8_trim_whitespace(values.cast(_TEXT)), where)


def id_fields(ids: Ids) -> dict[str, Any]:
    """Returns the field of a Graph that holds `ids`: node_ids, or id_names where they are text."""
    if isinstance(ids, np.ndarray):
        return {"node_ids": torch.from_numpy(ids.copy())}
    return {"id_names": np.asarray(ids.to_pylist(), dtype=np.str_)}


def _numbers_or_text(given: Any, where: str) -> Ids:
    is_missing = pyarrow.compute.equal(given, "")
    if is_missing.true_count:
        raise _missing_id(where, is_missing)
    if not _WHOLE_NUMBER.fullmatch(given[0].as_py()):
        # One that is text is enough.
        return given
    try:
        numbers = given.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        return given
    # Only where nothing is lost: 007 is not 7.
    return numbers.to_numpy() if numbers.cast(_TEXT).equals(given) else given


def _missing_id(where: str, is_missing: Any) -> DataError:
    row = int(np.flatnonzero(is_missing.to_numpy(zero_copy_only=False))[0])
    return DataError(f"{where}: row {row} has no node id. Give it one, or leave the row out.")


@final
@dataclass(frozen=True)
class NodeIndex:
    """Knows at which row each node id stands.

    Args:
        ids: the id of each row, (N,).
        where: the file that names the nodes.
    """

    ids: Ids
    where: Path

    @staticmethod
    def of(ids: Ids | None, num_nodes: int, *, where: Path) -> "NodeIndex":
        """Returns the index of `ids`, or of 0..num_nodes-1 when there are none."""
        if ids is None:
            return NodeIndex(np.arange(num_nodes), where)
        if len(ids) != num_nodes:
            raise DataError(f"{where} names {len(ids)} nodes, but there are {num_nodes} rows of features.")
        if isinstance(ids, np.ndarray):
            values, counts = np.unique(ids, return_counts=True)
        else:
            values, counts = pyarrow.compute.value_counts(ids).flatten()
            counts = counts.to_numpy()
        if len(counts) < num_nodes:
            most = int(np.argmax(counts))
            raise DataError(f"{where} names node {values[most]} {counts[most]} times. Once is right.")
        return NodeIndex(ids, where)

    @property
    def num_nodes(self) -> int:
        return len(self.ids)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a Graph that hold the ids."""
        return id_fields(self.ids)

    def edge_index(self, sources: Ids, destinations: Ids, *, where: Path) -> Tensor:
        """Returns the rows of both ends of each edge, (2, E)."""
        return torch.from_numpy(np.stack([self._rows(ends, where) for ends in (sources, destinations)]))

    def rows_of(self, ids: Ids | None, num_rows: int, *, where: Path, header: str = "") -> NDArray[np.int64]:
        """Returns the rows of `ids`, none twice; all rows in order when there are no ids.

        Args:
            header: what was taken for the header line, for errors.
        """
        if ids is None:
            if num_rows != self.num_nodes:
                taken = f" Its first line, {header}, was taken for a header." if header else ""
                raise DataError(
                    f"{where} has {num_rows} rows, but {self.where.name} has {self.num_nodes} nodes. Give it a row for "
                    f"each node, or a column called node that says which nodes its rows are.{taken}"
                )
            return np.arange(num_rows)
        rows = self._rows(ids, where).copy()
        if len(np.unique(rows)) != len(rows):
            raise DataError(f"{where} has several rows for one node. Keep one.")
        return rows

    @cached_property
    def _order(self) -> NDArray[np.int64] | None:
        """Rows by rising id; None when ids are the rows themselves, which saves a search for each end of an edge."""
        return None if np.array_equal(self.ids, np.arange(self.num_nodes)) else np.argsort(self.ids)

    @cached_property
    def _texts(self) -> Any:
        return pyarrow.array(self.ids).cast(_TEXT)

    def _rows(self, ids_M: Ids, where: Path) -> NDArray[np.int64]:
        if not len(ids_M):
            return np.empty(0, np.int64)
        if not (isinstance(ids_M, np.ndarray) and isinstance(self.ids, np.ndarray)):
            found = pyarrow.compute.index_in(pyarrow.array(ids_M).cast(_TEXT), value_set=self._texts)
            rows_M: NDArray[np.int64] = found.fill_null(-1).to_numpy().astype(np.int64)
            unknown_M = rows_M < 0
        elif self._order is None:
            rows_M, unknown_M = ids_M, (ids_M < 0) | (ids_M >= self.num_nodes)
        else:
            place_M = np.searchsorted(self.ids, ids_M, sorter=self._order).clip(max=self.num_nodes - 1)
            rows_M = self._order[place_M]
            unknown_M = self.ids[rows_M] != ids_M
        if unknown_M.any():
            first = int(np.flatnonzero(unknown_M)[0])
            name = str(ids_M[first])
            hint = f" Whole numbers are written without a point: {name[:-2]}." if name.endswith(".0") else ""
            raise DataError(
                f"{where} names {int(unknown_M.sum())} node(s) that {self.where.name} does not, the first being "
                f"{name}, in row {first}. Give each node its features, or leave those rows out.{hint}"
            )
        return rows_M
