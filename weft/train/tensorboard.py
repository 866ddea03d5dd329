"""Event files that TensorBoard reads, written without its packages.

A file is a sequence of records: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data; all
little-endian. The data is a protobuf message `Event`, of which scalars, text and histograms-free fields are written:
wall_time (1, double), step (2, int64), file_version (3, string), summary (5, message of values with tag (1), and
simple_value (2, float) or metadata (9) and tensor (8)).
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

__all__ = ["EventWriter"]

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reversed


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _mask_checksum(data: bytes) -> bytes:
    """The checksum as TFRecord files have it."""
    value = crc32c(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append((value & 0x7F) | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, value: Any) -> bytes:
    """One field of a protobuf message: a double, an int, or bytes."""
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _float_field(number: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond float32
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _varint(number << 3 | 5) + packed


class EventWriter:
    """Writes scalars and texts into one event file of a folder: `tensorboard --logdir folder` shows them."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns() % 10**9}"
        self.path = self.folder / name
        self._file = self.path.open("wb")
        self._write(_field(1, now) + _field(3, b"brain.Event:2"))

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """A number at a step."""
        content = _field(1, tag.encode()) + _float_field(2, float(value))
        self._event(content, step)

    def add_text(self, tag: str, text: str, step: int = 0) -> None:
        """A text (Markdown) at a step."""
        plugin = _field(1, b"text")  # SummaryMetadata.PluginData.plugin_name
        tensor = _field(1, 7) + _field(8, text.encode())  # TensorProto: dtype DT_STRING, string_val
        shape = _field(2, _field(2, _field(1, 1)))  # one element
        content = _field(1, tag.encode()) + _field(8, tensor + shape) + _field(9, _field(1, plugin))
        self._event(content, step)

    def _event(self, value: bytes, step: int) -> None:
        self._write(_field(1, time.time()) + _field(2, step) + _field(5, _field(1, value)))

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _mask_checksum(length) + data + _mask_checksum(data))

    def flush(self) -> None:
        """Bring everything to disk."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()
