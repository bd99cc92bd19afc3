"""Edge lists to compressed rows, by two stable counting sorts: O(edges), no comparison sort."""

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import serial_kernel

_INT32_LIMIT = 2**31 - 1


def index_dtype(limit: int) -> type[np.int32] | type[np.int64]:
    """Returns the narrowest index type that holds numbers below `limit`."""
    return np.int32 if limit <= _INT32_LIMIT else np.int64


def as_indices(numbers: NDArray[np.integer], limit: int) -> NDArray[np.int32] | NDArray[np.int64]:
    """Returns `numbers`, all below `limit`, in the narrowest index type; not copied where it is that already."""
    if limit <= _INT32_LIMIT:
        return numbers.astype(np.int32, copy=False)
    return numbers.astype(np.int64, copy=False)


def compress_edges(
    sources: NDArray[np.integer], destinations: NDArray[np.integer], num_rows: int, num_columns: int
) -> tuple[NDArray[np.int64], NDArray[np.int32] | NDArray[np.int64], NDArray[np.int32] | NDArray[np.int64]]:
    """Returns (indptr, indices, order): edges by destination, sorted by source within a row, equal ones in given order.

    `order[k]` is the position in the given list of the edge that stands at k.
    """
    order = np.arange(len(sources), dtype=index_dtype(len(sources)))
    order, _ = _stable_sort(order, np.ascontiguousarray(sources), num_columns)
    order, indptr = _stable_sort(order, np.ascontiguousarray(destinations), num_rows)
    return indptr, as_indices(sources[order], num_columns), order


@serial_kernel
def _stable_sort(order, keys, num_keys):
    starts = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(num_keys):
        starts[key + 1] += starts[key]
    cursor = starts[:-1].copy()
    out = np.empty_like(order)
    for position in order:
        key = keys[position]
        out[cursor[key]] = position
        cursor[key] += 1
    return out, starts
