"""Ids of any integers to rows 0..N-1 and back."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import DataError

# Shapes: N nodes, M ids asked for


@final
@dataclass(frozen=True)
class NodeIndex:
    """Knows at which row each node id stands.

    Args:
        ids: the id of each row, int64, (N,).
        where: the file that names the nodes.
    """

    ids: NDArray[np.int64]
    where: Path

    @staticmethod
    def of(ids: NDArray[Any] | None, num_nodes: int, *, where: Path) -> "NodeIndex":
        """Returns the index of `ids`, or of 0..num_nodes-1 when there are none."""
        if ids is None:
            return NodeIndex(np.arange(num_nodes), where)
        _check_ids(ids, where)
        if len(ids) != num_nodes:
            raise DataError(f"{where} names {len(ids)} nodes, but there are {num_nodes} rows of features.")
        values, counts = np.unique(ids, return_counts=True)
        if (counts > 1).any():
            raise DataError(f"{where} names node {values[counts > 1][0]} {counts[counts > 1][0]} times. Once is right.")
        return NodeIndex(ids.astype(np.int64), where)

    @property
    def num_nodes(self) -> int:
        return len(self.ids)

    def edge_index(self, sources: NDArray[Any], destinations: NDArray[Any], *, where: Path) -> Tensor:
        """Returns the rows of both ends of each edge, (2, E)."""
        return torch.from_numpy(np.stack([self._rows(ends, where) for ends in (sources, destinations)]))

    def rows_of(self, ids: NDArray[Any] | None, num_rows: int, *, where: Path) -> NDArray[np.int64]:
        """Returns the rows of `ids`, none twice; all rows in order when there are no ids."""
        if ids is None:
            if num_rows != self.num_nodes:
                raise DataError(
                    f"{where} has {num_rows} rows, but {self.where.name} has {self.num_nodes} nodes. Give it a row for "
                    f"each node, or a column called node that says which nodes its rows are."
                )
            return np.arange(num_rows)
        rows = self._rows(ids, where)
        if len(np.unique(rows)) != len(rows):
            raise DataError(f"{where} has several rows for one node. Keep one.")
        return rows

    @cached_property
    def _order(self) -> NDArray[np.int64] | None:
        """Rows by rising id; None when ids are the rows themselves, which saves a search for each end of an edge."""
        return None if np.array_equal(self.ids, np.arange(self.num_nodes)) else np.argsort(self.ids)

    def _rows(self, ids_M: NDArray[Any], where: Path) -> NDArray[np.int64]:
        if ids_M.shape == (0,):
            # A table without rows does not tell the type of its columns.
            return np.empty(0, np.int64)
        _check_ids(ids_M, where)
        rows_M: NDArray[np.int64]
        if self._order is None:
            rows_M, unknown_M = ids_M.astype(np.int64), (ids_M < 0) | (ids_M >= self.num_nodes)
        else:
            place_M = np.searchsorted(self.ids, ids_M, sorter=self._order).clip(max=self.num_nodes - 1)
            rows_M = self._order[place_M]
            unknown_M = self.ids[rows_M] != ids_M
        if unknown_M.any():
            first = int(np.flatnonzero(unknown_M)[0])
            raise DataError(
                f"{where} names {int(unknown_M.sum())} node(s) that {self.where.name} does not, the first being "
                f"{ids_M[first]}, in row {first}. Give each node its features, or leave those rows out."
            )
        return rows_M


def _check_ids(ids: NDArray[Any], where: Path) -> None:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(f"{where}: node ids should be integers, in one column, got {ids.dtype} of shape {ids.shape}.")
