"""Rows of numbers to rows of 1, 2, 4 or 8 bits per number, packed into bytes, and back.

A number becomes one of 2**bits levels between the row's low and high end. Rounding is to the nearest level, or up or
down by chance so that the mean is right; chance is a function of (key, node, column).
"""

import numba
import numpy as np

from laconic.kernels.compile import inline_kernel, parallel_kernel
from laconic.kernels.keyed import mix64, node_key

_LOW_16 = np.uint64(0xFFFF)
_SHARE = np.float32(1.0 / 65536.0)


@parallel_kernel
def quantize_rows(rows, low, step, node_ids, key, bits, is_stochastic, packed):
    """Writes the levels of rows (n, d) to `packed`, uint8 (n, ceil(d * bits / 8)), the first of a byte in its low bits.

    Args:
        low, step: of each row, (n,), in the dtype of `rows`: level k stands for low + k * step.
    """
    width = rows.shape[1]
    top = (1 << bits) - 1
    for i in numba.prange(rows.shape[0]):
        # In steps that the compiler can do many at a time: chances, levels, bytes. Beyond the row, levels stay 0.
        levels = np.zeros(8 * packed.shape[1], np.uint8)
        chances = np.full(width + 3, rows.dtype.type(0.5))
        if is_stochastic:
            _draw_chances(node_key(key, node_ids[i]), width, chances)
        inverse = 1 / step[i] if step[i] > 0 else step[i]
        for column in range(width):
            level = np.int32((rows[i, column] - low[i]) * inverse + chances[column])
            levels[column] = min(max(level, 0), top)
        _pack(levels, bits, packed, i)


@parallel_kernel
def dequantize_rows(packed, low, step, bits, out):
    """Writes low + level * step to `out`, (n, d); the arguments are those of `quantize_rows`."""
    width = out.shape[1]
    for i in numba.prange(out.shape[0]):
        levels = np.empty(8 * packed.shape[1], np.uint8)
        _unpack(packed, i, bits, levels)
        for column in range(width):
            out[i, column] = low[i] + levels[column] * step[i]


@inline_kernel
def _draw_chances(row_key, width, chances):
    # Four columns share a word: sixteen bits decide each, so the chance to round up is right to 2**-17.
    for block in range((width + 3) // 4):
        word = mix64(row_key, np.uint64(block))
        for k in range(4):
            part = (word >> np.uint64(16 * k)) & _LOW_16
            chances[4 * block + k] = (np.float32(np.int32(part)) + np.float32(0.5)) * _SHARE


@inline_kernel
def _pack(levels, bits, packed, row):
    num_bytes = packed.shape[1]
    if bits == 8:
        for j in range(num_bytes):
            packed[row, j] = levels[j]
    elif bits == 4:
        for j in range(num_bytes):
            packed[row, j] = levels[2 * j] | (levels[2 * j + 1] << 4)
    elif bits == 2:
        for j in range(num_bytes):
            k = 4 * j
            packed[row, j] = levels[k] | (levels[k + 1] << 2) | (levels[k + 2] << 4) | (levels[k + 3] << 6)
    else:
        for j in range(num_bytes):
            byte = 0
            for k in range(8):
                byte |= levels[8 * j + k] << k
            packed[row, j] = byte


@inline_kernel
def _unpack(packed, row, bits, levels):
    num_bytes = packed.shape[1]
    if bits == 8:
        for j in range(num_bytes):
            levels[j] = packed[row, j]
    elif bits == 4:
        for j in range(num_bytes):
            byte = packed[row, j]
            levels[2 * j] = byte & 15
            levels[2 * j + 1] = byte >> 4
    elif bits == 2:
        for j in range(num_bytes):
            byte = packed[row, j]
            for k in range(4):
                levels[4 * j + k] = (byte >> (2 * k)) & 3
    else:
        for j in range(num_bytes):
            byte = packed[row, j]
            for k in range(8):
                levels[8 * j + k] = (byte >> k) & 1
