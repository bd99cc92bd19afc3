"""Specs: a text names a member with its arguments, and the member gives the text back."""

from dataclasses import dataclass

import pytest

from laconic.errors import ConfigError
from laconic.specs import format_spec, parse_spec, split_spec, unknown_name


@dataclass(frozen=True)
class Cut:
    share: float = 0.5
    count: int = 3
    codec: str = "identity"


@dataclass(frozen=True)
class Keep:
    path: str = ""


TABLE = {"cut": Cut, "keep": Keep}


def parse(text):
    return parse_spec(text, TABLE, family="tool")


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("cut", Cut()),
        ("cut()", Cut()),
        (" cut(count=4, share=0.25) ", Cut(0.25, 4)),
        ("cut(share=1)", Cut(1.0)),
        ("cut(codec=quantize(bits=4))", Cut(codec="quantize(bits=4)")),
        ("keep(path='a b.npy')", Keep("a b.npy")),
    ],
)
def test_a_text_names_a_member(text, member):
    assert parse(text) == member


@pytest.mark.parametrize("member", [Cut(), Cut(0.25), Cut(1.0, 7, "topk(k=3)"), Keep("x y")])
def test_a_member_gives_its_text_back(member):
    assert parse(format_spec(member, TABLE)) == member


def test_defaults_are_left_out_of_the_text():
    assert format_spec(Cut(count=9), TABLE) == "cut(count=9)"
    assert format_spec(Cut(), TABLE) == "cut"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cutt", r"Unknown tool 'cutt'\. Choices: cut, keep\. Did you mean 'cut'\?"),
        ("cut(shar=0.5)", r"Unknown tool cut argument 'shar'.*Did you mean 'share'"),
        ("cut(count=2.5)", "count should be a whole number, such as 3; got 2.5"),
        ("cut(share='a')", "share should be a number, such as 0.5; got 'a'"),
        ("CUT", "Did you mean 'cut'"),
        ("cut(count=True)", "count should be a whole number"),
        ("cut(0.5)", "cannot be read"),
        ("cut(", "cannot be read"),
        ("", "cannot be read"),
        ("cut(**{})", "cannot be read"),
        ("cut(count=1+1)", "cannot be read"),
    ],
)
def test_a_text_that_names_nothing_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_a_text_is_never_run():
    with pytest.raises(ConfigError):
        parse("cut(count=__import__('os').getpid())")
    assert split_spec("cut(count=f(x=1))", family="tool") == ("cut", {"count": "f(x=1)"})


@pytest.mark.parametrize(
    ("name", "choices", "near"),
    [
        ("gnc", ("sgc", "gcn", "gat"), "gcn"),
        ("Cora", ("cora", "pubmed"), "cora"),
        ("F", ("f", "F1"), "f"),
    ],
)
def test_the_nearest_name_has_the_same_letters_whatever_their_case_and_order(name, choices, near):
    assert unknown_name(name, choices, family="model").endswith(f"Did you mean {near!r}?")


def test_nothing_is_suggested_for_a_name_unlike_all():
    assert "Did you mean" not in unknown_name("transformer", ("gcn", "sgc"), family="model")
