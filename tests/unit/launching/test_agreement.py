"""Ranks that were started alike go on; others hear what differs, all of them the same."""

import pytest

from laconic.comm import Communicator, Ledger, LocalTransport, Transport, run_ranks
from laconic.errors import ConfigError
from laconic.launching.agreement import check_agreement, describe_difference

FACTS = {"laconic": "0.1.0", "training.lr": "0.01", "store": "ab12"}


def check(transport: Transport, facts: dict[str, str]) -> tuple[str, list]:
    communicator = Communicator(transport, Ledger(transport.rank))
    try:
        with communicator.ledger.phase("forward", layer=1):
            check_agreement(communicator, facts)
        error = ""
    except ConfigError as problem:
        error = str(problem)
    return error, communicator.ledger.take(0)


def test_ranks_that_agree_exchange_a_digest_and_nothing_else():
    orders = [FACTS, dict(reversed(FACTS.items())), FACTS]
    for error, records in run_ranks(3, lambda transport: check(transport, orders[transport.rank])):
        assert error == ""
        assert {(record.phase, record.operation) for record in records} == {("setup", "all_gather")}
        assert {record.num_bytes for record in records} == {64}


def test_ranks_that_disagree_all_hear_the_same():
    facts = [FACTS, {**FACTS, "training.lr": "0.02", "a setting of rank 1 alone": "é"}, FACTS]
    results = run_ranks(3, lambda transport: check(transport, facts[transport.rank]))
    assert len({error for error, _ in results}) == 1
    assert results[0][0] == (
        "Ranks disagree: a setting of rank 1 alone is absent on ranks 0, 2 and é on rank 1; training.lr is 0.01 on "
        "ranks 0, 2 and 0.02 on rank 1. Start all ranks with the same settings, the same data and the same version of "
        "the code."
    )
    assert {record.phase for _, records in results for record in records} == {"setup"}


def test_one_rank_agrees_with_itself():
    assert check(LocalTransport(), FACTS) == ("", [])


def test_long_values_are_shortened_around_what_differs():
    message = describe_difference([{"model": "x" * 500 + end + "y" * 500} for end in ("one", "two")])
    assert "model is ..." + "x" * 20 + "one" + "y" * 37 + "... on rank 0" in message
    assert "..." + "x" * 20 + "two" in message
    assert len(message) < 400


def test_many_differences_are_counted():
    message = describe_difference([{f"key {number}": str(rank) for number in range(8)} for rank in range(20)])
    assert "key 4 is 0 on rank 0, 1 on rank 1, 2 on rank 2, 3 on rank 3 and otherwise on others" in message
    assert "3 more differ" in message
    assert "key 5" not in message


@pytest.mark.parametrize(("values", "told"), [(["", "1"], "is empty on rank 0 and 1 on rank 1")])
def test_an_empty_value_is_named(values, told):
    assert told in describe_difference([{"key": value} for value in values])
