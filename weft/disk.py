"""Files that outlive a process: compiled kernels and whole plans. A base room; knows nothing of what it keeps.

A file holds one payload behind a header with its length and checksum; a file that does not check is as good as absent
and is written again. Files appear by renaming, so a reader sees all of one or nothing, whoever else writes at the same
time. The folder is `WEFT_CACHE_DIR`, else `$XDG_CACHE_HOME/weft`, else `~/.cache/weft`; where it cannot be read or
written nothing is kept, which is no error. `WEFT_CACHE_LIMIT` bytes are kept (2 GiB; 0 keeps nothing): beyond that,
what was not used for longest goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import tempfile
import time
from dataclasses import dataclass

from weft.locks import new_lock

DEFAULT_LIMIT = 2 << 30
OBJECT, PLAN = "object", "plan"  # the kinds of files
KINDS = (OBJECT, PLAN)

_HEADER = struct.Struct("<12sQ32s")
_MAGIC = b"weft cache 2"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SWEPT = "swept"  # a file whose time says when the folder was last brought under the limit
_SWEEP_SECONDS = 3600
_STALE_SECONDS = 3600  # a temporary file this old belongs to nobody
_TOUCH_SECONDS = 600  # how exactly the time of last use is kept


@dataclass(frozen=True, slots=True)
class File:
    """One file of the cache; `used` is when it was last read or written (seconds since 1970)."""

    path: str
    kind: str
    nbytes: int
    used: float


class _Writing:
    """What this process has written since it last looked at the size of the folder."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.since_sweep: int | None = None


_writing = _Writing()


def folder() -> str | None:
    """Where files are kept between processes, or None where there is no such place."""
    chosen = os.environ.get("WEFT_CACHE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "weft") if os.path.isabs(base) else None  # a user without a home has a relative one


def limit() -> int:
    """How many bytes may be kept: `WEFT_CACHE_LIMIT`, such as 500M or 2G. What cannot be read counts as not set."""
    given = given_limit()
    return DEFAULT_LIMIT if given is None else given


def given_limit() -> int | None:
    """The limit that the environment names, or None where it names none or cannot be read."""
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:I?B)?", os.environ.get("WEFT_CACHE_LIMIT", "").strip().upper())
    return int(match[1]) * _UNITS[match[2]] if match else None


def _path(kind: str, key: str) -> str | None:
    home = folder()
    return os.path.join(home, key[:2], f"{key[2:]}.{kind}") if home else None


def read(kind: str, key: str) -> bytes | None:
    """What was kept under `key`, or None where nothing was or the file is damaged."""
    path = _path(kind, key)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            used = os.fstat(file.fileno()).st_mtime
            data = file.read()
        magic, length, digest = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    payload = data[_HEADER.size :]
    if magic != _MAGIC or length != len(payload) or hashlib.sha256(payload).digest() != digest:
        return None
    if time.time() - used > _TOUCH_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path)
    return payload


def write(kind: str, key: str, payload: bytes) -> None:
    """Keep `payload` under `key`, all of it or nothing."""
    path, most = _path(kind, key), limit()
    if path is None or len(payload) > most:
        return
    data = _HEADER.pack(_MAGIC, len(payload), hashlib.sha256(payload).digest()) + payload
    temporary = None
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return
    _count(len(data), most)


def _count(nbytes: int, most: int) -> None:
    """Bring the folder under its limit now and then: at an hour's first write and whenever much was written."""
    with _writing.lock:
        if _writing.since_sweep is None:
            _writing.since_sweep = most if _swept_long_ago() else 0
        _writing.since_sweep += nbytes
        if _writing.since_sweep <= most // 32:
            return
        _writing.since_sweep = 0
    sweep(most)


def _swept_long_ago() -> bool:
    try:
        return time.time() - os.stat(os.path.join(folder() or "", _SWEPT)).st_mtime > _SWEEP_SECONDS
    except OSError:
        return True


def sweep(most: int) -> None:
    """Remove files, those unused for longest first, until at most `most` bytes are left."""
    home = folder()
    if home is None:
        return
    kept = sorted(files(), key=lambda file: -file.used)
    total = 0
    for file in kept:
        total += file.nbytes
        if total > most:
            with contextlib.suppress(OSError):
                os.unlink(file.path)
    with contextlib.suppress(OSError), open(os.path.join(home, _SWEPT), "w"):
        pass


def files() -> list[File]:
    """Everything that is kept. Temporary files that a killed process left behind are removed on the way."""
    found = []
    for shelf in _scan(folder()):
        if len(shelf.name) != 2 or not shelf.is_dir(follow_symlinks=False):
            continue
        for entry in _scan(shelf.path):
            ending = entry.name.rpartition(".")[2]
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if ending in KINDS:
                    found.append(File(entry.path, ending, about.st_size, about.st_mtime))
                elif ending == "tmp" and time.time() - about.st_mtime > _STALE_SECONDS:
                    os.unlink(entry.path)
    return found


def _scan(path: str | None) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path or "") as entries:
            return list(entries)
    except OSError:
        return []


def clear() -> list[File]:
    """Remove everything that is kept; returns what was removed."""
    gone = []
    for file in files():
        with contextlib.suppress(OSError):
            os.unlink(file.path)
            gone.append(file)
    return gone
