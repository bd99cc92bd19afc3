"""Rows of numbers to rows of 1, 2, 4 or 8 bits per number, packed into bytes, and back.

A number becomes one of 2**bits levels between the row's low and high end. Rounding is to the nearest level, or up or
down by chance so that the mean is right; chance is a function of (key, node, column).
"""

import numba
import numpy as np

from laconic.kernels.compile import inline_kernel, parallel_kernel
from laconic.kernels.keyed import mix64, node_key

_LOW_16 = np.uint64(0xFFFF)
_QUARTER = np.uint64(16)
_SHARE = 1.0 / 65536.0


@parallel_kernel
def quantize_rows(rows, low, step, node_ids, key, bits, is_stochastic, packed):
    """Writes the levels of rows (n, d) to `packed`, uint8 (n, ceil(d * bits / 8)), the first of a byte in its low bits.

    Args:
        low, step: of each row, (n,), in the dtype of `rows`: level k stands for low + k * step.
    """
    width = rows.shape[1]
    per_byte = 8 // bits
    for i in numba.prange(rows.shape[0]):
        row_key = node_key(key, node_ids[i])
        inverse = 1 / step[i] if step[i] > 0 else step[i]
        for j in range(packed.shape[1]):
            first = j * per_byte
            byte = 0
            for k in range(min(per_byte, width - first)):
                scaled = (rows[i, first + k] - low[i]) * inverse
                byte |= _level(scaled, row_key, first + k, bits, is_stochastic) << (k * bits)
            packed[i, j] = byte


@parallel_kernel
def dequantize_rows(packed, low, step, bits, out):
    """Writes low + level * step to `out`, (n, d); the arguments are those of `quantize_rows`."""
    width = out.shape[1]
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    for i in numba.prange(out.shape[0]):
        for j in range(packed.shape[1]):
            byte = np.int64(packed[i, j])
            first = j * per_byte
            for k in range(min(per_byte, width - first)):
                out[i, first + k] = low[i] + ((byte >> (k * bits)) & mask) * step[i]


@inline_kernel
def _level(scaled, row_key, column, bits, is_stochastic):
    # Sixteen random bits decide: the chance to round up is right to 2**-17.
    chance = 0.5
    if is_stochastic:
        word = mix64(row_key, np.uint64(column >> 2))
        chance = (np.float64((word >> (_QUARTER * np.uint64(column & 3))) & _LOW_16) + 0.5) * _SHARE
    level = np.int64(scaled + chance)
    return min(max(level, 0), (1 << bits) - 1)
