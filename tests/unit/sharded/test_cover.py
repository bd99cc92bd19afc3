"""The cover of a pair of ranks: rows and sums that serve every edge once, exactly or greedily."""

import numpy as np

from laconic.kernels.compress import compress_edges
from laconic.kernels.cover import greedy_cover
from laconic.sharded.cover import EXACT_EDGES, cover_of_pair


def pair(seed: int = 0, num_sources: int = 80, num_destinations: int = 60, num_edges: int = 200) -> tuple:
    rng = np.random.default_rng(seed)
    sources = (num_sources * rng.random(num_edges) ** 2).astype(np.int64)
    destinations = (num_destinations * rng.random(num_edges) ** 2).astype(np.int64)
    return *compress_edges(sources, destinations, num_destinations, num_sources)[:2], num_sources


def product_by_cover(edges: tuple, is_summed: np.ndarray, is_fetched: np.ndarray, h: np.ndarray) -> np.ndarray:
    """The receiver's sums, from the rows and the partial sums that it gets and nothing else."""
    indptr, indices, _ = edges
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    out, by_sum = np.zeros((len(indptr) - 1, h.shape[1])), is_summed[destinations]
    np.add.at(out, destinations[by_sum], h[indices[by_sum]])
    arrived = np.where(is_fetched[:, None], h, np.nan)
    np.add.at(out, destinations[~by_sum], arrived[indices[~by_sum]])
    return out


def test_rows_and_sums_that_travel_give_the_product_and_every_one_of_them_is_needed() -> None:
    for seed in range(10):
        edges = pair(seed)
        h = np.random.default_rng(seed).standard_normal((edges[2], 3))
        destinations = np.repeat(np.arange(len(edges[0]) - 1), np.diff(edges[0]))
        expected = np.zeros((len(edges[0]) - 1, 3))
        np.add.at(expected, destinations, h[edges[1]])
        for exact_edges in (EXACT_EDGES, 0):
            cover = cover_of_pair(*edges, exact_edges=exact_edges)
            np.testing.assert_allclose(product_by_cover(edges, *cover, h), expected, atol=1e-12)
        is_summed, is_fetched = cover_of_pair(*edges)
        by_row = edges[1][~is_summed[destinations]]
        assert np.array_equal(np.unique(by_row), np.flatnonzero(is_fetched))


def test_with_more_edges_than_a_number_the_cover_is_greedy() -> None:
    edges = pair(4, num_sources=400, num_destinations=300, num_edges=1000)
    exact, at_limit, greedy = (cover_of_pair(*edges, exact_edges=number) for number in (EXACT_EDGES, 1000, 999))
    assert all(map(np.array_equal, exact, at_limit))
    assert all(map(np.array_equal, greedy, greedy_cover(*edges)))
    sizes = [is_summed.sum() + is_fetched.sum() for is_summed, is_fetched in (exact, greedy)]
    assert sizes[0] <= sizes[1] <= len(np.unique(edges[1]))


def test_a_pair_that_cover_gains_nothing_for_fetches_rows_as_halo_exchange_does() -> None:
    indptr, indices, _ = compress_edges(np.array([0, 1, 1, 3]), np.array([0, 1, 2, 3]), 5, 5)
    for exact_edges in (EXACT_EDGES, 0):
        is_summed, is_fetched = cover_of_pair(indptr, indices, 5, exact_edges=exact_edges)
        assert not is_summed.any()
        assert np.flatnonzero(is_fetched).tolist() == [0, 1, 3]


def test_the_same_edges_give_the_same_cover() -> None:
    for exact_edges in (EXACT_EDGES, 0):
        one, two = (cover_of_pair(*pair(3), exact_edges=exact_edges) for _ in range(2))
        assert all(map(np.array_equal, one, two))
