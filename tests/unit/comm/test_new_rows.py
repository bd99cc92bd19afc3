"""Rows that are new to a list, and memories that follow its changes."""

import numpy as np
import torch

from laconic.comm.codecs.base import Memory
from laconic.comm.codecs.error_feedback import ErrorFeedback
from laconic.comm.message_sizes import exchange_bytes, message_bytes
from laconic.comm.new_rows import NewRows, mark_new


def test_rows_after_those_that_stay_are_new():
    marks = mark_new([np.array([0, 2]), np.array([], int)], [4, 1], None)
    assert [mark.tolist() for mark in marks] == [[False, False, True, True], [True]]


def test_rows_that_no_message_has_held_stay_new():
    before = [torch.tensor([False, True, True])]
    assert mark_new([np.array([0, 2])], [3], before)[0].tolist() == [False, True, True]


def test_a_memory_keeps_rows_and_takes_new_ones():
    memory = Memory({"value": torch.arange(6.0).view(3, 2), "turn": torch.tensor([5])})
    kept = memory.keep_rows(torch.tensor([2, 0]))
    assert kept.tensors["value"].tolist() == [[4, 5], [0, 1]]
    assert kept.tensors["turn"].tolist() == [5]
    new = Memory({"value": torch.full((1, 2), 9.0)})
    kept.add_rows(new, torch.tensor([False, True, False]))
    assert kept.tensors["value"].tolist() == [[4, 5], [9, 9], [0, 1]]
    # The one that was there before is as it was.
    assert memory.tensors["value"].shape == (3, 2)


def test_new_rows_cost_what_they_are_both_ways():
    codec, counts, new = ErrorFeedback(), np.array([[0, 50], [40, 0]]), np.array([[0, 3], [0, 0]])
    rates = np.full((2, 2), 8.0)
    sizes = exchange_bytes(codec, counts, rates, 16, 4, "forward", new)
    assert sizes[0, 1] == message_bytes(codec, 47, 16, 8.0, 4) + 3 * 16 * 4
    assert sizes[1, 0] == message_bytes(codec, 40, 16, 8.0, 4)
    assert exchange_bytes(codec, counts, rates, 16, 4, "backward", new).tolist() == sizes.T.tolist()


def test_what_is_new_is_the_same_after_a_checkpoint():
    new = NewRows(
        np.array([[0, 1], [0, 0]]),
        [torch.zeros(0, dtype=bool), torch.tensor([False, True])],
        [torch.zeros(0, dtype=bool)] * 2,
    )
    again = NewRows.of_state(new.state(), (0, 2), (0, 0))
    assert again.counts.tolist() == new.counts.tolist()
    assert [mark.tolist() for mark in again.sent] == [[], [False, True]]
