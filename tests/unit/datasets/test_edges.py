import numpy as np
import torch

from laconic.datasets._edges import distinct_pairs, edges_of_pairs, sorted_unique, with_reverse_edges


def test_sorted_unique_equals_numpys() -> None:
    keys = np.random.default_rng(0).integers(0, 50, 200)
    assert np.array_equal(sorted_unique(keys), np.unique(keys))
    assert len(sorted_unique(np.empty(0, np.int64))) == 0


def test_distinct_pairs_drop_loops_duplicates_and_reverses() -> None:
    keys = distinct_pairs(np.array([0, 1, 1, 2, 2]), np.array([1, 0, 1, 3, 3]), num_nodes=4)
    assert keys.tolist() == [0 * 4 + 1, 2 * 4 + 3]
    assert sorted(map(tuple, edges_of_pairs(keys, 4).T.tolist())) == [(0, 1), (1, 0), (2, 3), (3, 2)]


def test_reverse_edges_are_added_once_and_loops_stay() -> None:
    edges, weight = with_reverse_edges(torch.tensor([[0, 0, 1, 2], [1, 1, 0, 2]]), None, 3)
    assert edges.T.tolist() == [[0, 1], [1, 0], [2, 2]]
    assert weight is None


def test_adding_reverse_edges_twice_is_adding_them_once() -> None:
    edges = torch.randint(0, 20, (2, 60), generator=torch.Generator().manual_seed(0))
    once, _ = with_reverse_edges(edges, None, 20)
    twice, _ = with_reverse_edges(once, None, 20)
    assert torch.equal(once, twice)


def test_a_reverse_edge_takes_the_weight_of_its_edge_unless_it_has_its_own() -> None:
    edges, weight = with_reverse_edges(torch.tensor([[0, 1, 2], [1, 0, 1]]), torch.tensor([1.0, 2.0, 3.0]), 3)
    assert weight is not None
    pairs = zip(map(tuple, edges.T.tolist()), weight.tolist(), strict=True)
    assert dict(pairs) == {(0, 1): 1.0, (1, 0): 2.0, (1, 2): 3.0, (2, 1): 3.0}
