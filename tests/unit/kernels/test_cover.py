"""Covers touch every edge, and the smallest is as large as scipy's largest matching."""

from itertools import chain, combinations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from laconic.kernels.compress import compress_edges
from laconic.kernels.cover import greedy_cover, minimum_cover

Rows = tuple[np.ndarray, np.ndarray, int]


def rows(pairs: list[tuple[int, int]], num_sources: int, num_destinations: int) -> Rows:
    sources, destinations = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return *compress_edges(sources, destinations, num_destinations, num_sources)[:2], num_sources


def random_rows(rng: np.random.Generator, num_sources: int, num_destinations: int, num_edges: int, skew: float) -> Rows:
    """With a skew above 1, a few vertices on either side have most of the edges."""
    sources = (num_sources * rng.random(num_edges) ** skew).astype(np.int64)
    destinations = (num_destinations * rng.random(num_edges) ** skew).astype(np.int64)
    indptr, indices, _ = compress_edges(
        rng.permutation(num_sources)[sources],
        rng.permutation(num_destinations)[destinations],
        num_destinations,
        num_sources,
    )
    return indptr, indices, num_sources


def size_of_largest_matching(indptr: np.ndarray, indices: np.ndarray, num_sources: int) -> int:
    shape = (len(indptr) - 1, num_sources)
    # A copy: duplicates are summed in place.
    edges = csr_matrix((np.ones(len(indices), np.int8), indices, indptr), shape=shape, copy=True)
    edges.sum_duplicates()
    return int((maximum_bipartite_matching(edges, perm_type="column") >= 0).sum())


def check_both(edges: Rows) -> None:
    indptr, indices, _ = edges
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    smallest = size_of_largest_matching(*edges)
    summed, fetched = minimum_cover(*edges)
    assert (summed[destinations] | fetched[indices]).all()
    assert summed.sum() + fetched.sum() == smallest
    summed, fetched, bound = greedy_cover(*edges)
    assert (summed[destinations] | fetched[indices]).all()
    assert bound <= smallest <= summed.sum() + fetched.sum()
    assert summed.sum() + fetched.sum() <= min(len(np.unique(indices)), len(np.unique(destinations)))
    assert smallest <= 2 * bound  # no edge can be added to its matching


COMPLETE = [(source, destination) for source in range(3) for destination in range(5)]


@pytest.mark.parametrize(
    ("pairs", "num_summed", "num_fetched"),
    [
        pytest.param([], 0, 0, id="no edge"),
        pytest.param([(2, 1)], 0, 1, id="one edge"),
        pytest.param([(2, 1)] * 3, 0, 1, id="one edge three times"),
        pytest.param([(source, 4) for source in range(6)], 1, 0, id="star into a destination"),
        pytest.param([(3, destination) for destination in range(5)], 0, 1, id="star from a source"),
        pytest.param(COMPLETE, 0, 3, id="complete, fewer sources"),
        pytest.param([(d, s) for s, d in COMPLETE], 3, 0, id="complete, fewer destinations"),
        pytest.param([(k, k) for k in range(5)], 0, 5, id="a matching"),
        pytest.param([*((s, 0) for s in range(4)), *((5, d) for d in range(1, 5))], 1, 1, id="two stars"),
    ],
)
def test_known_graphs_have_the_cover_with_the_fewest_sums(
    pairs: list[tuple[int, int]], num_summed: int, num_fetched: int
) -> None:
    edges = rows(pairs, 7, 6)
    check_both(edges)
    assert [mask.sum() for mask in minimum_cover(*edges)] == [num_summed, num_fetched]


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_a_side_without_vertices_has_an_empty_cover(shape: tuple[int, int]) -> None:
    summed, fetched = minimum_cover(*rows([], *shape))
    assert (len(fetched), len(summed)) == shape
    assert not summed.any()
    assert not fetched.any()


@pytest.mark.parametrize("skew", [1.0, 3.0])
def test_random_graphs_have_covers_as_large_as_their_largest_matching(skew: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        num_sources, num_destinations, num_edges = rng.integers(1, 40), rng.integers(1, 40), rng.integers(0, 120)
        check_both(random_rows(rng, int(num_sources), int(num_destinations), int(num_edges), skew))
    for degree in (1.0, 2.7, 8.0):
        check_both(random_rows(rng, 3000, 2500, int(3000 * degree), skew))


def test_no_smallest_cover_of_a_small_graph_has_fewer_destinations() -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        edges = random_rows(rng, 4, 4, int(rng.integers(1, 9)), 1.0)
        pairs = list(zip(edges[1].tolist(), np.repeat(np.arange(4), np.diff(edges[0])).tolist(), strict=True))
        subsets = list(chain.from_iterable(combinations(range(4), size) for size in range(5)))
        # The sources of edges that the chosen destinations leave complete the cover.
        covers = [(len(chosen), len({s for s, d in pairs if d not in chosen})) for chosen in subsets]
        expected = min(covers, key=lambda sizes: (sum(sizes), sizes[0]))
        assert tuple(int(mask.sum()) for mask in minimum_cover(*edges)) == expected


def test_a_mesh_in_random_order_is_matched_whole() -> None:
    # It takes more turns than shortest paths alone get (_PATIENCE).
    side, rng = 100, np.random.default_rng(0)
    x, y = np.divmod(np.arange(side**2), side)
    around = [((x + dx) % side) * side + (y + dy) % side for dx, dy in ((0, 1), (1, 0), (0, -1), (-1, 0))]
    sources, destinations = (
        rng.permutation(side**2)[ends] for ends in (np.concatenate(around), np.tile(x * side + y, 4))
    )
    check_both((*compress_edges(sources, destinations, side**2, side**2)[:2], side**2))


def test_the_smallest_cover_does_not_depend_on_the_order_of_edges_their_type_or_who_may_write() -> None:
    rng = np.random.default_rng(2)
    indptr, indices, num_sources = random_rows(rng, 300, 200, 500, 2.0)
    expected = minimum_cover(indptr, indices, num_sources)
    shuffled = np.concatenate([rng.permutation(row) for row in np.split(indices, indptr[1:-1])]).astype(np.int64)
    for array in (indptr, indices):
        array.flags.writeable = False
    for again in (shuffled, indices):
        for mask, other in zip(minimum_cover(indptr, again, num_sources), expected, strict=True):
            assert np.array_equal(mask, other)
