"""Files that outlive a process: compiled kernels, whole plans, measurements. It knows nothing of what it stores.

A file holds one payload behind a header with its length and a checksum over kind, key and payload: a damaged file, and
a good one under another's name, are as good as absent and are written again. Files appear by renaming, so a reader sees
all of one or nothing, whatever process writes at the same time. The folder is `WEFT_CACHE_DIR`, else
`$XDG_CACHE_HOME/weft`, else `~/.cache/weft`; where it cannot be read or written nothing is kept, which is no error.
`WEFT_CACHE_LIMIT` bytes are kept (2 GiB; 0 keeps nothing): beyond that, the least recently used files are removed.

Machine code is run as it is read. So the folder is made for its owner alone (mode 0700), and it is used only if it
belongs to this user and no other user may write to it; the same holds for the folders and files inside, where symbolic
links are not followed. The folder itself may be a link of the user's own. `explain_distrust` says why a folder is not
used. Windows has no such modes; there the folder is in the user's profile, which others cannot write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weft.base.locks import new_lock

DEFAULT_LIMIT = 2 << 30
OBJECT, PLAN, RATE, TUNING = "object", "plan", "rate", "tuning"  # the kinds of files
KINDS = (OBJECT, PLAN, RATE, TUNING)

_HEADER = struct.Struct("<12sQ32s")
_MAGIC = b"weft cache 3"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SWEPT = "swept"  # a file whose time says when the folder was last brought under the limit
_SWEEP_SECONDS = 3600
_STALE_SECONDS = 3600  # a temporary file this old has no writer any more
_TOUCH_SECONDS = 600  # how exactly the time of last use is kept
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_HAS_FOLDER_HANDLES = os.open in os.supports_dir_fd  # Windows opens no folders; there paths are used
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)

Folder = int | str  # an open folder, or its path where folders cannot be opened


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
    """Where files are kept between processes, or None where there is no such folder."""
    chosen = os.environ.get("WEFT_CACHE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "weft") if os.path.isabs(base) else None  # a user without a home has a relative one


def limit() -> int:
    """How many bytes may be kept: `WEFT_CACHE_LIMIT`, such as 500M or 2G. What cannot be read counts as not set."""
    given = limit_from_environment()
    return DEFAULT_LIMIT if given is None else given


def limit_from_environment() -> int | None:
    """The limit that the environment names, or None where it names none or cannot be read."""
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:I?B)?", os.environ.get("WEFT_CACHE_LIMIT", "").strip().upper())
    return int(match[1]) * _UNITS[match[2]] if match else None


# --- who may have written here ---------------------------------------------------------------------------------------


class Distrusted(OSError):
    """A folder or file that another user may have written."""


def explain_distrust() -> str:
    """Why the folder is not used although it exists, and the one thing to do about it; else an empty text."""
    home = folder()
    if home is None or not os.path.lexists(home):
        return ""
    try:
        with _open_home(home):
            return ""
    except Distrusted as error:
        return str(error)
    except OSError:  # it cannot be read: nothing is kept, and nothing is at risk
        return ""


def find_foreign_files() -> list[str]:
    """Paths of links inside the folder, and of files and folders there that another user may have written. They are
    not used."""
    found = []
    for shelf in _scan(folder()):
        if len(shelf.name) == 2:
            if _is_foreign(shelf, stat.S_ISDIR):
                found.append(shelf.path)
            else:
                found += [one.path for one in _scan(shelf.path) if _kind(one) and _is_foreign(one, stat.S_ISREG)]
    return found


def _is_foreign(entry: os.DirEntry[str], is_expected: Callable[[int], bool]) -> bool:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return not is_expected(about.st_mode) or bool(_fault(about))


def _fault(about: os.stat_result) -> str:
    """What lets others write to a folder or file, in words; empty for nothing."""
    if sys.platform == "win32":
        return ""
    if about.st_uid != os.geteuid():
        return f"belongs to user {about.st_uid}, not to you (user {os.geteuid()})"
    if about.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by others (mode {stat.S_IMODE(about.st_mode):04o})"
    return ""


@contextlib.contextmanager
def _open_home(home: str) -> Iterator[Folder]:
    """The folder, open and checked; what is opened relative to it cannot be replaced concurrently."""
    if sys.platform == "win32" or not _HAS_FOLDER_HANDLES:
        yield home
        return
    link = os.lstat(home)
    elsewhere = "set WEFT_CACHE_DIR to a folder of your own"
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise Distrusted(f"{home} is a link that user {link.st_uid} made: {elsewhere}")
    with _open(home, _FOLDER | getattr(os, "O_CLOEXEC", 0)) as handle:
        about = os.fstat(handle)
        fault = _fault(about)
        if fault:
            fix = f"chmod 700 {home}" if about.st_uid == os.geteuid() else elsewhere
            raise Distrusted(f"{home} {fault}: {fix}")
        yield handle


@contextlib.contextmanager
def _open_shelf(home: Folder, name: str) -> Iterator[Folder]:
    """A folder inside, open and checked."""
    if isinstance(home, str):
        yield os.path.join(home, name)
        return
    with _open(name, _FOLDER | _NO_LINKS, home) as handle:
        if _fault(os.fstat(handle)):
            raise Distrusted(name)
        yield handle


def _locate(name: str, within: Folder | None) -> tuple[str, int | None]:
    """What the system's functions take for a name inside a folder: a path, and the folder that it is relative to."""
    return (os.path.join(within, name), None) if isinstance(within, str) else (name, within)


@contextlib.contextmanager
def _open(path: str, flags: int, within: Folder | None = None, mode: int = 0o600) -> Iterator[int]:
    path, top = _locate(path, within)
    handle = os.open(path, flags, mode, dir_fd=top)
    try:
        yield handle
    finally:
        os.close(handle)


