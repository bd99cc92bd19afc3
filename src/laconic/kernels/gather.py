"""Copies rows. Serial: worker threads gather batches side by side, without the Python lock and torch's own threads."""

from laconic.kernels.compile import serial_kernel
from laconic.kernels.prefetch import prefetch_row

_AHEAD = 16


@serial_kernel
def gather_rows(values, rows, out):
    """Writes out[k] = values[rows[k]]; both are 2-D and C-contiguous. `rows` is not checked."""
    width = values.shape[1]
    num_rows = len(rows)
    for k in range(num_rows):
        if k + _AHEAD < num_rows:
            prefetch_row(values, rows[k + _AHEAD], width)
        row = rows[k]
        for column in range(width):
            out[k, column] = values[row, column]
