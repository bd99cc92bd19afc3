"""Frames: what goes before the bytes of a coded message, so that the receiver knows it for the one it waits for.

Both ends know where in the run a message belongs, and how long it is. So a frame does not say it: a frame has a
checksum over all that and over the packet, four bytes, which weigh little even where two ranks share a handful of rows.
A message of another epoch or of another plan, cut, lengthened or altered on the way, is refused before it is decoded;
what it is instead is then found by trying what would fit.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn, final

import torch
from torch import Tensor

from laconic.comm.codecs import MessageKey
from laconic.errors import CommunicationError

_MARK = b"LC"
_FORMAT = 2
# mark, format, direction, layer, call, epoch, step, plan version, rows, bytes of the packet, sender, receiver
_FIELDS = struct.Struct("<2sBBhHIIIIQII")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _CHECKSUM.size


@final
@dataclass(frozen=True)
class _Identity:
    """What a checksum is made over, beside the packet."""

    direction: int
    layer: int
    call: int
    epoch: int
    step: int
    plan_version: int
    num_rows: int
    num_bytes: int
    sender: int
    receiver: int

    @staticmethod
    def of(key: MessageKey, plan_version: int, num_bytes: int) -> "_Identity":
        is_backward = int(key.direction == "backward")
        where = (is_backward, key.layer, key.call, key.epoch, key.step, plan_version)
        return _Identity(*where, len(key.node_ids), num_bytes, key.sender, key.receiver)

    def checksum(self, packet: Tensor) -> int:
        fields = _FIELDS.pack(_MARK, _FORMAT, *vars(self).values())
        return zlib.crc32(packet.contiguous().numpy().data, zlib.crc32(fields))

    def others(self) -> Iterator[tuple[str, "_Identity"]]:
        """Yields what a message that went astray may be: another step of the run, another layer, another plan."""
        for name, most in _ASTRAY.items():
            here = getattr(self, name)
            for value in range(max(0, here - most), here + most + 1):
                if value != here:
                    yield name, replace(self, **{name: value})


# How far off each field is looked for, to say what came instead. It takes time, but only once, at the end of a run.
_ASTRAY = {
    "epoch": 16,
    "step": 16,
    "plan_version": 16,
    "layer": 16,
    "call": 4,
    "direction": 1,
    "num_rows": 64,
    "sender": 64,
    "receiver": 64,
}


def add_header(packet: Tensor, key: MessageKey, plan_version: int) -> Tensor:
    """Returns the frame of a packet, uint8 (HEADER_BYTES + bytes,)."""
    checksum = _Identity.of(key, plan_version, len(packet)).checksum(packet)
    header = bytearray(_CHECKSUM.pack(checksum))
    return torch.cat([torch.frombuffer(header, dtype=torch.uint8), packet])


def take_header(frame: Tensor, key: MessageKey, plan_version: int, num_bytes: int | None = None) -> Tensor:
    """Returns the packet in a frame; raises CommunicationError, naming layer, ranks and epoch, if it is another one.

    Args:
        num_bytes: of the packet, where that is known beforehand.
    """
    header = frame[:HEADER_BYTES].numpy().tobytes()
    if len(header) < HEADER_BYTES:
        _refuse(key, f"it has {len(frame)} bytes, and its header alone has {HEADER_BYTES}")
    packet = frame[HEADER_BYTES:]
    if num_bytes is not None and len(packet) != num_bytes:
        _refuse(key, f"it has {len(packet)} bytes, not {num_bytes}")
    expected, came = _Identity.of(key, plan_version, len(packet)), _CHECKSUM.unpack(header)[0]
    if expected.checksum(packet) != came:
        for name, other in expected.others():
            if other.checksum(packet) == came:
                word = name.replace("num_", "number of ").replace("_", " ")
                _refuse(key, f"its {word} is {getattr(other, name)}, not {getattr(expected, name)}")
        _refuse(key, "its checksum does not fit: it was cut or altered on the way")
    return packet


def _refuse(key: MessageKey, reason: str) -> NoReturn:
    raise CommunicationError(
        f"A message is not the one that was waited for ({key.describe()}): {reason}. Ranks may be at different "
        f"steps or versions, or the network alters data; start all ranks again from the last checkpoint."
    )
