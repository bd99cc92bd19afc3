"""Maximum over in-neighbours: PyG's values and gradients, and a winner for every element."""

import pytest
import torch
from torch_geometric.nn import MaxAggregation

from laconic.graph import Adjacency
from laconic.graph.operators.maximum import maximum, maximum_by_torch


def adjacency_of(sources, destinations, num_nodes):
    return Adjacency.from_edges(torch.tensor(sources).numpy(), torch.tensor(destinations).numpy(), num_nodes, num_nodes)


def test_values_and_gradients_are_pygs(make_graph):
    graph = make_graph(dtype=torch.float64)
    ours, theirs = graph.x.clone().requires_grad_(), graph.x.clone().requires_grad_()
    out = maximum(graph.adjacency, ours)
    reference = MaxAggregation()(theirs[graph.edge_index[0]], graph.edge_index[1], dim_size=graph.num_nodes)
    torch.testing.assert_close(out, reference, atol=1e-10, rtol=1e-10)
    weights = torch.linspace(1, 2, out.numel(), dtype=torch.float64).view_as(out)
    (out * weights).sum().backward()
    (reference * weights).sum().backward()
    # Duplicate edges tie with themselves in PyG, which gives each a share: their sum is the winner's gradient.
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-10, rtol=1e-10)


def test_torchs_own_operations_give_the_same(make_graph):
    graph = make_graph()
    torch.testing.assert_close(maximum_by_torch(graph.adjacency, graph.x), maximum(graph.adjacency, graph.x))


def test_gradients_pass_gradcheck(make_graph):
    graph = make_graph(num_nodes=10, num_edges=25, num_features=3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: maximum(graph.adjacency, x), graph.x.clone().requires_grad_())


def test_a_row_without_edges_gets_zero_and_gives_no_gradient():
    x = torch.full((3, 2), -5.0, requires_grad=True)
    out = maximum(adjacency_of([0], [1], 3), x)
    assert out.tolist() == [[0, 0], [-5, -5], [0, 0]]
    out.sum().backward()
    assert x.grad.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_of_equal_ones_the_first_gets_the_gradient_once():
    x = torch.ones(4, 1, requires_grad=True)
    maximum(adjacency_of([1, 1, 2, 3], [0, 0, 0, 0], 4), x).sum().backward()
    assert x.grad.squeeze().tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 2, 1]])
def test_a_nan_is_not_hidden(order):
    x = torch.tensor([[0.0], [1.0], [float("nan")], [2.0]])
    assert maximum(adjacency_of(order, [0, 0, 0], 4), x)[0].isnan().all()


def test_the_number_of_threads_changes_nothing(make_graph):
    graph = make_graph(num_nodes=300, num_edges=5000, num_features=32)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            x = graph.x.clone().requires_grad_()
            out = maximum(graph.adjacency, x)
            out.sum().backward()
            results.append((out, x.grad))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_wide_indices_give_the_same(small_graph):
    narrow = small_graph.adjacency
    wide = Adjacency(narrow.indptr, narrow.indices.astype("int64"), narrow.num_columns)
    assert torch.equal(maximum(narrow, small_graph.x), maximum(wide, small_graph.x))


def test_no_edges_at_all_give_zeros():
    empty = adjacency_of(torch.empty(0, dtype=torch.int64).tolist() or [0], [0], 1)
    assert maximum(empty, torch.tensor([[3.0]])).tolist() == [[3.0]]
    none = Adjacency(empty.indptr * 0, empty.indices[:0], 1, empty.edge_order[:0])
    x = torch.tensor([[3.0]], requires_grad=True)
    maximum(none, x).sum().backward()
    assert x.grad.tolist() == [[0.0]]


def test_rows_that_do_not_fit_are_refused_before_memory_is_read(small_graph):
    with pytest.raises(AssertionError, match="59 rows for 60 columns"):
        maximum(small_graph.adjacency, small_graph.x[:59])
