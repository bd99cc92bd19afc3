import pytest

from laconic.comm.ledger import PHASES, Ledger
from laconic.records import LedgerRecord, format_record, parse_record


def test_traffic_is_added_up_by_phase_layer_and_operation():
    ledger = Ledger(rank=3)
    for _ in range(2):
        with ledger.phase("forward", layer=2):
            ledger.count("all_to_all", 2, 80, 1, 40)
    with ledger.phase("backward", layer=2):
        ledger.count("all_to_all", 1, 40, 2, 80)
    assert ledger.take(epoch=7) == [
        LedgerRecord(7, 3, "forward", 2, "all_to_all", "received", 2, 80),
        LedgerRecord(7, 3, "forward", 2, "all_to_all", "sent", 4, 160),
        LedgerRecord(7, 3, "backward", 2, "all_to_all", "received", 2, 80),
        LedgerRecord(7, 3, "backward", 2, "all_to_all", "sent", 1, 40),
    ]


def test_taking_begins_anew():
    ledger = Ledger(rank=0)
    ledger.count("broadcast", 1, 8, 0, 0)
    assert len(ledger.take(epoch=0)) == 1
    assert ledger.take(epoch=1) == []


def test_phases_nest_and_come_back_even_after_an_error():
    ledger = Ledger(rank=0)

    def fail_inside() -> None:
        with ledger.phase("evaluation"), ledger.phase("forward", layer=1):
            raise KeyError

    with ledger.phase("gradients"):
        with pytest.raises(KeyError):
            fail_inside()
        ledger.count("all_reduce", 1, 1, 1, 1)
    ledger.count("all_gather", 1, 1, 1, 1)
    assert {(record.phase, record.layer, record.operation) for record in ledger.take(epoch=0)} == {
        ("gradients", -1, "all_reduce"),
        ("setup", -1, "all_gather"),
    }


def test_records_are_in_the_order_of_the_phases_whatever_came_first():
    ledger = Ledger(rank=0)
    for phase in reversed(PHASES):
        for layer in (10, 2, -1):
            with ledger.phase(phase, layer=layer):
                ledger.count("all_to_all", 1, 1, 0, 0)
                ledger.count("all_gather", 1, 1, 0, 0)
    found = [(record.phase, record.layer, record.operation) for record in ledger.take(epoch=0)]
    assert found == [
        (phase, layer, operation)
        for phase in PHASES
        for layer in (-1, 2, 10)
        for operation in ("all_gather", "all_to_all")
    ]


def test_where_nothing_went_there_is_no_row():
    ledger = Ledger(rank=0)
    ledger.count("all_to_all", 0, 0, 0, 0)
    ledger.count("broadcast", 0, 0, 1, 8)
    assert [record.direction for record in ledger.take(epoch=0)] == ["received"]


def test_an_unknown_phase_is_our_own_mistake():
    with pytest.raises(AssertionError, match="forwards"), Ledger(rank=0).phase("forwards"):
        pass


def test_counts_beyond_64_bits_stay_exact_and_come_back_from_their_line():
    ledger = Ledger(rank=0)
    ledger.count("all_to_all", 1, 1 << 70, 0, 0)
    ledger.count("all_to_all", 1, 1, 0, 0)
    [record] = ledger.take(epoch=1)
    assert record.num_bytes == (1 << 70) + 1
    assert parse_record(format_record(record)) == record


def test_a_position_is_said_in_words_with_its_layer_and_epoch():
    ledger = Ledger(0)
    assert ledger.purpose == "the set-up"
    ledger.epoch = 3
    with ledger.phase("forward", layer=2):
        assert ledger.purpose == "the forward pass of a training step, layer 2, epoch 3"
    with ledger.phase("forward"):
        assert ledger.purpose == "the loss of a training step, epoch 3"
    for phase in PHASES:
        with ledger.phase(phase):
            assert ledger.purpose.endswith(", epoch 3")
