import torch

from laconic.gradients.reductions._orthonormal import orthonormalise


def matrix(num_rows: int, num_columns: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_columns_are_those_of_qr_up_to_sign():
    given = [matrix(37, 4), matrix(5, 5, seed=1), matrix(64, 1, seed=2)]
    for columns, one in zip(orthonormalise(given), given, strict=True):
        expected, triangle = torch.linalg.qr(one)
        torch.testing.assert_close(columns, expected * triangle.diagonal().sign(), rtol=0, atol=1e-12)


def test_columns_that_are_nearly_alike_come_out_at_right_angles():
    base = matrix(50, 1)
    nearly = base + 1e-9 * matrix(50, 4, seed=1)
    (columns,) = orthonormalise([nearly])
    torch.testing.assert_close(columns.T @ columns, torch.eye(4).double(), rtol=0, atol=1e-12)


def test_a_column_that_adds_nothing_becomes_zero():
    first, third = matrix(10, 1), matrix(10, 1, seed=1)
    for dtype in (torch.float32, torch.float64):
        (columns,) = orthonormalise([torch.cat([first, 3 * first, third], dim=1).to(dtype)])
        assert columns.any(0).tolist() == [True, False, True]
    (nothing,) = orthonormalise([torch.zeros(10, 2)])
    assert not nothing.any()


def test_what_stands_beside_a_matrix_does_not_change_its_bits():
    alone = orthonormalise([matrix(37, 3).float()])[0]
    beside = orthonormalise([matrix(1000, 5, seed=1), matrix(37, 3).float()])[1]
    assert torch.equal(alone, beside)


def test_the_number_of_threads_does_not_change_a_bit():
    before = torch.get_num_threads()
    try:
        results = []
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            results.append(orthonormalise([matrix(100_000, 3)])[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)
