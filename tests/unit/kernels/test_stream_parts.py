import numpy as np

from laconic.kernels.compress import compress_edges
from laconic.kernels.stream_parts import fill_lightest, hold_of_part, unload_parts


def two_cliques() -> tuple[np.ndarray, np.ndarray]:
    pairs = [(a, b) for group in (range(5), range(5, 10)) for a in group for b in group if a != b] + [(4, 5), (5, 4)]
    sources, destinations = np.array(pairs).T
    return compress_edges(sources, destinations, 10, 10)[:2]


def test_hold_is_own_links_less_the_most_elsewhere() -> None:
    parts = np.array([0] * 5 + [1] * 5, np.int32)
    hold = hold_of_part(*two_cliques(), parts)
    assert hold.tolist() == [4, 4, 4, 4, 3, 3, 4, 4, 4, 4]


def test_a_part_that_is_too_heavy_gives_first_what_it_holds_least() -> None:
    indptr, indices = two_cliques()
    parts = np.array([0] * 5 + [1, 1, 1, 0, 1], np.int32)  # node 8 went astray
    weights = np.ones(10, np.int64)
    loads = np.bincount(parts).astype(np.int64)
    order = np.argsort(hold_of_part(indptr, indices, parts), kind="stable")
    unload_parts(order, indptr, indices, weights, 5, loads, parts)
    assert parts.tolist() == [0] * 5 + [1] * 5
    assert loads.tolist() == [5, 5]


def test_nothing_moves_where_nothing_is_too_heavy() -> None:
    parts = np.array([0, 1] * 5, np.int32)
    unload_parts(np.arange(10), *two_cliques(), np.ones(10, np.int64), 5, np.array([5, 5]), parts)
    assert parts.tolist() == [0, 1] * 5


def test_no_part_stays_above_a_limit_of_the_mean_and_the_heaviest_node() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = rng.integers(1, 6, size=10)
        parts = rng.integers(rng.integers(1, 5), size=10).astype(np.int32)
        loads = np.bincount(parts, weights, minlength=4).astype(np.int64)
        limit = -(-int(weights.sum()) // 4) + int(weights.max())
        unload_parts(rng.permutation(10), *two_cliques(), weights, limit, loads, parts)
        assert loads.max() <= limit
        np.testing.assert_array_equal(loads, np.bincount(parts, weights, minlength=4))


def test_the_lightest_part_is_filled_first() -> None:
    parts = np.full(4, -1, np.int32)
    loads = np.array([5, 0, 2])
    fill_lightest(np.array([3, 2, 1, 0]), np.array([1, 1, 4, 2]), loads, parts)
    assert parts.tolist() == [2, 2, 1, 1]
    assert loads.tolist() == [5, 6, 4]
