"""Members of a family by name: "metis(balance=1.05)" <-> `Metis(balance=1.05)`.

A spec is a name and keyword arguments, written as a Python call of literals. Arguments may be specs themselves
("error_feedback(codec=quantize(bits=4))"). Each family keeps one literal table `{name: class}`, whose classes are
frozen dataclasses: the object *is* the configuration, so `format_spec(parse_spec(text))` gives the text back.

    parse_spec("sbm(nodes=1000, classes=5)", GENERATORS, family="dataset")
"""

import ast
import dataclasses
import difflib
import inspect
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar, final

from laconic.errors import ConfigError

Member = TypeVar("Member")

# Python 3.11 counts the depth of the syntax tree that it builds once for all threads, and fails when two of them build
# one. Whatever reads Python literals where threads may be (numpy, the header of a file) does it one at a time.
one_syntax_tree = threading.Lock()

_KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


@final
class LazyTable(Mapping[str, type[Member]]):
    """A family's members by name, each imported when it is asked for: a run loads the one that it uses.

    Args:
        homes: where each member lives, as "package.module:Class".
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = dict(homes)

    def __getitem__(self, name: str) -> type[Member]:
        module, _, member = self._homes[name].partition(":")
        kind: type[Member] = getattr(import_module(module), member)
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes


def parse_spec(text: str, table: Mapping[str, type[Member]], *, family: str) -> Member:
    """Returns the member that `text` names, built with the arguments given.

    Args:
        text: a name, or a name with keyword arguments: "ldg" or "ldg(slack=1.1)".
        table: the family's members by name.
        family: what a member is called in errors, such as "partitioner".
    """
    name, arguments = split_spec(text, family=family)
    if name not in table:
        raise ConfigError(unknown_name(name, table, family=family))
    member = table[name]
    fields = {field.name: field for field in dataclasses.fields(member) if field.init}  # type: ignore[arg-type]
    for key, value in arguments.items():
        if key not in fields:
            raise ConfigError(unknown_name(key, fields, family=f"{family} {name} argument"))
        default = fields[key].default
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            arguments[key] = float(value)
        elif default is not dataclasses.MISSING and default is not None and type(default) is not type(value):
            what = _KINDS.get(type(default), type(default).__name__)
            raise ConfigError(f"{family} {name}: {key} should be {what}, such as {default!r}; got {value!r}.")
    try:
        return member(**arguments)
    except TypeError as error:
        raise ConfigError(f"{family} {text!r} cannot be built: {error}.") from error


def split_spec(text: str, *, family: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the keyword arguments of a spec, without looking the name up."""
    try:
        with one_syntax_tree:
            tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ConfigError(_malformed(text, family)) from error
    if isinstance(tree, ast.Name):
        return tree.id, {}
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        raise ConfigError(_malformed(text, family))
    arguments: dict[str, Any] = {}
    for keyword in tree.keywords:
        if keyword.arg is None:
            raise ConfigError(_malformed(text, family))
        arguments[keyword.arg] = _literal(keyword.value, text, family)
    return tree.func.id, arguments


def format_spec(member: Any, table: Mapping[str, type[Any]]) -> str:
    """Returns the shortest spec that gives `member` back: arguments at their default are left out."""
    name = next(name for name, kind in table.items() if kind is type(member))
    # In the order of the constructor: fields that a family shares are declared first, but stand last there.
    given = [
        f"{key}={getattr(member, key)!r}"
        for key, argument in inspect.signature(type(member)).parameters.items()
        if getattr(member, key) != argument.default
    ]
    return f"{name}({', '.join(given)})" if given else name


def unknown_name(name: str, choices: Iterable[str], *, family: str) -> str:
    """Returns the error text for a name that is not among `choices`, with the nearest one suggested."""
    ordered = sorted(choices)
    folded = {choice.casefold(): choice for choice in ordered}
    near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    # Of names that are as near, the one with two letters swapped: "gnc" is gcn, not sgc.
    near.sort(key=lambda choice: sorted(choice) != sorted(name.casefold()))
    hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
    listed = ", ".join(ordered) if ordered else "none"
    return f"Unknown {family} {shorten(name)!r}. Choices: {listed}.{hint}"


def shorten(text: str, most: int = 60) -> str:
    """Returns `text`, or its first `most` letters: whatever comes, an error should stay a paragraph."""
    return text if len(text) <= most else f"{text[:most]}..."


def _literal(node: ast.expr, text: str, family: str) -> Any:
    # A nested spec stays text: the family that owns the argument parses it with its own table.
    if isinstance(node, ast.Name | ast.Call):
        return ast.unparse(node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise ConfigError(_malformed(text, family)) from error


def _malformed(text: str, family: str) -> str:
    return (
        f"{family} {text!r} cannot be read. Write a name, or a name with keyword arguments, such as "
        f'"name" or "name(count=4, share=0.5)".'
    )
