"""Files that appear whole or not at all, and JSON that is read strictly. Knows nothing of tensors.

`replace(path)` writes under a temporary name in the same folder, flushes to the disk, renames, and flushes the folder:
a reader sees the old file or the new one, also after a crash. Every operation of the system goes through this
module's `os`, so that tests can let each of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from weft.base.errors import DTypeError, FileError, FileFormatError, problem

MAPPED_BYTES = 1 << 20  # files from this size on are mapped into memory, smaller ones are read
WRITE_BYTES = 1 << 28  # at most so much in one call of the system
TEMPORARY = ".tmp"
_AS_IT_IS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # Windows changes line ends unless told otherwise

PathLike = str | os.PathLike[str]


def as_path(who: str, path: Any) -> Path:
    """A path, or an error for anything else."""
    if not isinstance(path, (str, os.PathLike)):
        raise problem(DTypeError, who, f"a {type(path).__name__} as path", "a string or a pathlib.Path")
    return Path(path)


def damaged_file(who: str, path: Any, why: str, expected: str = "", fix: str = "") -> Exception:
    """The error for a file that cannot be what it should be."""
    return problem(FileFormatError, who, f"the file {str(path)!r}: {why}", expected, fix)


def failed_write(who: str, path: Any, error: OSError) -> Exception:
    """The error for a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        given, expected = f"a full disk while {str(path)!r} was written", "space for the whole file"
        fix = "free some space, or choose another disk; files that were there before are unchanged"
    else:
        given, expected = f"the path {str(path)!r}, which cannot be written ({error.strerror or error})", "one that can"
        fix = "check that the folder exists and may be written to"
    made = problem(FileError, who, given, expected, fix)
    made.errno, made.filename = error.errno, str(path)  # type: ignore[attr-defined]
    return made


# ---- writing ---------------------------------------------------------------------------------------------------------


def temporary_name() -> str:
    """A name that is not used, for what is not complete yet."""
    return f".weft-{os.getpid()}-{secrets.token_hex(6)}{TEMPORARY}"


def write_all(handle: int, data: Any) -> None:
    """Write bytes, or the memory of an array, to an open file."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    view = memoryview(data).cast("B")
    while view.nbytes:
        written = os.write(handle, view[:WRITE_BYTES])
        view = view[written:]


@contextlib.contextmanager
def create(path: PathLike) -> Iterator[int]:
    """A new file, open for writing; flushed to the disk when the block ends."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_IT_IS, 0o666)
    try:
        yield handle
        os.fsync(handle)
    finally:
        os.close(handle)


def write(who: str, path: PathLike, data: str | bytes | memoryview) -> None:
    """Put a text, or bytes, into a file: all of it, or the path keeps what it had. What is no file but takes bytes,
    such as a pipe or /dev/stdout, gets them."""
    data = data.encode() if isinstance(data, str) else data
    if os.path.exists(path) and not os.path.isfile(path):
        _write_through(who, path, data)
        return
    with replace(who, path) as file:
        write_all(file, data)


def _write_through(who: str, path: PathLike, data: Any) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | _AS_IT_IS)
        try:
            write_all(handle, data)
        finally:
            os.close(handle)
    except OSError as error:
        raise failed_write(who, path, error) from error


@contextlib.contextmanager
def replace(who: str, path: PathLike) -> Iterator[int]:
    """A file that is there, whole, when the block has ended; the path keeps its previous content until then."""
    target = Path(os.path.realpath(path))
    temporary = target.parent / temporary_name()
    try:
        with create(temporary) as handle:
            yield handle
        os.replace(temporary, target)
        sync_folder(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise failed_write(who, path, error) from error
        raise


def sync_folder(folder: PathLike) -> None:
    """Flush the names in a folder to the disk, where the system can do that."""
    if sys.platform == "win32":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_bytes(path: PathLike) -> np.ndarray:
    """The bytes of a file as an array that cannot be written to: mapped where they are many, and then read from the
    disk when they are used. Windows replaces no file that is mapped: there all are read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < MAPPED_BYTES or sys.platform == "win32":
            return np.frombuffer(file.read(), np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def parse_json(who: str, path: Any, text: Any, what: str) -> Any:
    """JSON from a file. A name that occurs twice, NaN and infinities, and what nests too deeply are refused."""
    try:
        return json.loads(bytes(text).decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise damaged_file(who, path, f"{what} is not valid JSON ({str(error)[:200]})") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r:.80} occurs twice")
        found[name] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
