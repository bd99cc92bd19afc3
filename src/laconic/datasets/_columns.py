"""What each column of a table is. Knows names, no files: a reader of any kind of table asks here.

A column has the role that its name is known for (`_column_names.py`), or that the user gives it. Any other name is
refused, with the mapping to give: nothing is guessed from the order of columns or from their values. Two tables take
columns of any name: features, and labels where none is called label.

    mapping = ColumnMapping.parse("source=paper, ignore=timestamp", given_as="data/papers")
    roles = mapping.assign("edges", ["paper", "to", "timestamp"], where="edges.csv")
    roles.of["source"], roles.of["target"]                         # "paper", "to"
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from laconic.datasets._column_names import (
    IGNORED,
    LABEL,
    MOST_NAMED,
    NODE,
    ROLES,
    RULES,
    SOURCE,
    SPLIT,
    TARGET,
    WEIGHT,
    TableKind,
    first_few,
    is_doubtful_feature,
    is_row_number,
    known_role,
)
from laconic.errors import ConfigError, DataError
from laconic.specs import shorten, unknown_name


@final
@dataclass(frozen=True)
class Roles:
    """What the columns of one table are.

    Args:
        of: the column of each role that one column has.
        many: the columns of the role that many may have: features, or the labels of a multi-label task.
    """

    kind: TableKind
    of: Mapping[str, str]
    many: tuple[str, ...] = ()

    @property
    def id_columns(self) -> list[str]:
        """The columns that hold node ids."""
        return [column for role, column in self.of.items() if role in (NODE, SOURCE, TARGET)]

    @property
    def columns(self) -> list[str]:
        """All columns that are read."""
        return [*self.of.values(), *self.many]

    def describe(self) -> str:
        """Returns what each column was taken for: "source <- src, target <- dst, no weight"."""
        told = [f"{role} <- {column}" for role, column in self.of.items()]
        if self.kind == "edges" and WEIGHT not in self.of:
            told.append("no weight")
        if self.kind in ("features", "labels", "split") and NODE not in self.of:
            told.insert(0, "nodes by row number")
        if self.many:
            what = RULES[self.kind].many if len(self.many) == 1 else f"{RULES[self.kind].many}s"
            told.append(f"{len(self.many)} {what} <- {first_few(self.many)}")
        return ", ".join(told)


@final
@dataclass(frozen=True)
class ColumnMapping:
    """The roles that a user gives to columns, over those that their names have.

    Args:
        pairs: (role, column), such as ("source", "paper"); the column may say its table: "edges.paper". To ignore a
            column that is known for the ids, labels or split of nodes, it must, unless another column of that table
            is given the role.
        given_as: how the user names the data, for the line to copy in an error.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    given_as: str = "DATA"
    _seen: set[str] = field(default_factory=set)

    @staticmethod
    def parse(text: str, *, given_as: str) -> "ColumnMapping":
        """Returns the mapping that `text`, "role=column, role=column", says; an empty one says nothing."""
        pairs = []
        for part in text.split(",") if text.strip() else []:
            role, equals, column = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise ConfigError(
                    f"columns should be pairs role=column, such as 'source=paper, ignore=timestamp'; got {text!r}. "
                    f"Roles: {', '.join(ROLES)}."
                )
            if role not in ROLES:
                raise ConfigError(unknown_name(role, ROLES, family="role of a column"))
            pairs.append((role, column))
        return ColumnMapping(tuple(pairs), given_as)

    def assign(self, kind: TableKind, names: Sequence[str], *, where: str, has_header: bool = True) -> Roles:
        """Returns the role of every column. Raises DataError where a name is not known, or a role lacks a column.

        Args:
            names: of the columns, in order; "0", "1", ... where the table has no header.
            where: the file, for errors.
        """
        self._seen.update(name.strip() for name in names)
        self._seen.update(f"{kind}.{name.strip()}" for name in names)
        return _Assignment(self, kind, names, where, has_header).roles()

    def check_used(self) -> None:
        """Raises ConfigError if a column that the user names was in no table."""
        for role, column in self.pairs:
            if column not in self._seen:
                names = {name for name in self._seen if ("." in name) == ("." in column)}
                raise ConfigError(f"columns, {role}={column}: {unknown_name(column, names, family='column')}")

    def role_of(self, kind: TableKind, name: str, names: Sequence[str]) -> str | None:
        """Returns the role that the user gives to a column of the table that has the columns `names`, if any."""
        name = name.strip()
        pairs = [(role, column) for role, column in self.pairs if role in RULES[kind].roles]
        for role, column in pairs:
            if column == f"{kind}.{name}":
                return role
        for role, column in pairs:
            if column == name and not (role == IGNORED and self._is_needed(kind, name, names)):
                return role
        return None

    def _is_needed(self, kind: TableKind, name: str, names: Sequence[str]) -> bool:
        """Whether a column holds the ids, labels or split of nodes by its name, and the user names no other for them.

        "ignore=id" is about a column without use, such as the numbers of edges, and not about the ids of nodes.
        """
        others = {other.strip() for other in names} - {name}
        others |= {f"{kind}.{other}" for other in others}
        known = known_role(name, kind)
        return known in (NODE, LABEL, SPLIT) and not any(
            role == known and column in others for role, column in self.pairs
        )

    def line_with(self, added: Sequence[tuple[str, str]]) -> str:
        """Returns the line that names the data with further pairs, to be copied to a command.

        A pair that gives another role to one of their columns is left out.
        """
        added = [(role, column.strip()) for role, column in added]
        kept = [(role, column) for role, column in self.pairs if column not in {column for _, column in added}]
        text = ", ".join(f"{role}={column}" for role, column in dict.fromkeys([*kept, *added]))
        return f'\n  "{self.given_as}(columns={text!r})"'


