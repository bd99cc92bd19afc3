"""Frames: what goes before the bytes of a coded message, so that the receiver knows it for the one it waits for.

Sizes are agreed on beforehand; a frame says them again, and where in the run its message belongs, with a checksum over
all. A message of another epoch or of another plan, cut, lengthened or altered on the way, is refused before it is
decoded.
"""

import struct
import zlib

import torch
from torch import Tensor

from laconic.comm.codecs import MessageKey
from laconic.errors import CommunicationError

_MARK = b"LC"
# mark, format, direction, layer, call, epoch, step, plan version, rows, bytes of the packet; then the checksum
_FIELDS = struct.Struct("<2sBBhHIIIIQ")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_FORMAT = 1
_NAMES = (
    "mark",
    "format",
    "direction",
    "layer",
    "call",
    "epoch",
    "step",
    "plan version",
    "number of rows",
    "number of bytes",
)


def add_header(packet: Tensor, key: MessageKey, plan_version: int) -> Tensor:
    """Returns the frame of a packet, uint8 (HEADER_BYTES + bytes,)."""
    fields = _pack(key, plan_version, len(packet))
    checksum = zlib.crc32(packet.numpy().data, zlib.crc32(fields))
    header = bytearray(fields + _CHECKSUM.pack(checksum))
    return torch.cat([torch.frombuffer(header, dtype=torch.uint8), packet])


def take_header(frame: Tensor, key: MessageKey, plan_version: int) -> Tensor:
    """Returns the packet in a frame; raises CommunicationError, naming layer, ranks and epoch, if it is another one."""
    header = frame[:HEADER_BYTES].numpy().tobytes()
    if len(header) < HEADER_BYTES:
        _refuse(key, f"it has {len(frame)} bytes, and its header alone has {HEADER_BYTES}")
    came = _FIELDS.unpack(header[: _FIELDS.size])
    packet = frame[HEADER_BYTES:]
    expected = _FIELDS.unpack(_pack(key, plan_version, len(packet)))
    # The checksum first: of a header that was altered, no field says anything.
    checksum = zlib.crc32(packet.contiguous().numpy().data, zlib.crc32(header[: _FIELDS.size]))
    if came[0] != _MARK or _CHECKSUM.unpack(header[_FIELDS.size :])[0] != checksum:
        _refuse(key, "its checksum does not fit: it was cut or altered on the way")
    for name, one, other in zip(_NAMES, expected, came, strict=True):
        if one != other:
            _refuse(key, f"its {name} is {other}, not {one}")
    return packet


def _pack(key: MessageKey, plan_version: int, num_bytes: int) -> bytes:
    is_backward = int(key.direction == "backward")
    where = (key.layer, key.call, key.epoch, key.step, plan_version)
    return _FIELDS.pack(_MARK, _FORMAT, is_backward, *where, len(key.node_ids), num_bytes)


def _refuse(key: MessageKey, reason: str) -> None:
    raise CommunicationError(
        f"A message is not the one that was waited for ({key.describe()}): {reason}. Ranks may be at different "
        f"steps or versions, or the network alters data; start all ranks again from the last checkpoint."
    )
