"""How a rank waits, with the notes of others in a store of this process."""

import pytest
import torch
from torch.distributed import HashStore

from laconic.comm.transport import _watch
from laconic.comm.transport._combine import combine, combine_into
from laconic.comm.transport._differences import Asked
from laconic.comm.transport._notes import Notes
from laconic.comm.transport._watch import Watch
from laconic.errors import CommunicationError

LOSS = Asked("all_reduce", "the loss of a training step", "all_reduce")
SCORES = Asked("all_reduce", "an evaluation", "all_reduce")


class SlowWork:
    """An operation that is over when it was asked so many times."""

    def __init__(self, num_waits: int) -> None:
        self.num_waits = num_waits

    def wait(self, moment) -> None:
        self.num_waits -= 1
        if self.num_waits > 0:
            raise RuntimeError("not yet")

    def is_completed(self) -> bool:
        return False


def watches(num_ranks: int) -> list[Watch]:
    store = HashStore()
    return [Watch(Notes(store, rank, num_ranks), "rank 0", 60.0) for rank in range(num_ranks)]


def test_a_long_wait_is_said_with_the_ranks_that_it_is_for(monkeypatch, caplog):
    monkeypatch.setattr(_watch, "_LONG_SECONDS", 0.0)
    first, second, _ = watches(3)
    second.notes.wait_at(7, LOSS)
    first.remember(7, LOSS)
    first.wait(SlowWork(2), 7, LOSS)
    assert caplog.messages == ["Waiting since 0 s for rank 2 at operation 7 (the loss of a training step: all_reduce)."]


def test_what_a_rank_finds_different_all_ranks_hear_in_the_same_words():
    first, second, third = watches(3)
    first.remember(7, SCORES)
    first.wait(SlowWork(2), 7, SCORES)
    second.remember(7, LOSS)
    # It is at a later operation by now; what it asked for before counts.
    second.remember(8, LOSS)
    third.remember(7, LOSS)
    told = []
    for watch, number, asked in [(second, 8, LOSS), (first, 7, SCORES), (third, 7, LOSS)]:
        with pytest.raises(CommunicationError) as raised:
            watch.wait(SlowWork(2), number, asked)
        told.append(str(raised.value))
    assert len(set(told)) == 1
    assert told[0].startswith("Ranks do different things at operation 7: rank 0 is at an evaluation (all_reduce); ")
    assert "rank 1 is at the loss of a training step (all_reduce). All ranks have to call the model" in told[0]


@pytest.mark.parametrize(("num_operations", "has_left"), [(7, True), (8, False), (None, False)])
def test_a_rank_that_left_is_missed_only_where_it_never_came(num_operations, has_left):
    first, second = watches(2)
    first.remember(7, LOSS)
    # None: it ended because of trouble with a third, which is to be named.
    second.notes.close(num_operations)
    if not has_left:
        first.wait(SlowWork(3), 7, LOSS)
        return
    with pytest.raises(CommunicationError, match=r"Rank 1 has left, while this rank is at operation 7 \(the loss of"):
        first.wait(SlowWork(3), 7, LOSS)


@pytest.mark.parametrize("own", [0, 1, 2, 3, None])
@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int8])
def test_parts_are_combined_in_place_as_they_are_apart(own, op, dtype):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(50, generator=generator).mul(3).to(dtype) for _ in range(4)]
    wanted = combine(parts, op)
    out = torch.empty(50, dtype=dtype) if own is None else parts[own]
    combine_into(out, parts, op)
    assert torch.equal(out, wanted)
