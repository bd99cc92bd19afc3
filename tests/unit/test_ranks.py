"""Ranks as torchrun's variables number them, and how they are named."""

import pytest

from laconic.errors import ConfigError
from laconic.ranks import RankAddress, is_loopback, name_ranks, read_rank_address

GOOD = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_torchruns_variables_say_who_and_where():
    assert read_rank_address(GOOD) == RankAddress(1, 3, "127.0.0.1", 29500, launcher_keeps_store=False)


def test_rank_0_keeps_the_store_unless_the_launcher_does():
    assert read_rank_address({**GOOD, "RANK": "0"}).keeps_store
    assert not read_rank_address(GOOD).keeps_store
    under_torchrun = read_rank_address({**GOOD, "RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert not under_torchrun.keeps_store
    assert under_torchrun.keeper == "the launcher"


@pytest.mark.parametrize("name", GOOD)
def test_a_variable_that_is_missing_is_named(name):
    with pytest.raises(ConfigError, match=f"{name} is not set.*torchrun"):
        read_rank_address({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "3"), ("RANK", "-1"), ("RANK", "one"), ("WORLD_SIZE", "0"), ("MASTER_PORT", "70000")]
)
def test_a_variable_that_cannot_be_is_named(name, value):
    with pytest.raises(ConfigError, match=f"{name} should be a whole number.*{value}"):
        read_rank_address({**GOOD, name: value})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        # Whatever it resolves to here, other machines may know it by another address.
        ("node01", False),
    ],
)
def test_an_address_that_never_leaves_the_machine_is_known(address, expected):
    assert is_loopback(address) is expected


def test_ranks_are_named_and_of_many_the_first():
    assert name_ranks([2]) == "rank 2"
    assert name_ranks([1, 2]) == "ranks 1, 2"
    assert name_ranks(range(32)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more"
