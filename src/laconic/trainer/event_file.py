"""Files that TensorBoard reads, written without it: importing TensorBoard takes longer than a short run trains.

A file is a row of records, and a record an `Event` of TensorBoard's event.proto:

    length (uint64), its checksum (uint32), event, its checksum (uint32); all little-endian
    Event       1: wall_time (double)   2: step   3: file_version (text)   5: Summary   7: SessionLog
    Summary     1: Value, any number    Value: 1: tag (text)   2: simple_value (float)
    SessionLog  1: status, 1 for START: of what was written before, this step and later ones no longer count
"""

import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import final

_VERSION = "brain.Event:2"
# How protocol buffers say what follows a field's number.
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


@final
class EventFile:
    """Writes a file of its own into `folder`, which is made; close it.

    Args:
        folder: where it goes, beside those of earlier parts of the run.
        next_step: the first step to come.
    """

    def __init__(self, folder: Path, *, next_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        self._file = (folder / name).open("wb")
        self._write(_field(3, _VERSION.encode()))
        self._write(_number(2, next_step) + _field(7, _number(1, 1)))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Adds one point to each of the curves named."""
        points = (_field(1, tag.encode()) + _key(2, _FLOAT) + _float(value) for tag, value in values.items())
        self._write(_number(2, step) + _field(5, b"".join(_field(1, point) for point in points)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        event = _key(1, _DOUBLE) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))
        # A viewer that is open shows it at once.
        self._file.flush()


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        # Larger than float32 can hold.
        return struct.pack("<f", math.copysign(math.inf, value))


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    assert value >= 0
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _checksum(data: bytes) -> bytes:
    """Returns the CRC-32C of the data, masked as TensorFlow does."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)


@cache
def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            # The polynomial of Castagnoli, bits reversed.
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table
