"""Factors of training rows: their sum over ranks is the combination asked for, and never nothing."""

import numpy as np
import pytest

from laconic.errors import ConfigError, DataError
from laconic.papers.grappa.factors import COMBINATIONS, row_factors

SIZES = [(5, 9, 2), (4, 0, 7, 1), (6,), (0, 3)]


def draw(sizes, seed=0):
    """Weights and gradients of the training rows of each rank."""
    rng = np.random.default_rng(seed)
    return [rng.random(size) for size in sizes], [rng.normal(size=(size, 3)) for size in sizes]


def factors_of(weights, combination, rho=1.0):
    counts, totals = np.array([len(w) for w in weights]), np.array([w.sum() for w in weights])
    return [
        row_factors(w, combination=combination, counts=counts, rank=rank, rank_totals=totals, rho=rho)
        for rank, w in enumerate(weights)
    ]


def combined(weights, gradients, combination, rho=1.0):
    """What an all-reduce that sums makes of it."""
    return sum(f @ g for f, g in zip(factors_of(weights, combination, rho), gradients, strict=True))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_mean_is_the_mean_over_ranks_with_training_rows_of_their_local_means(sizes):
    weights, gradients = draw(sizes)
    local = [(w[:, None] * g).mean(axis=0) for w, g in zip(weights, gradients, strict=True) if len(w)]
    np.testing.assert_allclose(combined(weights, gradients, "mean"), np.mean(local, axis=0), atol=1e-14)
    np.testing.assert_allclose(combined(weights, gradients, "ht", 0.4), np.mean(local, axis=0) / 0.4, atol=1e-14)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_self_normalised_is_the_weighted_mean_over_all_rows(sizes):
    weights, gradients = draw(sizes)
    expected = np.average(np.concatenate(gradients), axis=0, weights=np.concatenate(weights))
    np.testing.assert_allclose(combined(weights, gradients, "self_normalised"), expected, atol=1e-14)


@pytest.mark.parametrize("sizes", [(4, 2), (5, 9, 2), (1, 0, 6)], ids=str)
def test_self_normalised_does_not_feel_the_scale_of_all_weights_but_mean_does(sizes):
    weights, gradients = draw(sizes)
    scaled = [7.3 * w for w in weights]
    for name, scale in (("self_normalised", 1.0), ("mean", 7.3)):
        np.testing.assert_allclose(
            combined(scaled, gradients, name), scale * combined(weights, gradients, name), atol=1e-13
        )
    # Over rho the scale cancels as well, as long as rho is taken of the same weights.
    np.testing.assert_allclose(
        combined(scaled, gradients, "ht", 7.3 * 0.5), combined(weights, gradients, "ht", 0.5), atol=1e-13
    )


@pytest.mark.parametrize("sizes", [(3, 4), (5, 9, 2, 33), (4, 0, 7)], ids=str)
def test_weights_of_one_give_the_plain_mean_to_the_bit(sizes):
    num_train = sum(sizes)
    for factors in factors_of([np.ones(size) for size in sizes], "self_normalised"):
        np.testing.assert_array_equal(factors, np.full(len(factors), 1.0 / num_train))
    num_with_rows = sum(size > 0 for size in sizes)
    for combination in ("mean", "ht"):
        for size, factors in zip(sizes, factors_of([np.ones(size) for size in sizes], combination), strict=True):
            np.testing.assert_array_equal(factors, np.full(size, 1.0 / (num_with_rows * size) if size else 0.0))


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_one_weight_for_all_rows_of_a_rank_scales_its_gradient(combination):
    # Node by node or by a communication hook: the same when a rank's weights are equal.
    _, gradients = draw((4, 6, 3))
    ranks = [0.2, 0.9, 0.5]
    weights = [np.full(len(g), w) for w, g in zip(ranks, gradients, strict=True)]
    ones = factors_of([np.ones(len(g)) for g in gradients], combination, rho=0.6)
    by_rank = sum(w * (f @ g) for w, f, g in zip(ranks, ones, gradients, strict=True))
    if combination == "self_normalised":
        by_rank *= 13 / sum(len(w) * w[0] for w in weights)
    np.testing.assert_allclose(combined(weights, gradients, combination, rho=0.6), by_rank, atol=1e-14)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_a_rank_without_training_rows_gets_no_factors(combination):
    factors = factors_of([np.ones(2), np.empty(0)], combination)[1]
    assert factors.shape == (0,)
    assert factors.dtype == np.float64


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_a_rank_where_nothing_is_covered_is_no_error_while_another_has_something(combination):
    covered, bare = factors_of([np.array([0.0, 0.5]), np.zeros(3)], combination)
    assert covered[1] > 0
    assert not bare.any()


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize(
    ("sizes", "value", "error", "message"),
    [
        ((3, 2), 0.0, ConfigError, "All 5 training nodes have coverage 0 on all 2 ranks"),
        ((0, 0), 1.0, DataError, "No rank has a training node"),
        ((3, 2), float("nan"), DataError, "finite and not negative"),
        ((3, 2), -1.0, DataError, "finite and not negative"),
    ],
)
def test_a_step_of_nothing_is_refused_on_every_rank(sizes, value, error, message, combination):
    counts, totals = np.array(sizes), np.array(sizes) * value
    for rank, size in enumerate(sizes):
        with pytest.raises(error, match=message):
            row_factors(
                np.full(size, value), combination=combination, counts=counts, rank=rank, rank_totals=totals, rho=1.0
            )


@pytest.mark.parametrize("rho", [0.0, -0.5, float("nan")])
def test_dividing_by_no_coverage_is_refused(rho):
    with pytest.raises(ConfigError, match="more than 0"):
        factors_of([np.ones(2)], "ht", rho)


def test_an_unknown_combination_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=r"Unknown combination 'means'\. Choices: ht, mean, self_normalised.*'mean'"):
        factors_of([np.ones(2)], "means")
