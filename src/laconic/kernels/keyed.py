"""Randomness as a pure function of a key: the same key gives the same numbers on any number of threads or ranks.

A key is 64 bits, folded from (seed, epoch, ...) by `fold_key`; `mix64` turns a key and a counter into random bits.
Nothing here, nor in any user of it, touches a global random state.
"""

import numpy as np

from laconic.kernels.compile import inline_kernel

_MASK = (1 << 64) - 1
# The finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
_ODD_1 = 0xBF58476D1CE4E5B9
_ODD_2 = 0x94D049BB133111EB
_GOLDEN = 0x9E3779B97F4A7C15

_ODD_1_U64 = np.uint64(_ODD_1)
_ODD_2_U64 = np.uint64(_ODD_2)
_GOLDEN_U64 = np.uint64(_GOLDEN)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_LOW_HALF = np.uint64(0xFFFFFFFF)


def fold_key(*parts: int) -> np.uint64:
    """Returns one key for a tuple of integers, such as (seed, epoch, step, call)."""
    key = 0
    for part in parts:
        key = _mix((key + _GOLDEN + (part & _MASK)) & _MASK)
    return np.uint64(key)


@inline_kernel
def mix64(key, counter):
    """64 random bits for (key, counter), both uint64; for use inside kernels."""
    bits = key + counter * _GOLDEN_U64
    bits = (bits ^ (bits >> _S30)) * _ODD_1_U64
    bits = (bits ^ (bits >> _S27)) * _ODD_2_U64
    return bits ^ (bits >> _S31)


@inline_kernel
def node_key(key, node):
    """The key of one row of a node tensor."""
    return mix64(key, np.uint64(node))


@inline_kernel
def edge_key(key, source, destination):
    """The key of one row of an edge tensor, by the edge's end points in the whole graph."""
    return mix64(mix64(key, np.uint64(source)), np.uint64(destination))


@inline_kernel
def is_kept(row_key, column, threshold):
    """Whether dropout keeps the element at `column` of a row: true for a share 1 - threshold / 2**32 of all columns."""
    word = mix64(row_key, np.uint64(column >> 1))
    half = (word >> np.uint64(32 * (column & 1))) & _LOW_HALF
    return half >= threshold


def drop_threshold(probability: float) -> np.uint64:
    """Returns the threshold at which `is_kept` drops a share `probability`."""
    return np.uint64(min(round(probability * 2.0**32), 2**32))


def _mix(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * _ODD_1) & _MASK
    bits = ((bits ^ (bits >> 27)) * _ODD_2) & _MASK
    return bits ^ (bits >> 31)
