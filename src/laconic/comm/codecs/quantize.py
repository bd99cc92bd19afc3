"""quantize: each number as one of a few levels between the ends of its row."""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.codecs.base import FIRST_ERROR, Codec, Memory, MessageKey, from_bytes
from laconic.comm.codecs.cast import Cast
from laconic.comm.codecs.identity import Identity
from laconic.errors import ConfigError
from laconic.kernels.compile import use_threads
from laconic.kernels.packing import dequantize_rows, quantize_rows

PACKED_BITS = (1, 2, 4, 8)
# Ends of rows stay so near that their distance is a float32 too; numbers beyond become the ends.
_FURTHEST = 1.5e38


@final
@dataclass(frozen=True, slots=True)
class Quantize(Codec):
    """Rounds each number to one of 2**bits levels between the least and the largest number of its row.

    The ends travel as bfloat16, rounded outwards: no number lies beyond them, so a stochastic mean is exact. Each
    number is off by a part f of a step from the level below; its error is f (1 - f) steps squared stochastic, and
    min(f, 1 - f) squared nearest.
    Traffic: ceil(d bits / 8) + 4 bytes per row.

    Args:
        bits: 1, 2, 4 or 8; 0 takes 32 / rate, rounded down to one of these, 16 (cast to bfloat16) or 32 (as they are).
        stochastic: round up or down by chance, so that the mean is right; otherwise to the nearest level.
    """

    bits: int = 0
    stochastic: bool = True

    def __post_init__(self) -> None:
        if self.bits not in (0, *PACKED_BITS):
            raise ConfigError(
                f"codec quantize: bits should be 1, 2, 4 or 8, which fill bytes evenly, or 0 to follow the rate; got "
                f"{self.bits}."
            )

    @property
    def is_unbiased(self) -> bool:
        return self.stochastic

    def contracts(self, rate: float) -> bool:
        # What is lost is at most a step, or half of one, and is then the next range; with 1 bit that is no less.
        return self.bits_at(rate) > 1

    def first_rate(self, remote_share: float, degree: float) -> float:
        # Of half-normal rows, b bits lose about 1.27 / (2^b - 1)^2 of the square, and remote_share^2 of that counts.
        levels = 1 + math.sqrt(1.27) * remote_share / FIRST_ERROR
        return float(next((32 // bits for bits in PACKED_BITS if 2**bits >= levels), 4))

    def bits_at(self, rate: float) -> int:
        """Returns the bits per number at a rate: 1, 2, 4, 8, 16 or 32."""
        if self.bits:
            return self.bits
        return max(bits for bits in (1, 2, 4, 8, 16, 32) if bits <= max(32 / rate, 1))

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        bits = self.bits_at(rate)
        if bits > 8:
            return _wide(bits).wire_bytes(num_rows, width, rate, itemsize)
        return num_rows * (_packed_bytes(width, bits) + 4) if width else 0

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        bits = self.bits_at(rate)
        if bits > 8:
            return _wide(bits).encode(rows, key, rate)
        # Two passes, each many times as fast as torch's one for both.
        low = _outwards(rows.amin(dim=1).numpy(), upwards=False)
        high = _outwards(rows.amax(dim=1).numpy(), upwards=True)
        packed = np.empty((len(rows), _packed_bytes(rows.shape[1], bits)), np.uint8)
        use_threads(torch.get_num_threads(), rows.numel())
        base, step = _scale(low, high, bits, rows.numpy().dtype)
        quantize_rows(rows.numpy(), base, step, key.node_ids, key.value, bits, self.stochastic, packed)
        ends = np.stack([low, high]).view(np.uint8)
        return torch.from_numpy(np.concatenate([ends.ravel(), packed.ravel()]))

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        bits = self.bits_at(rate)
        if bits > 8:
            return _wide(bits).decode(packet, key, rate, width=width, dtype=dtype)
        num_rows = len(key.node_ids)
        ends = from_bytes(packet[: 4 * num_rows], torch.int16, 2, num_rows).numpy().view(np.uint16)
        packed = packet[4 * num_rows :].view(num_rows, _packed_bytes(width, bits)).numpy()
        out = torch.empty(num_rows, width, dtype=dtype)
        base, step = _scale(ends[0], ends[1], bits, out.numpy().dtype)
        use_threads(torch.get_num_threads(), out.numel())
        dequantize_rows(packed, base, step, bits, out.numpy())
        return out


def _wide(bits: int) -> Codec:
    return Cast() if bits == 16 else Identity()


def _packed_bytes(width: int, bits: int) -> int:
    return (width * bits + 7) // 8


def _outwards(values: NDArray[Any], *, upwards: bool) -> NDArray[np.uint16]:
    """Returns the upper halves of the float32 numbers (bfloat16) that are not below, or not above, `values`."""
    values = np.clip(values, -_FURTHEST, _FURTHEST)
    single = values.astype(np.float32)
    # To float32 first, which rounds either way.
    beyond = single < values if upwards else single > values
    single = np.where(beyond, np.nextafter(single, np.float32(np.inf if upwards else -np.inf)), single)
    words = single.view(np.uint32)
    halves = (words >> 16).astype(np.uint16)
    # Cutting goes towards 0, which is inwards for a positive high end and a negative low end.
    is_negative = (words >> 31) == 1
    is_cut_inwards = (words & 0xFFFF != 0) & (is_negative != upwards)
    outwards: NDArray[np.uint16] = halves + is_cut_inwards.astype(np.uint16)
    return outwards


def _scale(
    low: NDArray[np.uint16], high: NDArray[np.uint16], bits: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns what level 0 of each row stands for, and the step from level to level."""
    ends = np.stack([low, high]).astype(np.uint32) << 16
    base, top = ends.view(np.float32).astype(np.float64)
    return base.astype(dtype), ((top - base) / (2**bits - 1)).astype(dtype)
