"""Linear operators: the matrix they stand for, its transpose, and gradients through it."""

import numpy as np
import pytest
import scipy.sparse
import torch

from laconic.graph import Adjacency
from laconic.graph.normalize import gcn_operator, mean_operator, sum_operator
from laconic.graph.operators.linear import LinearOperator


def dense(operator):
    """The matrix, by scipy."""
    adjacency = operator.adjacency
    values = np.ones(adjacency.num_edges) if operator.values is None else operator.values
    shape = (adjacency.num_rows, adjacency.num_columns)
    matrix = scipy.sparse.csr_matrix((values, adjacency.indices, adjacency.indptr), shape=shape).toarray()
    if operator.skip_loops:
        np.fill_diagonal(matrix, 0)
    if operator.row_scale is not None:
        matrix = operator.row_scale[:, None] * matrix
    if operator.column_scale is not None:
        matrix = matrix * operator.column_scale
    if operator.diagonal is not None:
        matrix += np.diag(operator.diagonal)
    return matrix


def operators(graph):
    adjacency, rng = graph.adjacency, np.random.default_rng(0)
    values = rng.random(adjacency.num_edges)
    return {
        "sum": sum_operator(adjacency),
        "sum weighted, own": sum_operator(adjacency, values, own_weight=1.5),
        "mean": mean_operator(adjacency),
        "mean weighted": mean_operator(adjacency, values),
        "gcn": gcn_operator(adjacency),
        "gcn weighted": gcn_operator(adjacency, values, loop_weight=2.0),
        "gcn without loops": gcn_operator(adjacency, self_loops=False),
        "everything": LinearOperator(adjacency, values, *rng.random((3, 60)), skip_loops=True),
    }


NAMES = [
    "sum",
    "sum weighted, own",
    "mean",
    "mean weighted",
    "gcn",
    "gcn weighted",
    "gcn without loops",
    "everything",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_the_product_and_its_gradient_are_those_of_the_dense_matrix(name, dtype, small_graph):
    operator = operators(small_graph)[name]
    matrix = torch.from_numpy(dense(operator)).to(dtype)
    x = small_graph.x.to(dtype).requires_grad_()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(operator @ x, matrix @ x, atol=tolerance, rtol=tolerance)
    weights = torch.linspace(-1, 1, x.numel(), dtype=dtype).view_as(x)
    (gradient,) = torch.autograd.grad(((operator @ x) * weights).sum(), x)
    torch.testing.assert_close(gradient, matrix.t() @ weights, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_torchs_own_matrix_is_the_same(name, small_graph):
    operator = operators(small_graph)[name]
    matrix = operator.as_torch(torch.device("cpu"), torch.float64).to_dense()
    torch.testing.assert_close(matrix, torch.from_numpy(dense(operator)), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("width", [1, 3, 16, 37, 200])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_any_width_and_index_type(width, index, small_graph):
    narrow = small_graph.adjacency
    adjacency = Adjacency(narrow.indptr, narrow.indices.astype(index), 60)
    x = torch.randn(60, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = torch.from_numpy(dense(sum_operator(narrow)))
    torch.testing.assert_close(sum_operator(adjacency) @ x, matrix @ x, atol=1e-12, rtol=1e-12)


def test_the_number_of_threads_changes_nothing(make_graph):
    graph = make_graph(num_nodes=500, num_edges=9000, num_features=64)
    operator, threads, results = gcn_operator(graph.adjacency), torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(operator.multiply(graph.x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_second_derivatives_exist(small_graph):
    x = small_graph.x[:, :2].double().requires_grad_()
    operator = mean_operator(small_graph.adjacency)
    assert torch.autograd.gradgradcheck(lambda x: (operator @ x) ** 2, (x,))


def test_a_nan_reaches_its_neighbours_and_no_other(small_graph):
    x = small_graph.x.clone()
    x[5] = float("nan")
    out = sum_operator(small_graph.adjacency) @ x
    reached = torch.zeros(60, dtype=torch.bool)
    reached[small_graph.edge_index[1, small_graph.edge_index[0] == 5]] = True
    assert torch.equal(out.isnan().any(dim=1), reached)


def test_half_precision_is_summed_in_single(small_graph):
    x = small_graph.x.to(torch.bfloat16)
    out = sum_operator(small_graph.adjacency) @ x
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, (sum_operator(small_graph.adjacency) @ x.float()).to(torch.bfloat16))


def test_strided_rows_are_taken_as_they_are(small_graph):
    operator = sum_operator(small_graph.adjacency)
    wide = small_graph.x
    torch.testing.assert_close(operator @ wide[:, ::2], (operator @ wide)[:, ::2])


def test_no_edges_give_the_diagonal_alone():
    adjacency = Adjacency.from_edges(np.empty(0, np.int64), np.empty(0, np.int64), 3, 3)
    x = torch.ones(3, 2, requires_grad=True)
    out = gcn_operator(adjacency) @ x
    out.sum().backward()
    assert out.tolist() == x.grad.tolist() == [[1, 1], [1, 1], [1, 1]]
    assert (sum_operator(adjacency) @ x).abs().max() == 0


def test_rows_that_do_not_fit_are_refused_before_memory_is_read(small_graph):
    operator = sum_operator(small_graph.adjacency)
    with pytest.raises(AssertionError, match="59 rows for 60 columns"):
        operator.multiply(small_graph.x[:59])
    with pytest.raises(AssertionError, match="is not rows"):
        operator.multiply(small_graph.x[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_is_added_to_rows_that_are_there(dtype, small_graph):
    operator = mean_operator(small_graph.adjacency)
    x = torch.randn(small_graph.num_nodes, 5).to(dtype)
    before = torch.randn(small_graph.num_nodes, 5).to(dtype)
    rows = before.clone()
    assert operator.multiply(x, add_to=rows) is rows
    expected = before.double() + operator.multiply(x.double())
    torch.testing.assert_close(rows, expected.to(dtype))
