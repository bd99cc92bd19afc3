"""Orthonormal columns, bit by bit the same wherever they are computed.

A library's QR sums in an order that depends on the processor and the number of threads; here every
sum is a tree of single additions, so that ranks which begin with the same numbers end with the
same, whatever machines they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# Shapes: B matrices, N rows, R columns

# What is left of a column beside those before it counts as rounding up to so many units in its last place.
_ROUNDING = 16.0


def orthonormalise(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Returns, for each (N, R), orthonormal columns of the same span, from left to right.

    A column that adds nothing to the span becomes zero; one that is not finite stays so. Matrices
    may differ in N and R. Gram-Schmidt in float64, of all matrices at once.
    """
    if not matrices:
        return []
    num_rows = 1 << (max(len(matrix) for matrix in matrices) - 1).bit_length()
    num_columns = max(matrix.shape[1] for matrix in matrices)
    columns_BNR = matrices[0].new_zeros((len(matrices), num_rows, num_columns), dtype=torch.float64)
    for number, matrix in enumerate(matrices):
        columns_BNR[number, : matrix.shape[0], : matrix.shape[1]] = matrix
    rounding_B = columns_BNR.new_tensor([_ROUNDING * torch.finfo(matrix.dtype).eps for matrix in matrices])
    for at in range(num_columns):
        columns_BNR[:, :, at] = _straight(columns_BNR, at, rounding_B)
    return [
        columns[: matrix.shape[0], : matrix.shape[1]].to(matrix.dtype)
        for columns, matrix in zip(columns_BNR, matrices, strict=True)
    ]


def _straight(columns_BNR: Tensor, at: int, rounding_B: Tensor) -> Tensor:
    """Returns column `at` without its share in those before it, and of length 1 or zero."""
    column_BN, before_BNK = columns_BNR[:, :, at], columns_BNR[:, :, :at]
    length_B = _sum_rows(column_BN.square()).sqrt()
    # Twice is enough (Kahan): the second pass takes away what rounding left of the first.
    for _ in range(2 if at else 0):
        shares_BK = _sum_rows(before_BNK * column_BN[:, :, None])
        for number in range(at):
            column_BN = column_BN - before_BNK[:, :, number] * shares_BK[:, number, None]
    rest_B = _sum_rows(column_BN.square()).sqrt()
    # This way round: what is not a number is not taken to be rounding.
    is_rounding_B = rest_B <= rounding_B * length_B
    scaled_BN = column_BN / torch.where(is_rounding_B, 1.0, rest_B)[:, None]
    return torch.where(is_rounding_B[:, None], 0.0, scaled_BN)


def _sum_rows(values_BN: Tensor) -> Tensor:
    """Returns the sum over dim 1, of a power of two: halves are added until one row is left."""
    while values_BN.shape[1] > 1:
        half = values_BN.shape[1] // 2
        values_BN = values_BN[:, :half] + values_BN[:, half:]
    return values_BN[:, 0]
