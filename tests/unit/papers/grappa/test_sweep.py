"""Sweeps: every rank meets every chunk, pairs come together evenly, and ranks do not all want the same chunk."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from laconic.errors import ConfigError
from laconic.papers.grappa.sweep import Sweep, plan_sweep
from laconic.papers.grappa.sweeping import SweepPlan

# (chunks, ranks, variable chunks): one chunk each, several, numbers that do not divide, all that there are.
SHAPES = [(4, 4, 1), (5, 5, 2), (8, 4, 2), (8, 4, 6), (7, 3, 2), (7, 3, 4), (9, 2, 3), (12, 5, 4), (2, 2, 1)]
SCHEDULES = ["cyclic", "random", "affinity"]


def even_base(num_chunks, num_ranks):
    """Neighbouring chunks to one rank, as ranks read a store."""
    bounds = [num_chunks * rank // num_ranks for rank in range(num_ranks + 1)]
    return tuple(tuple(range(*bound)) for bound in pairwise(bounds))


def random_bridges(num_chunks, seed=0):
    bridges = np.random.default_rng(seed).integers(0, 50, (num_chunks, num_chunks))
    np.fill_diagonal(bridges, 0)
    return bridges


def plan(schedule, num_chunks, num_ranks, num_variable, seed=0):
    base = even_base(num_chunks, num_ranks)
    return plan_sweep(schedule, base, num_variable, bridges=random_bridges(num_chunks), seed=seed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_rank_meets_every_chunk_in_windows_of_the_size_asked_for(shape, schedule):
    num_chunks, num_ranks, num_variable = shape
    sweep = plan(schedule, *shape)
    assert (sweep.num_chunks, sweep.num_ranks) == (num_chunks, num_ranks)
    fewest_owned = min(len(chunks) for chunks in sweep.base)
    assert sweep.num_super_epochs == -(-(num_chunks - fewest_owned) // num_variable)
    for rank in range(num_ranks):
        times_met = Counter()
        for super_epoch in range(sweep.num_super_epochs):
            variable = sweep.variable[super_epoch][rank]
            assert len(set(variable)) == num_variable
            assert not set(variable) & set(sweep.base[rank])
            assert sweep.held(super_epoch, rank) == sweep.base[rank] + variable
            times_met.update(variable)
        assert set(times_met) == set(range(num_chunks)) - set(sweep.base[rank])
        assert max(times_met.values()) - min(times_met.values()) <= 1
    assert sweep.unseen_pairs(sweep.num_super_epochs) == []


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7])
def test_cyclic_with_one_chunk_each_is_a_permutation_that_shifts_by_one(num_ranks):
    sweep = plan("cyclic", num_ranks, num_ranks, 1)
    assert sweep.num_super_epochs == num_ranks - 1
    for super_epoch in range(num_ranks - 1):
        wanted = [sweep.variable[super_epoch][rank] for rank in range(num_ranks)]
        assert wanted == [((rank + 1 + super_epoch) % num_ranks,) for rank in range(num_ranks)]
        assert sorted(wanted) == [(chunk,) for chunk in range(num_ranks)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cyclic_wants_all_chunks_about_equally_often_at_any_time(shape):
    num_chunks, num_ranks, _ = shape
    sweep = plan("cyclic", *shape)
    for wanted_by_ranks in sweep.variable:
        wanted = Counter(chunk for chunks in wanted_by_ranks for chunk in chunks)
        counts = [wanted[chunk] for chunk in range(num_chunks)]
        # Where every rank owns as many chunks, nobody is asked twice before all are asked once.
        assert max(counts) - min(counts) <= (1 if num_chunks % num_ranks == 0 else 2)


def test_chunks_are_counted_from_the_owner_on_whatever_numbers_it_owns():
    sweep = plan_sweep("cyclic", [[2, 5], [0, 3], [4, 1]], 2, bridges=None, seed=0)
    assert sweep.variable == (((0, 3), (4, 1), (2, 5)), ((4, 1), (2, 5), (0, 3)))


def test_random_orders_follow_from_the_seed_and_differ_between_ranks():
    first, again, other = (plan("random", 12, 3, 1, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    offsets = [
        [(first.variable[s][rank][0] - first.base[rank][0]) % 12 for s in range(first.num_super_epochs)]
        for rank in range(3)
    ]
    assert offsets[0] != offsets[1]
    assert offsets[1] != offsets[2]


def test_planning_leaves_the_global_random_state_alone():
    before = np.random.get_state()[1].copy()
    plan("random", 12, 3, 1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_affinity_meets_the_chunks_with_most_edges_into_the_base_first():
    # Rows are destinations: chunk 3 sends most into chunks 0 and 1 together, then 4, then 2 and 5 alike.
    bridges = np.zeros((6, 6), np.int64)
    bridges[0, [2, 3, 4]] = 1, 9, 2
    bridges[1, [3, 4, 5]] = 1, 4, 1
    bridges[[2, 3, 4, 5], 0] = 1000  # away from the base: says nothing
    sweep = plan_sweep("affinity", [[0, 1], [2, 3], [4, 5]], 1, bridges=bridges, seed=0)
    assert [chunks[0] for chunks in sweep.variable] == [(3,), (4,), (2,), (5,)]


def test_fixed_is_the_first_super_epoch_of_cyclic_for_ever():
    fixed, cyclic = plan("fixed", 8, 4, 3), plan("cyclic", 8, 4, 3)
    assert fixed.variable == cyclic.variable[:1]
    assert fixed.held(17, 2) == cyclic.held(0, 2)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "fixed"])
def test_without_variable_chunks_there_is_one_super_epoch(schedule):
    sweep = plan(schedule, 5, 2, 0)
    assert sweep.variable == (((), ()),)
    assert sweep.held(3, 1) == (2, 3, 4)
    assert len(sweep.unseen_pairs(100)) == 2 * 2 * 3


@pytest.mark.parametrize("schedule", [*SCHEDULES, "fixed"])
@pytest.mark.parametrize("num_variable", [0, 1, 3])
def test_one_rank_holds_everything_and_has_nothing_to_meet(schedule, num_variable):
    sweep = plan(schedule, 3, 1, num_variable)
    assert sweep == Sweep(((0, 1, 2),), (((),),))
    np.testing.assert_array_equal(sweep.edge_weight_of_held_row(0), np.ones((3, 3)))
    assert sweep.unseen_pairs(1) == []


@pytest.mark.parametrize("schedule", [*SCHEDULES, "fixed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_times_held_and_edge_weights_are_those_counted_one_by_one(shape, schedule):
    sweep = plan(schedule, *shape)
    chunks = range(sweep.num_chunks)
    for rank in range(sweep.num_ranks):
        times, weights = sweep.times_held(rank), sweep.edge_weight_of_held_row(rank)
        assert (times.dtype, weights.dtype) == (np.int64, np.float64)
        held = [set(sweep.held(super_epoch, rank)) for super_epoch in range(sweep.num_super_epochs)]
        for i in chunks:
            for j in chunks:
                count = sum({i, j} <= chunks_held for chunks_held in held)
                assert times[i, j] == count
                times_of_row = len(held) if i in sweep.base[rank] else sum(i in chunks_held for chunks_held in held)
                assert weights[i, j] == (times_of_row / count if count else 0)


def test_bridges_weigh_as_much_as_there_are_other_chunks_where_each_rank_has_one():
    weights = plan("cyclic", 5, 5, 1).edge_weight_of_held_row(2)
    np.testing.assert_array_equal(weights[2], [4, 4, 1, 4, 4])


def test_pairs_not_met_yet_are_named_by_destination_and_source():
    sweep = plan("cyclic", 4, 4, 1)
    assert sweep.unseen_pairs(0) == [(i, j) for i in range(4) for j in range(4)]
    assert sweep.unseen_pairs(1) == [(0, 2), (0, 3), (1, 0), (1, 3), (2, 0), (2, 1), (3, 1), (3, 2)]
    assert sweep.unseen_pairs(2) == [(0, 3), (1, 0), (2, 1), (3, 2)]
    assert sweep.unseen_pairs(3) == sweep.unseen_pairs(1000) == []


def test_super_epochs_go_round():
    sweep = plan("cyclic", 7, 3, 2)
    assert [sweep.held(s, 1) for s in range(3, 6)] == [sweep.held(s, 1) for s in range(3)]


@pytest.mark.parametrize(
    ("schedule", "base", "num_variable", "message"),
    [
        ("cyclic", [[0], [1], []], 1, "3 ranks and 2 chunks. Partition the graph into at least 3 parts"),
        ("cyclic", [[0], []], 1, "2 ranks and 1 chunk. "),
        ("cyclic", [[0], [1], [2]], 3, "rank 0 owns 1, which leaves 2. Ask for at most 2"),
        ("fixed", [[0], [1, 2]], 2, "of 3 chunks rank 1 owns 2, which leaves 1. Ask for at most 1"),
        ("random", [[0], [1]], -1, "0 or more; got -1"),
        ("cylic", [[0], [1]], 1, "Unknown sweep schedule 'cylic'. Choices: affinity, cyclic, fixed, random.*'cyclic'"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_numbers(schedule, base, num_variable, message):
    with pytest.raises(ConfigError, match=message):
        plan_sweep(schedule, base, num_variable, bridges=None, seed=0)


def test_a_fixed_sweep_never_ends_and_weighs_every_edge_that_is_held_alike():
    plan = SweepPlan([[0], [1], [2], [3]], num_variable=1, schedule="fixed", rechunk_every=1, bridges=None)
    assert {plan.sweep_of(super_epoch)[0] for super_epoch in range(9)} == {plan.sweep(0)}
    weights = plan.sweep(0).edge_weight_of_held_row(0)
    held = list(plan.sweep(0).held(0, 0))
    assert weights[np.ix_(held, held)].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert weights.sum() == 4
