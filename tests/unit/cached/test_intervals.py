import itertools

import pytest

from laconic.cached.intervals import Intervals


def starts(intervals, num_epochs):
    return [epoch for epoch in range(1, num_epochs + 1) if intervals.begins_with(epoch)]


def test_intervals_are_of_one_length_or_grow_to_it():
    assert starts(Intervals(3), 10) == [1, 4, 7, 10]
    assert starts(Intervals(1), 4) == starts(Intervals(1, is_gradual=True), 4) == [1, 2, 3, 4]
    assert starts(Intervals(3, is_gradual=True), 12) == [1, 2, 4, 7, 10]
    assert starts(Intervals(20, is_gradual=True), 80) == [1, 2, 4, 8, 16, 32, 52, 72]


@pytest.mark.parametrize("every", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("is_gradual", [False, True])
def test_numbers_follow_each_other_without_a_gap(every, is_gradual):
    intervals = Intervals(every, is_gradual)
    numbers = [intervals.number(epoch) for epoch in range(1, 100)]
    assert numbers[0] == 0
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(numbers))
    assert all(intervals.number(intervals.first_epoch(number)) == number for number in set(numbers))
    assert max(numbers.count(number) for number in set(numbers)) <= every
