"""A result that is under way: waited for once, and then there."""

import gc
import weakref

import pytest
import torch

from laconic.comm import Pending


def test_an_operation_is_waited_for_once_and_its_result_stays():
    waits = []
    pending = Pending(lambda: waits.append("waited") or 7)
    assert waits == []
    assert [pending.wait(), pending.wait()] == [7, 7]
    assert waits == ["waited"]


def test_what_is_made_of_a_result_is_made_when_it_is_waited_for_and_once():
    made = []
    rows = Pending.done(torch.ones(6))
    pending = rows.then(lambda flat: made.append(1) or flat.view(-1, 2))
    assert made == []
    assert [pending.wait().shape, pending.wait().shape] == [(3, 2), (3, 2)]
    assert made == [1]


def test_after_the_wait_nothing_of_the_operation_is_held():
    buffer = torch.ones(3)
    held = weakref.ref(buffer)
    pending = Pending(lambda buffer=buffer: float(buffer.sum())).then(lambda total: total / 3)
    del buffer
    assert held() is not None
    assert pending.wait() == 1.0
    gc.collect()
    assert held() is None


def test_a_wait_that_failed_is_tried_again():
    answers = iter([ConnectionError("gone"), None])

    def finish():
        error = next(answers)
        if error is not None:
            raise error
        return 5

    pending = Pending(finish)
    with pytest.raises(ConnectionError, match="gone"):
        pending.wait()
    assert pending.wait() == 5