def make_folder() -> None:
    """Make the folder, for this user alone, unless there is one."""
    home = folder()
    if home is not None and not os.path.lexists(home):
        os.makedirs(os.path.dirname(home), exist_ok=True)
        _make_folder(home)


def _make_folder(path: str, within: Folder | None = None) -> None:
    """A folder for this user alone, whatever the umask, unless there is one."""
    path, top = _locate(path, within)
    try:
        os.mkdir(path, 0o700, dir_fd=top)
    except FileExistsError:
        return
    if stat.S_IMODE(os.stat(path, dir_fd=top, follow_symlinks=False).st_mode) != 0o700:
        os.chmod(path, 0o700, dir_fd=top)


# --- reading and writing ---------------------------------------------------------------------------------------------


def _checksum(kind: str, key: str, payload: bytes) -> bytes:
    found = hashlib.sha256(f"{kind}\0{key}\0".encode())
    found.update(payload)
    return found.digest()


def _folder_and_name(kind: str, key: str) -> tuple[str, str]:
    """The folder inside the cache, and the name of the file there."""
    return key[:2], f"{key[2:]}.{kind}"


def read(kind: str, key: str) -> bytes | None:
    """What was kept under `key`; None where nothing was, the file is damaged, or another user may have written it."""
    home = folder()
    if home is None:
        return None
    shelf, name = _folder_and_name(kind, key)
    try:
        with _open_home(home) as top, _open_shelf(top, shelf) as inside:
            flags = os.O_RDONLY | _NO_WAITING | _NO_LINKS  # a pipe under this name must not be waited for
            with _open(name, flags, inside) as handle:
                about = os.fstat(handle)
                if not stat.S_ISREG(about.st_mode) or _fault(about):
                    return None
                with open(handle, "rb", closefd=False) as file:
                    data = file.read()
                if time.time() - about.st_mtime > _TOUCH_SECONDS:
                    with contextlib.suppress(OSError):
                        _note_use(handle, name, inside)
        magic, length, checksum = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    payload = data[_HEADER.size :]
    if magic != _MAGIC or length != len(payload) or _checksum(kind, key, payload) != checksum:
        return None
    return payload


def _note_use(handle: int, name: str, within: Folder) -> None:
    """Give an open file the current time."""
    if os.utime in os.supports_fd:
        os.utime(handle)
    else:
        path, top = _locate(name, within)
        os.utime(path, dir_fd=top)


def write(kind: str, key: str, payload: bytes) -> None:
    """Keep `payload` under `key`, all of it or nothing."""
    home, most = folder(), limit()
    if home is None or len(payload) > most:
        return
    shelf, name = _folder_and_name(kind, key)
    data = _HEADER.pack(_MAGIC, len(payload), _checksum(kind, key, payload)) + payload
    try:
        make_folder()
        with _open_home(home) as top:
            _make_folder(shelf, top)
            with _open_shelf(top, shelf) as inside:
                _replace(inside, name, data)
    except OSError:
        return
    _count(len(data), most)


def find(kind: str, key: str) -> str | None:
    """The path of what is kept under `key`, whatever its state."""
    home = folder()
    path = os.path.join(home, *_folder_and_name(kind, key)) if home is not None else ""
    return path if path and os.path.lexists(path) else None


def remove(kind: str, key: str) -> bool:
    """Remove what is kept under `key`; whether there was anything. OSError where it cannot be removed."""
    path = find(kind, key)
    if path is None:
        return False
    try:
        os.unlink(path)
    except FileNotFoundError:  # another process was faster
        return False
    return True


def _replace(inside: Folder, name: str, data: bytes) -> None:
    """Write a file beside `name`, then give it that name."""
    (temporary, top), (target, _) = (_locate(one, inside) for one in (f"{secrets.token_hex(8)}.tmp", name))
    try:
        with _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS, top) as handle:
            if sys.platform != "win32":
                os.fchmod(handle, 0o600)
            with open(handle, "wb", closefd=False) as file:
                file.write(data)
        os.replace(temporary, target, src_dir_fd=top, dst_dir_fd=top)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=top)
        raise


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
    flags = os.O_WRONLY | os.O_CREAT | _NO_LINKS
    with contextlib.suppress(OSError), _open_home(home) as top, _open(_SWEPT, flags, top) as handle:
        _note_use(handle, _SWEPT, top)


def files() -> list[File]:
    """Everything that is kept. Temporary files that a killed process left behind are removed on the way."""
    found = []
    for shelf in _scan(folder()):
        if len(shelf.name) != 2 or not shelf.is_dir(follow_symlinks=False):
            continue
        for entry in _scan(shelf.path):
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if kind := _kind(entry):
                    found.append(File(entry.path, kind, about.st_size, about.st_mtime))
                elif entry.name.endswith(".tmp") and time.time() - about.st_mtime > _STALE_SECONDS:
                    os.unlink(entry.path)
    return found


def _kind(entry: os.DirEntry[str]) -> str:
    """The kind of file that an entry is by its name, or an empty text."""
    ending = entry.name.rpartition(".")[2]
    return ending if ending in KINDS else ""


def _scan(path: str | None) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path or "") as entries:
            return list(entries)
    except OSError:
        return []


def clear() -> list[File]:
    """Remove everything that is kept, and links in the place of files; returns what was removed."""
    gone = []
    for file in files():
        with contextlib.suppress(OSError):
            os.unlink(file.path)
            gone.append(file)
    for path in find_foreign_files():
        with contextlib.suppress(OSError):
            if os.path.islink(path):
                os.unlink(path)
    return gone
