"""The tables of a folder, found by the names of their files and read by the roles of their columns."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray

from laconic.datasets._arrays import read_npy
from laconic.datasets._column_names import NODE, SPLIT, TableKind
from laconic.datasets._columns import ColumnMapping
from laconic.datasets._node_index import Ids, to_ids
from laconic.datasets._splits import SPLITS
from laconic.datasets._tables import Header, read_columns, read_header
from laconic.errors import DataError

logger = logging.getLogger(__name__)

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".npy")
SPLIT_WORDS = (*SPLITS, "none")


@final
@dataclass(frozen=True)
class Table:
    """One table, read.

    Args:
        ids: the columns that hold node ids, by role: node, or source and target.
        of: the other columns that have a role of their own: weight, label, split.
        many: columns of the role that many may have, by name: features, or several labels.
        columns: the name of the column of each role.
        array: what an .npy file holds, which has no columns.
        header: the names of the columns; None for an .npy file.
    """

    path: Path
    ids: Mapping[str, Ids] = field(default_factory=dict)
    of: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    many: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    array: NDArray[Any] | None = None
    header: Header | None = None

    @property
    def node_ids(self) -> Ids | None:
        """The id of each row, if the table says it."""
        return self.ids.get(NODE)

    @property
    def first_line(self) -> str:
        """The line of a CSV file that was taken for its header, if there was one."""
        is_csv = self.header is not None and self.header.has_names and self.path.suffix != ".parquet"
        return ",".join(self.header.names) if is_csv and self.header is not None else ""


@final
@dataclass(frozen=True)
class TableFolder:
    """A folder with a file for each kind of table."""

    folder: Path
    mapping: ColumnMapping

    def candidates(self, name: str) -> list[Path]:
        """Returns the files that hold the table of this name."""
        return [path for suffix in SUFFIXES if (path := self.folder / f"{name}{suffix}").is_file()]

    def find(self, name: str) -> Path | None:
        """Returns the file that holds the table of this name, if there is one."""
        found = self.candidates(name)
        if len(found) > 1:
            raise DataError(f"{self.folder} holds {' and '.join(path.name for path in found)}. Keep one of them.")
        return found[0] if found else None

    def require(self, name: str) -> Path:
        """Returns the file that holds the table of this name."""
        path = self.find(name)
        if path is None:
            entries = sorted(entry.name for entry in self.folder.iterdir())[:8] if self.folder.is_dir() else []
            raise DataError(
                f"{self.folder} has no {name} file. A folder of tables holds edges, features and labels, each as "
                f"{', '.join(SUFFIXES)}; this one holds {', '.join(entries) or 'nothing'}."
            )
        return path

    def read(self, kind: TableKind, path: Path) -> Table:
        """Returns the table in `path`, and tells in the log what each of its columns was taken for."""
        if path.suffix == ".npy":
            return Table(path, array=read_npy(path))
        header = read_header(path, words=SPLIT_WORDS if kind == SPLIT else ())
        roles = self.mapping.assign(kind, header.names, where=str(path), has_header=header.has_names)
        columns = read_columns(header, roles.columns, texts=roles.id_columns)
        logger.info("%s%s: %s.", path.name, "" if header.has_names else " (without header)", roles.describe())
        ids = {role: name for role, name in roles.of.items() if name in roles.id_columns}
        return Table(
            path,
            ids={role: to_ids(columns[name], f"{path}: column {name}") for role, name in ids.items()},
            of={role: columns[name] for role, name in roles.of.items() if role not in ids},
            many={name: columns[name] for name in roles.many},
            columns=roles.of,
            header=header,
        )
