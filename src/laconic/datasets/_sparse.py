"""Sparse features, stored as the parts of a CSR matrix, to dense ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.errors import DataError

# Shapes: Z stored entries, N rows, F columns


def dense_rows(
    data_Z: NDArray[Any],
    indices_Z: NDArray[Any],
    indptr: NDArray[Any],
    shape: NDArray[Any],
    *,
    dtype: str,
    where: str,
) -> NDArray[Any]:
    """Returns the matrix (N, F) of CSR parts; entries at the same place are added up. Errors name `where`."""
    _check(data_Z, indices_Z, indptr, shape, where)
    num_rows, num_columns = (int(size) for size in shape)
    dense = np.zeros(num_rows * num_columns, dtype)
    rows_Z = np.repeat(np.arange(num_rows, dtype=np.int64), np.diff(indptr))
    np.add.at(dense, rows_Z * num_columns + indices_Z, data_Z.astype(dtype))
    return dense.reshape(num_rows, num_columns)


def _check(
    data_Z: NDArray[Any], indices_Z: NDArray[Any], indptr: NDArray[Any], shape: NDArray[Any], where: str
) -> None:
    for name, part, kinds in (
        ("x_data", data_Z, "fiub"),
        ("x_indices", indices_Z, "iu"),
        ("x_indptr", indptr, "iu"),
        ("x_shape", shape, "iu"),
    ):
        if part.ndim != 1 or part.dtype.kind not in kinds:
            what = "integers" if kinds == "iu" else "numbers"
            raise DataError(f"{where}: {name} should be a list of {what}, got {part.dtype} of shape {part.shape}.")
    if len(shape) != 2 or shape.min() < 0:
        raise DataError(f"{where}: x_shape should be (nodes, features), got {shape.tolist()}.")
    num_rows, num_columns = (int(size) for size in shape)
    rises = len(indptr) == num_rows + 1 and indptr[0] == 0 and indptr[-1] == len(indices_Z)
    if not rises or (np.diff(indptr) < 0).any():
        raise DataError(
            f"{where}: x_indptr should have {num_rows + 1} entries, one more than there are nodes, which rise from 0 "
            f"to {len(indices_Z)}, the length of x_indices. It has {len(indptr)}."
        )
    if len(data_Z) != len(indices_Z):
        raise DataError(f"{where}: x_data has {len(data_Z)} entries and x_indices {len(indices_Z)}; they should agree.")
    if len(indices_Z) and not 0 <= indices_Z.min() <= indices_Z.max() < num_columns:
        raise DataError(
            f"{where}: x_indices should hold feature numbers from 0 to {num_columns - 1}, as x_shape says; "
            f"it holds {indices_Z.min()} to {indices_Z.max()}."
        )
