"""What messages between ranks will have in bytes, and which of them are coded: known to all before one goes."""

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.comm.codecs.base import Codec, Direction
from laconic.comm.frames import HEADER_BYTES

# Shapes: P ranks

Rates = NDArray[np.float64]
Counts = NDArray[np.int64]
CODABLE = (torch.float32, torch.float64)


def is_coded(codec: Codec, num_rows: int, width: int, rate: float, itemsize: int) -> bool:
    """Whether a message is coded, forward and backward: not at rate 1, nor where it would not be smaller for it."""
    if rate <= 1 or not num_rows or not width:
        return False
    if not codec.is_fixed_size or codec.is_late:
        return True
    return codec.wire_bytes(num_rows, width, rate, itemsize) + HEADER_BYTES < num_rows * width * itemsize


def message_bytes(
    codec: Codec, num_rows: int, width: int, rate: float, itemsize: int, direction: Direction = "forward"
) -> int:
    """Returns the bytes of a message, or the most it can have."""
    if not is_coded(codec, num_rows, width, rate, itemsize):
        return num_rows * width * itemsize
    is_adjoint = direction == "backward" and codec.backward == "adjoint"
    size = codec.adjoint_wire_bytes if is_adjoint else codec.wire_bytes
    return HEADER_BYTES + size(num_rows, width, rate, itemsize)


def exchange_bytes(
    codec: Codec, counts: Counts, rates: Rates, width: int, itemsize: int, direction: Direction
) -> NDArray[np.int64]:
    """Returns the bytes that go from each rank to each in one exchange, (P, P)."""
    sizes = np.zeros_like(counts)
    for sender, receiver in zip(*np.nonzero(counts), strict=True):
        num_rows, rate = int(counts[sender, receiver]), float(rates[sender, receiver])
        sizes[sender, receiver] = message_bytes(codec, num_rows, width, rate, itemsize, direction)
    return sizes if direction == "forward" else sizes.T


def any_coded(codec: Codec, counts: Counts, rates: Rates, width: int, itemsize: int) -> bool:
    """Whether any message between any two ranks is coded."""
    pairs = zip(*np.nonzero(counts), strict=True)
    return any(is_coded(codec, int(counts[pair]), width, float(rates[pair]), itemsize) for pair in pairs)
