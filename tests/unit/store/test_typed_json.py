import json
from dataclasses import asdict, dataclass

import pytest

from laconic.store.typed_json import TypedJsonError, decode


@dataclass(frozen=True)
class Leg:
    length: float
    joints: tuple[int, ...]


@dataclass(frozen=True)
class Spider:
    name: str
    age: int | None
    is_hairy: bool
    legs: dict[str, Leg]


SPIDER = Spider("Boris", None, True, {"front": Leg(1.5, (1, 2)), "back": Leg(2.5, ())})


def test_what_is_encoded_comes_back() -> None:
    assert decode(Spider, json.loads(json.dumps(asdict(SPIDER)))) == SPIDER


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("name",), 3, "name should be a text, but is 3"),
        (("age",), "old", "age should be .*, but is 'old'"),
        (("is_hairy",), 1, "is_hairy should be true or false, but is 1"),
        (("legs",), [], r"legs should be an object, but is \[\]"),
        (("legs", "front", "joints"), [1, "two"], r"legs\.front\.joints\[1\] should be a whole number, but is 'two'"),
        (("legs", "front", "joints"), [True], r"legs\.front\.joints\[0\] should be a whole number, but is True"),
        (("legs", "front"), {"length": 1.0}, r"legs\.front\.joints is missing"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(path: tuple[str, ...], value: object, said: str) -> None:
    fields = json.loads(json.dumps(asdict(SPIDER)))
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(TypedJsonError, match=said):
        decode(Spider, fields)


def test_something_else_altogether_is_refused() -> None:
    with pytest.raises(TypedJsonError, match="should be an object"):
        decode(Spider, 7)
