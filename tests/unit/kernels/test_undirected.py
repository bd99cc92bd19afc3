import numpy as np
import pytest

from laconic.kernels.compress import compress_edges
from laconic.kernels.undirected import count_self_loops, is_symmetric, merge_directions


def rows(pairs: list[tuple[int, int]], num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    sources, destinations = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return compress_edges(sources, destinations, num_nodes, num_nodes)[:2]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], True),
        ([(0, 0)], True),
        ([(0, 1)], False),
        ([(0, 1), (1, 0)], True),
        ([(0, 1), (0, 1), (1, 0)], False),
        ([(0, 1), (1, 2), (2, 0)], False),
        ([(0, 1), (1, 0), (1, 2), (2, 1), (2, 2), (0, 1), (1, 0)], True),
    ],
)
def test_symmetry_counts_repeated_edges(pairs: list[tuple[int, int]], expected: bool) -> None:
    assert is_symmetric(*rows(pairs, 4)) is expected


def test_symmetry_agrees_with_the_dense_matrix() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        pairs = [(int(s), int(d)) for s, d in rng.integers(3, size=(rng.integers(6), 2))]
        if rng.random() < 0.5:
            pairs += [(d, s) for s, d in pairs]
        dense = np.zeros((3, 3), int)
        for source, destination in pairs:
            dense[source, destination] += 1
        assert is_symmetric(*rows(pairs, 3)) == (dense == dense.T).all()


def test_merged_rows_hold_each_neighbour_once_and_never_the_node() -> None:
    pairs = [(0, 1), (1, 0), (2, 1), (2, 1), (2, 2), (1, 3)]
    indptr, indices = merge_directions(*rows(pairs, 5), *rows([(d, s) for s, d in pairs], 5))
    found = [indices[indptr[node] : indptr[node + 1]].tolist() for node in range(5)]
    assert found == [[1], [0, 2, 3], [1], [1], []]


def test_self_loops_are_counted_as_often_as_they_occur() -> None:
    assert count_self_loops(*rows([(0, 0), (0, 0), (0, 1), (2, 2)], 3)) == 3
