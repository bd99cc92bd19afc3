"""Halo rows that training rows see, and the groups in which they take turns."""

import numpy as np
import pytest
import torch

from laconic.cached.turns import Turns, copies_outweigh, halo_seen, turns_for
from laconic.graph import Adjacency
from laconic.graph.operators.linear import LinearOperator
from laconic.graph.operators.slices import columns_of

# Owned rows 0, 1, 2 receive from halo rows 3, 4, 5 and from each other in a line: 5 -> 2 -> 1 -> 0, 4 -> 1, 3 -> 0.
LINE = Adjacency.from_edges(np.array([1, 2, 3, 4, 5]), np.array([0, 1, 0, 1, 2]), 3, 6)


@pytest.mark.parametrize(("num_hops", "expected"), [(0, []), (1, [0]), (2, [0, 1]), (3, None), (9, None)])
def test_halo_rows_are_seen_by_way_of_owned_rows(num_hops, expected):
    seen = halo_seen(LINE, np.array([True, False, False]), num_hops)
    assert seen is None if expected is None else seen.tolist() == expected


def test_without_training_rows_nothing_is_seen():
    assert halo_seen(LINE, np.zeros(3, bool), 5).tolist() == []


@pytest.mark.parametrize("taking_part", [None, np.array([1, 2, 4, 7, 8])])
def test_every_row_that_takes_part_has_one_turn(taking_part):
    halo = torch.arange(9)[:, None]
    turns = Turns(2, 3, taking_part)
    groups = [turns.of_turn(turns.among(halo), turn) for turn in range(3)]
    everyone = torch.arange(9) if taking_part is None else torch.from_numpy(taking_part)
    assert sorted(torch.cat(groups).flatten().tolist()) == everyone.tolist()
    whole = torch.cat([torch.tensor([[-2], [-1]]), halo])
    room = None
    for turn, group in enumerate(groups):
        rows, room = turns.rows(whole, turn, room)
        assert torch.equal(rows, torch.cat([whole[:2], group]))
        assert torch.equal(halo[turns.columns(turn)], group)


def test_gradients_flow_through_at_most_twice_as_many_halo_rows_as_owned_ones():
    assert [turns_for(10, num_halo) for num_halo in (0, 1, 20, 21, 60, 61)] == [1, 1, 1, 2, 3, 4]


@pytest.mark.parametrize("columns", [slice(1, None, 2), slice(2, 5), np.array([5, 0, 3]), np.array([], np.int64)])
def test_columns_of_a_matrix_are_a_matrix(columns):
    rng = np.random.default_rng(0)
    values, scale = rng.random(LINE.num_edges), rng.random(6)
    whole = LinearOperator(LINE, values, None, scale)
    part = columns_of(whole, columns)
    unit = torch.eye(6, dtype=torch.float64)
    numbers = np.arange(6)[columns]
    expected = (whole @ unit)[:, numbers.tolist()]
    assert torch.equal(part @ torch.eye(len(numbers), dtype=torch.float64), expected)


def test_features_much_wider_than_layers_are_not_copied_for_turns():
    """Rows left out spare four times the widths that layers read; copies may be eight times that."""
    # 10 owned rows, 40 of others in two groups: 30 rows are copied, 20 are spared.
    assert not copies_outweigh(10, 40, 2, width_constant=64 * 3, width_changing=9)
    assert copies_outweigh(10, 40, 2, width_constant=64 * 3 + 1, width_changing=9)
    assert not copies_outweigh(10, 40, 1, width_constant=10_000, width_changing=1)
