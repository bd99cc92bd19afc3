"""topk: the largest numbers of each row, and where they stand."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory, MessageKey, as_bytes, from_bytes
from laconic.errors import ConfigError

_WIDEST = 1 << 16


@final
@dataclass(frozen=True, slots=True)
class Topk(Codec):
    """Sends the k numbers of each row that are furthest from 0; the others arrive as 0.

    Of equal ones the first are sent. Gradients come back for the same places, which both ends know by then.
    Traffic: 4 k bytes per row, and for the places 2 k or d / 8, whichever is less; k is the most that the rate allows.
    """

    backward: ClassVar[Literal["adjoint", "straight_through"]] = "adjoint"

    def contracts(self, rate: float) -> bool:
        return True

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        num_kept = _num_kept(width, rate, itemsize)
        return num_rows * (num_kept * itemsize + _place_bytes(num_kept, width))

    def adjoint_wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * _num_kept(width, rate, itemsize) * itemsize

    def adjoint(self, packet: Tensor, num_rows: int, width: int, rate: float, dtype: torch.dtype) -> Codec:
        num_kept = _num_kept(width, rate, dtype.itemsize)
        return _AtPlaces(_read_places(packet[num_rows * num_kept * dtype.itemsize :], num_rows, num_kept, width))

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        width = rows.shape[1]
        if width > _WIDEST:
            raise ConfigError(f"codec topk numbers columns with 16 bits, so rows have {_WIDEST} at most, not {width}.")
        # Stable: of equal numbers the first, on any machine.
        order = rows.abs().sort(dim=1, descending=True, stable=True).indices
        places = order[:, : _num_kept(width, rate, rows.itemsize)].sort(dim=1).values
        return torch.cat([as_bytes(rows.gather(1, places)), _write_places(places, width)])

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        num_rows, num_kept = len(key.node_ids), _num_kept(width, rate, dtype.itemsize)
        end = num_rows * num_kept * dtype.itemsize
        places = _read_places(packet[end:], num_rows, num_kept, width)
        kept = from_bytes(packet[:end], dtype, num_rows, num_kept)
        return torch.zeros(num_rows, width, dtype=dtype).scatter_(1, places, kept)


@final
@dataclass(frozen=True)
class _AtPlaces(Codec):
    """The numbers at places, (n, k), that both ends know."""

    places: Tensor = field(repr=False)

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return self.places.numel() * itemsize

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        return as_bytes(rows.gather(1, self.places))

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        kept = from_bytes(packet, dtype, *self.places.shape)
        return torch.zeros(len(self.places), width, dtype=dtype).scatter_(1, self.places, kept)


def _num_kept(width: int, rate: float, itemsize: int) -> int:
    """Returns the most numbers per row that, with their places, cost no more than the rate allows; one at least."""
    allowed = int(width * itemsize / rate)
    with_numbers = allowed // (itemsize + 2)
    with_bits = (allowed - _bitmap_bytes(width)) // itemsize
    return min(width, max(1, with_numbers, with_bits))


def _place_bytes(num_kept: int, width: int) -> int:
    return min(2 * num_kept, _bitmap_bytes(width))


def _bitmap_bytes(width: int) -> int:
    return (width + 7) // 8


def _write_places(places: Tensor, width: int) -> Tensor:
    if 2 * places.shape[1] <= _bitmap_bytes(width):
        return as_bytes(torch.from_numpy(places.numpy().astype(np.uint16).view(np.int16)))
    is_kept = torch.zeros(len(places), width, dtype=torch.bool).scatter_(1, places, True)
    return torch.from_numpy(np.packbits(is_kept.numpy(), axis=1)).flatten()


def _read_places(packet: Tensor, num_rows: int, num_kept: int, width: int) -> Tensor:
    if 2 * num_kept <= _bitmap_bytes(width):
        numbers = from_bytes(packet, torch.int16, num_rows, num_kept).numpy().view(np.uint16)
        return torch.from_numpy(numbers.astype(np.int64))
    bits = np.unpackbits(packet.view(num_rows, -1).numpy(), axis=1, count=width)
    return torch.from_numpy(np.nonzero(bits)[1].reshape(num_rows, num_kept))
