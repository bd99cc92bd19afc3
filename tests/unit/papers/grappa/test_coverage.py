"""Coverage: what it counts, what shrinkage does to it, and summaries that add up over ranks."""

import itertools

import numpy as np
import pytest
from tests.unit.papers.grappa.tiny_graphs import edges_among

from laconic.errors import ConfigError
from laconic.graph import Adjacency
from laconic.papers.grappa.coverage import (
    CoverageSummary,
    auto_shrinkage,
    batch_coverage,
    effective_sample_size,
    node_coverage,
    shrink,
    summarise,
)


def random_edges(num_nodes, num_edges, rng):
    """Sources and destinations with loops and duplicates; the last node has no edge."""
    return rng.integers(0, num_nodes - 1, num_edges), rng.integers(0, num_nodes - 1, num_edges)


def walks_that_stay(sources, destinations, node, rows, num_hops):
    """Share of all walks from `node` against the edges, each as likely as the next at every step, by following each."""
    if num_hops == 0:
        return 1.0
    arriving = sources[destinations == node]
    if len(arriving) == 0:
        return 1.0
    stay = [walks_that_stay(sources, destinations, u, rows, num_hops - 1) for u in arriving if u in rows]
    return sum(stay) / len(arriving)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_hops", [0, 1, 2, 3, 4])
def test_coverage_is_the_share_of_walks_that_stay_among_the_rows_held(num_hops, seed):
    rng = np.random.default_rng(seed)
    sources, destinations = random_edges(12, 30, rng)
    degrees = np.bincount(destinations, minlength=12)
    rows = rng.permutation(12)[:7]
    coverage = node_coverage(edges_among(sources, destinations, rows), degrees[rows], num_hops)
    expected = [walks_that_stay(sources, destinations, node, set(rows), num_hops) for node in rows]
    assert coverage.dtype == np.float64
    np.testing.assert_allclose(coverage, expected, atol=1e-12)


