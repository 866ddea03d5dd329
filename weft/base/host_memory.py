"""How much memory this process may still take: the machine's, or that of the control group (container) it runs in.

Linux overcommits memory and kills the process that touches too much of it. So large requests are compared with what is
available before memory is touched. Where nothing is known, nothing is refused.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

CHECKED = 256 << 20  # bytes from which a request is compared with what is available
UNKNOWN = 1 << 60  # bytes in all, or more, where nothing is known


def memory() -> tuple[int, int]:
    """(bytes that can still be had, bytes in all); UNKNOWN or more where nothing is known."""
    available, total = _of_machine()
    for current, limit, reclaimable in (_of_group_v2(), _of_group_v1()):
        if limit < min(total, UNKNOWN):
            total = limit
            available = min(available, max(limit - current + reclaimable, 0))
    return available, total


def _of_machine() -> tuple[int, int]:
    fields = _fields("/proc/meminfo")
    if "MemAvailable:" in fields:
        return (fields["MemAvailable:"] + fields.get("SwapFree:", 0)) << 10, fields.get("MemTotal:", 0) << 10
    if sys.platform == "win32":
        return _of_windows(ctypes.windll.kernel32)
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return sys.maxsize, sys.maxsize
    return total, total


class _MemoryStatus(ctypes.Structure):
    """Windows' MEMORYSTATUSEX."""

    _fields_ = (
        ("length", ctypes.c_uint32), ("load", ctypes.c_uint32), ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64), ("unused", ctypes.c_uint64 * 5),
    )  # fmt: skip


def _of_windows(kernel32: Any) -> tuple[int, int]:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if not kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return sys.maxsize, sys.maxsize
    return status.available, status.total


def _of_group_v2(root: str = "/sys/fs/cgroup") -> tuple[int, int, int]:
    """(bytes in use, limit, bytes of files that can be dropped) of this process' group, or of one that it is in."""
    folder = os.path.normpath(root + "/" + _group_path())
    best = (0, sys.maxsize, 0)
    while folder.startswith(root):
        limit = _number(folder + "/memory.max")
        if limit is not None and limit < best[1]:
            best = (_number(folder + "/memory.current") or 0, limit, _files(folder + "/memory.stat", ""))
        folder = os.path.dirname(folder)
    return best


def _of_group_v1(root: str = "/sys/fs/cgroup/memory") -> tuple[int, int, int]:
    limit = _number(root + "/memory.limit_in_bytes")
    if limit is None:
        return 0, sys.maxsize, 0
    return _number(root + "/memory.usage_in_bytes") or 0, limit, _files(root + "/memory.stat", "total_")


def _files(path: str, prefix: str) -> int:
    """Bytes of cached files, which the kernel drops where memory is short."""
    fields = _fields(path)
    return fields.get(prefix + "inactive_file", 0) + fields.get(prefix + "active_file", 0)


def _group_path() -> str:
    """The path of this process' group in the one hierarchy of version 2."""
    for line in _lines("/proc/self/cgroup"):
        if line.startswith("0::"):
            return line[3:].strip().lstrip("/")
    return ""


def _fields(path: str) -> dict[str, int]:
    """`name number ...` on each line."""
    found = {}
    for line in _lines(path):
        name, *rest = line.split()
        if rest and rest[0].isdigit():
            found[name] = int(rest[0])
    return found


def _number(path: str) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return [line for line in file if line.strip()]
    except OSError:
        return []
