import itertools

import pytest

from laconic.isolated.super_epochs import SuperEpochs


def starts(super_epochs, num_epochs):
    return [epoch for epoch in range(1, num_epochs + 1) if super_epochs.begins_with(epoch)]


def test_super_epochs_are_of_one_length_or_grow_to_it():
    assert starts(SuperEpochs(3), 10) == [1, 4, 7, 10]
    assert starts(SuperEpochs(1), 4) == starts(SuperEpochs(1, is_gradual=True), 4) == [1, 2, 3, 4]
    assert starts(SuperEpochs(3, is_gradual=True), 12) == [1, 2, 4, 7, 10]
    assert starts(SuperEpochs(20, is_gradual=True), 80) == [1, 2, 4, 8, 16, 32, 52, 72]


@pytest.mark.parametrize("every", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("is_gradual", [False, True])
def test_numbers_follow_each_other_without_a_gap(every, is_gradual):
    super_epochs = SuperEpochs(every, is_gradual)
    numbers = [super_epochs.number(epoch) for epoch in range(1, 100)]
    assert numbers[0] == 0
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(numbers))
    assert all(super_epochs.number(super_epochs.first_epoch(number)) == number for number in set(numbers))
    assert max(numbers.count(number) for number in set(numbers)) <= every