@pytest.mark.parametrize("num_hops", [1, 2, 5])
@pytest.mark.parametrize("degree_type", [np.int32, np.int64, np.float64])
def test_whole_neighbourhoods_are_covered_to_the_bit(num_hops, degree_type):
    rng = np.random.default_rng(0)
    sources, destinations = random_edges(500, 4000, rng)
    degrees = np.bincount(destinations, minlength=500).astype(degree_type)
    assert np.all(node_coverage(edges_among(sources, destinations, np.arange(500)), degrees, num_hops) == 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_coverage_lies_in_0_to_1_falls_with_hops_and_grows_with_every_chunk_added(seed):
    rng = np.random.default_rng(seed)
    num_nodes, num_chunks = int(rng.integers(5, 80)), int(rng.integers(2, 6))
    sources, destinations = random_edges(num_nodes, int(rng.integers(1, 6 * num_nodes)), rng)
    degrees = np.bincount(destinations, minlength=num_nodes)
    chunk = rng.integers(0, num_chunks, num_nodes)
    before = np.zeros((4, num_nodes))
    for num_held in range(1, num_chunks + 1):
        rows = np.flatnonzero(chunk < num_held)
        adjacency = edges_among(sources, destinations, rows)
        coverage = np.stack([node_coverage(adjacency, degrees[rows], hops) for hops in range(4)])
        assert np.all(coverage >= 0)
        assert np.all(coverage <= 1)
        assert np.all(np.diff(coverage, axis=0) <= 1e-12)
        assert np.all(coverage >= before[:, rows] - 1e-12)
        before[:, rows] = coverage
    assert np.all(before == 1)


def test_degrees_of_the_rows_alone_are_noticed():
    adjacency = Adjacency.from_edges(np.array([0, 1]), np.array([1, 1]), 2, 2)
    with pytest.raises(AssertionError, match="in the whole graph"):
        node_coverage(adjacency, np.array([0, 1]), 1)


def test_the_batch_weight_is_the_nearest_to_all_node_weights():
    weights = np.random.default_rng(0).random(50)
    distance = lambda weight: np.square(weights - weight).sum()  # noqa: E731
    best = batch_coverage(weights)
    assert all(distance(best) < distance(best + step) for step in (-0.1, -1e-4, 1e-4, 0.1))
    # The only place where the slope of the distance is 0.
    assert abs(2 * (best - weights).sum()) < 1e-12
    assert batch_coverage(np.empty(0)) == 0.0


def test_shrinkage_goes_from_the_weights_to_ones_and_both_ends_are_exact():
    weights = np.random.default_rng(0).random(50)
    np.testing.assert_array_equal(shrink(weights, 0.0), weights)
    np.testing.assert_array_equal(shrink(weights, 1.0), np.ones(50))
    np.testing.assert_allclose(shrink(weights, 0.25), 1 - 0.75 * (1 - weights), atol=1e-15)
    for amount in np.random.default_rng(1).random(200):
        assert np.all(shrink(np.ones(3), float(amount)) == 1.0)


@pytest.mark.parametrize("amount", [-0.01, 1.01, float("nan"), float("inf")])
def test_shrinkage_outside_0_to_1_is_refused(amount):
    with pytest.raises(ConfigError, match="from 0"):
        shrink(np.ones(2), amount)


def test_the_effective_sample_size_counts_equal_weights_and_ignores_their_scale():
    assert effective_sample_size(np.full(8, 0.25)) == 8
    assert effective_sample_size(np.array([1.0, 0, 0])) == 1
    assert effective_sample_size(np.zeros(3)) == 0
    assert effective_sample_size(np.empty(0)) == 0
    weights = np.random.default_rng(0).random(9)
    assert effective_sample_size(weights) == pytest.approx(effective_sample_size(3 * weights))
    assert 1 < effective_sample_size(weights) < 9


def test_auto_shrinkage_grows_as_ranks_become_unequal_and_leaves_out_ranks_without_training_rows():
    ten = np.full(4, 10)
    assert auto_shrinkage(np.full(4, 0.5), ten) == 0.0
    assert auto_shrinkage(np.array([1.0, 0, 0, 0]), ten) == 0.75
    slightly, strongly = (auto_shrinkage(np.array([0.5, 0.5, 0.5, w]), ten) for w in (0.4, 0.1))
    assert 0 < slightly < strongly < 0.75
    assert auto_shrinkage(np.array([0.5, 0.0, 0.5, 0.5]), np.array([10, 0, 10, 10])) == 0.0
    assert auto_shrinkage(np.array([1.0]), np.array([3])) == 0.0


def test_auto_shrinkage_does_not_make_ones_where_nothing_is_covered():
    assert auto_shrinkage(np.zeros(4), np.full(4, 10)) == 0.0
    assert auto_shrinkage(np.zeros(0), np.zeros(0)) == 0.0


@pytest.mark.parametrize("sizes", [(7, 30, 1), (5, 0, 12), (0, 4), (0, 0), (9,)])
def test_parts_of_ranks_add_up_to_the_summary_of_all(sizes):
    rng = np.random.default_rng(0)
    weights = [rng.random(size) for size in sizes]
    parts = [summarise(rows).parts(rank, len(sizes)) for rank, rows in enumerate(weights)]
    total, expected = CoverageSummary.from_parts(np.sum(parts, axis=0)), summarise(np.concatenate(weights))
    assert (total.count, total.minimum, total.histogram) == (expected.count, expected.minimum, expected.histogram)
    for name in ("mean", "total", "squares", "effective_sample_size"):
        assert getattr(total, name) == pytest.approx(getattr(expected, name), abs=1e-12)


def test_a_summary_says_what_numpy_says():
    weights = np.random.default_rng(0).random(100)
    summary = summarise(weights)
    assert summary.mean == pytest.approx(weights.mean())
    assert summary.minimum == weights.min()
    assert summary.effective_sample_size == pytest.approx(effective_sample_size(weights))
    edges = itertools.pairwise(np.linspace(0, 1, 11))
    assert summary.histogram == tuple(int(((weights >= low) & (weights < high)).sum()) for low, high in edges)
    assert CoverageSummary.from_parts(summary.parts()) == summary


def test_the_histogram_counts_every_row_also_beyond_its_ends():
    assert summarise(np.array([0.0, 0.05, 0.1, 1.0, 3.5])).histogram == (2, 1, 0, 0, 0, 0, 0, 0, 0, 2)
