"""Names of columns and the roles that they have, for each kind of table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

TableKind = Literal["edges", "features", "labels", "split", "nodes"]

IGNORED = "ignore"
NODE, LABEL, SPLIT, FEATURE = "node", "label", "split", "feature"
SOURCE, TARGET, WEIGHT = "source", "target", "weight"

# By role, squeezed: small letters and digits only, so that "Source ID" and source_id are one name.
_KNOWN: dict[str, tuple[str, ...]] = {
    SOURCE: (
        *("source", "src", "from", "u", "node1", "id1"),
        *("sourceid", "srcid", "fromid", "startid", "sourcenode", "fromnode", "sourcenodeid", "fromnodeid"),
    ),
    TARGET: (
        *("target", "destination", "dst", "dest", "to", "v", "node2", "id2"),
        *("targetid", "destinationid", "dstid", "toid", "endid", "targetnode", "tonode", "targetnodeid", "tonodeid"),
    ),
    WEIGHT: ("weight", "edgeweight", "w"),
    NODE: ("node", "id", "nodeid"),
    LABEL: ("label", "labels", "class", "y"),
    SPLIT: ("split", "set", "fold"),
}

# Features may have any name. By these, a column among them may be something else, or may not.
_DOUBTFUL_FEATURES = ("y", "target", "set", "fold", "trainmask", "valmask", "testmask")
_LIKE_AN_ID = re.compile(r"(^|[_\s.:-])(id|ids|uid|uuid|guid)$")
_LIKE_AN_ID_IN_CAMEL_CASE = re.compile(r"[a-z](Id|ID)$")

# Row numbers, which pandas writes unless told not to; the second name is what it gives them when it reads them back.
_ROW_NUMBERS = ("", "unnamed0", "index", "level0")

MOST_NAMED = 6
"""How many names a message lists."""


@final
@dataclass(frozen=True)
class Rules:
    """The roles that columns of one kind of table may have.

    Args:
        required, optional: roles of one column each.
        many: the role that any number of columns may have, under any name; None where there is none.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    many: str | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.required, *self.optional, *([self.many] if self.many else []), IGNORED)


RULES: dict[TableKind, Rules] = {
    "edges": Rules((SOURCE, TARGET), (WEIGHT,)),
    "features": Rules((), (NODE, LABEL, SPLIT), many=FEATURE),
    "labels": Rules((), (NODE,), many=LABEL),
    "split": Rules((SPLIT,), (NODE,)),
    "nodes": Rules((NODE,), ()),
}
ROLES = tuple(dict.fromkeys(role for rules in RULES.values() for role in rules.roles))


def known_role(name: str, kind: TableKind) -> str | None:
    """Returns the role that a name has in a table of this kind; None if the name is not known."""
    squeezed = _squeeze(name)
    if kind == "features" and squeezed in _DOUBTFUL_FEATURES:
        return None
    return next((role for role in RULES[kind].roles if squeezed in _KNOWN.get(role, ())), None)


def is_row_number(name: str) -> bool:
    """Whether a column holds row numbers, by its name."""
    return _squeeze(name) in _ROW_NUMBERS


def is_doubtful_feature(name: str) -> bool:
    """Whether a column among the features may be an id, a label or a split, by its name."""
    stripped = name.strip()
    is_id = _LIKE_AN_ID.search(stripped.casefold()) or _LIKE_AN_ID_IN_CAMEL_CASE.search(stripped)
    return bool(is_id) or _squeeze(name) in _DOUBTFUL_FEATURES


def first_few(names: Sequence[str]) -> str:
    """Returns the names for a message; of many, the first ones: "a, b, c, d, e, f, ..."."""
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


def _squeeze(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
