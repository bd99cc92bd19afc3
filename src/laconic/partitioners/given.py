"""given: the parts that a file lists, made by another tool or by hand."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from laconic.errors import DataError
from laconic.graph import Graph
from laconic.partitioners.base import Partitioner, Parts
from laconic.specs import one_syntax_tree

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Given(Partitioner):
    """Reads the part of each node, in the graph's order, from an integer `.npy` file or a text of one number per line.

    No bound on sizes is promised: they are what the file says.
    """

    path: str = "parts.npy"
    uses_seed: ClassVar[bool] = False

    def assign(self, graph: Graph, num_parts: int, rng: np.random.Generator) -> Parts:
        listed = _read_array(self.path) if self.path.endswith(".npy") else _read_lines(self.path)
        if len(listed) != graph.num_nodes:
            raise DataError(
                f"{self.path}: expected {graph.num_nodes} numbers, one per node of {graph.name}, got {len(listed)}. "
                f"List the part of each node, in the order of the graph's nodes."
            )
        wrong = (listed < 0) | (listed >= num_parts)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{self.path}: parts should lie between 0 and {num_parts - 1}, but row {row} (from 0) holds "
                f"{listed[row]}; {int(wrong.sum())} row(s) are out of range. Correct the file, or ask for "
                f"{max(int(listed.max()) + 1, 1)} parts."
            )
        num_empty = num_parts - len(np.unique(listed))
        if num_empty:
            logger.warning("%s: %d of %d parts hold no node.", self.path, num_empty, num_parts)
        return listed.astype(np.int32)

    def max_part_size(self, num_nodes: int, num_parts: int) -> int | None:
        return None


def _read_array(path: str) -> NDArray[np.integer]:
    try:
        with Path(path).open("rb") as file, one_syntax_tree:
            listed = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(_unreadable(path, error)) from error
    if listed.ndim != 1 or not np.issubdtype(listed.dtype, np.integer):
        raise DataError(
            f"{path}: expected whole numbers of shape (nodes,), got {listed.dtype} of shape {listed.shape}. "
            f"Save it with numpy.save('{path}', parts.astype('int32'))."
        )
    return listed


def _read_lines(path: str) -> NDArray[np.int64]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(_unreadable(path, error)) from error
    try:
        return np.array(lines, dtype=np.str_).astype(np.int64)
    except (ValueError, OverflowError) as error:
        row = next(row for row, line in enumerate(lines) if not _is_part(line))
        raise DataError(
            f"{path}: expected one whole number per line, but row {row} (from 0) holds {lines[row][:40]!r}."
        ) from error


def _is_part(line: str) -> bool:
    try:
        np.int64(int(line))
    except (ValueError, OverflowError):
        return False
    return True


def _unreadable(path: str, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (
        f"{path}: cannot read the parts of the nodes ({reason}). "
        f"Give an integer .npy file or a text file with one number per line, as given(path='...')."
    )
