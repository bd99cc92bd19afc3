"""JSON to typed dataclasses: every key must be there and of the type that its field declares.

decode(Point, {"x": 1, "y": 2}) is Point(1, 2); without "y" it is a TypedJsonError that says "y is missing".
Knows dataclasses of int, float, str, bool, `X | None`, tuple[X, ...] and dict[str, X]; the other way is `asdict`.
"""

import dataclasses
import types
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


class TypedJsonError(ValueError):
    """Says which key is wrong, and how."""


def decode(kind: type[Value], value: Any) -> Value:
    """Returns the dataclass `kind` that `value`, parsed JSON, describes."""
    return _decode(kind, value, "")  # type: ignore[no-any-return]


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, _expect(dict, value, where), where)
    if origin is tuple:
        items = _expect(list, value, where)
        return tuple(_decode(arguments[0], item, f"{where}[{k}]") for k, item in enumerate(items))
    if origin is dict:
        pairs = _expect(dict, value, where)
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in pairs.items()}
    if origin is types.UnionType:
        if not isinstance(value, arguments):
            raise TypedJsonError(f"{where} should be {_say(kind)}, but is {_shorten(value)}")
        return value
    return _expect(kind, value, where)


def _decode_fields(kind: Any, value: dict[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    prefix = f"{where}." if where else ""
    for name in hints:
        if name not in value:
            raise TypedJsonError(f"{prefix}{name} is missing")
    return kind(**{name: _decode(hint, value[name], f"{prefix}{name}") for name, hint in hints.items()})


def _expect(kind: type, value: Any, where: str) -> Any:
    # JSON's true is an int to Python, and never meant as one.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypedJsonError(f"{where or 'the whole'} should be {_say(kind)}, but is {_shorten(value)}")
    return value


def _say(kind: Any) -> str:
    said = {dict: "an object", list: "a list", int: "a whole number", str: "a text", bool: "true or false"}
    return said.get(kind, str(getattr(kind, "__name__", kind)))


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