@final
class _Assignment:
    """The columns of one table on the way to their roles."""

    def __init__(
        self, mapping: ColumnMapping, kind: TableKind, names: Sequence[str], where: str, has_header: bool
    ) -> None:
        self._mapping = mapping
        self._kind = kind
        self._names = names
        self._where = where
        self._has_header = has_header
        self._rules = RULES[kind]
        self._of: dict[str, str] = {}
        self._many: list[str] = []
        self._unknown: list[str] = []

    def roles(self) -> Roles:
        given = {name: self._mapping.role_of(self._kind, name, self._names) for name in self._names}
        for name, role in given.items():
            if role is not None and role == self._rules.many:
                self._many.append(name)
            elif role not in (None, IGNORED):
                self._take(role, name)
        left = [name for name, role in given.items() if role is None]
        if self._has_header:
            self._take_known(left)
        elif self._kind == "edges":
            self._take_in_order(left)
        else:
            self._unknown = left
        self._take_any_name()
        missing = [role for role in self._rules.required if role not in self._of]
        if self._unknown or missing:
            raise DataError(self._refusal(missing))
        if self._kind == "labels" and len(self._many) == 1:
            self._take(LABEL, self._many.pop())
        of = {role: self._of[role] for role in self._rules.roles if role in self._of}
        # In the order of the table, whoever named them.
        return Roles(self._kind, of, tuple(name for name in self._names if name in self._many))

    def _take(self, role: str, name: str) -> None:
        if role in self._of:
            other = self._of[role]
            line = self._mapping.line_with([(role, other), (IGNORED, name)])
            raise DataError(f"{self._where}: both {other!r} and {name!r} name the {role}. Say which one it is:{line}")
        self._of[role] = name

    def _take_known(self, names: Sequence[str]) -> None:
        given = {*self._of, *([self._rules.many] if self._many else [])}
        for name in names:
            role = known_role(name, self._kind)
            if role is None or role in given:
                self._unknown.append(name)
            else:
                self._take(role, name)

    def _take_in_order(self, names: Sequence[str]) -> None:
        places = [role for role in (*self._rules.required, *self._rules.optional) if role not in self._of]
        for role, name in zip(places, names, strict=False):
            self._take(role, name)
        self._unknown = list(names[len(places) :])

    def _take_any_name(self) -> None:
        """Gives unknown names the role that any name may have, where there is one and nothing speaks against it."""
        if self._kind == "labels" and (LABEL in self._of or self._many):
            return
        if self._rules.many is not None:
            self._many += [name for name in self._unknown if not self._is_doubtful(name)]
            self._unknown = [name for name in self._unknown if self._is_doubtful(name)]
        elif self._kind in ("split", "nodes") and len(self._unknown) == 1:
            role, name = self._rules.required[0], self._unknown[0]
            if role not in self._of and not self._is_row_number(name):
                self._take(role, name)
                self._unknown = []

    def _is_row_number(self, name: str) -> bool:
        return self._has_header and is_row_number(name)

    def _is_doubtful(self, name: str) -> bool:
        # A lone column beside the ids is the label, whatever it is called: node,venue_id.
        is_label = self._kind == "labels" and NODE in self._of and len(self._unknown) == 1
        return self._is_row_number(name) or (self._has_header and not is_label and is_doubtful_feature(name))

    def _refusal(self, missing: Sequence[str]) -> str:
        numbers = [name for name in self._unknown if self._is_row_number(name)]
        strangers = [name for name in self._unknown if name not in numbers]
        told = []
        if numbers:
            told.append(f"{_quote(numbers)} holds row numbers, as pandas writes them unless told index=False")
        if missing:
            told.append(f"no column is known as the {' or the '.join(missing)}: it has {_quote(self._names)}")
        elif strangers and self._kind == "features":
            told.append(f"{_quote(strangers)} may be no feature: by the name it could be an id, a label or a split")
        elif strangers and self._has_header:
            told.append(f"{_quote(strangers)} is unknown: this table has {self._say_known()}")
        elif strangers:
            told.append(f"there is no header line, and {len(self._names)} columns: this table has {self._say_known()}")
        return f"{self._where}: {'; '.join(told)}. {self._cure(missing, strangers, numbers)}"

    def _say_known(self) -> str:
        return ", ".join(role for role in self._rules.roles if role != IGNORED)

    def _cure(self, missing: Sequence[str], strangers: Sequence[str], numbers: Sequence[str]) -> str:
        if self._kind == "edges" and len(self._names) == 1:
            return "Separate the columns by commas."
        if len(strangers) < len(missing):
            return f"Name its columns in the first line: {','.join((*self._rules.required, *self._rules.optional))}."
        wanted = [*missing, *([NODE] if self._rules.many and NODE not in self._of else [])]
        added = [(wanted.pop(0) if wanted else IGNORED, name) for name in strangers]
        added += [(IGNORED, name) for name in numbers]
        roles = f"\nRoles of columns: {', '.join(self._rules.roles)}." if strangers else ""
        if self._kind == "edges" and len(missing) == len(strangers) == len(self._names):
            roles += " If its first line is an edge, put a line source,target above it."
        return f"Say what it is behind the name of the data, for example:{self._mapping.line_with(added)}{roles}"


def _quote(names: Sequence[str]) -> str:
    shown = [repr(shorten(name, 40)) if name.strip() else "without a name" for name in names[:MOST_NAMED]]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"column{'s' if len(names) > 1 else ''} {', '.join(shown)}{more}"
