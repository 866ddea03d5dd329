"""The files that outlive a process: whole or absent, found again, never more than the limit, and never an error."""

import hashlib
import os
import subprocess
import sys
import time

import pytest

from weft import disk

pytestmark = pytest.mark.unit


def key(name):
    return hashlib.sha256(str(name).encode()).hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(disk, "_writing", disk._Writing())
    return tmp_path / "cache"


def test_what_was_written_is_read(folder):
    assert disk.read(disk.PLAN, key(1)) is None
    disk.write(disk.PLAN, key(1), b"one")
    disk.write(disk.OBJECT, key(1), b"")
    assert disk.read(disk.PLAN, key(1)) == b"one"
    assert disk.read(disk.OBJECT, key(1)) == b""
    disk.write(disk.PLAN, key(1), b"another")
    assert disk.read(disk.PLAN, key(1)) == b"another"
    assert sorted(file.kind for file in disk.files()) == ["object", "plan"]


def test_damage_is_absence_and_is_mended(folder):
    disk.write(disk.PLAN, key(1), b"payload")
    (path,) = [file.path for file in disk.files()]
    with open(path, "rb") as file:
        good = file.read()
    for bad in (b"", good[:-1], good + b"x", good[:20], b"x" * len(good), good[:-1] + b"X", bytes(200)):
        with open(path, "wb") as file:
            file.write(bad)
        assert disk.read(disk.PLAN, key(1)) is None, bad
    disk.write(disk.PLAN, key(1), b"payload")
    assert disk.read(disk.PLAN, key(1)) == b"payload"


def test_least_recently_used_goes_first(folder, monkeypatch):
    now = time.time()
    for number in range(8):
        disk.write(disk.OBJECT, key(number), bytes(1000))
    for number in range(8):
        path = disk._path(disk.OBJECT, key(number))
        os.utime(path, (now - 10_000 + number, now - 10_000 + number))
    assert disk.read(disk.OBJECT, key(0)) is not None  # used: now the youngest of all
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "4K")
    disk.write(disk.PLAN, key("new"), bytes(1000))
    left = [number for number in range(8) if disk.read(disk.OBJECT, key(number)) is not None]
    assert left == [0, 7] and disk.read(disk.PLAN, key("new")) is not None
    assert sum(file.nbytes for file in disk.files()) <= 4096


def test_the_limit_holds_over_many_writes(folder, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "20K")
    for number in range(100):
        disk.write(disk.OBJECT, key(number), bytes(700))
        assert sum(file.nbytes for file in disk.files()) <= 20 * 1024 * 33 // 32 + 800
    assert len(disk.files()) > 20
    disk.write(disk.OBJECT, key("large"), bytes(30_000))
    assert disk.read(disk.OBJECT, key("large")) is None


def test_no_limit_to_speak_of_keeps_nothing(folder, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "0")
    disk.write(disk.OBJECT, key(1), b"one")
    assert disk.files() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 2 << 30), ("1000", 1000), ("500M", 500 << 20), ("2GiB", 2 << 30), ("1k", 1024), ("much", 2 << 30)],
)
def test_limits_as_text(monkeypatch, text, expected):
    monkeypatch.setenv("WEFT_CACHE_LIMIT", text)
    assert disk.limit() == expected


def test_clear_removes_our_files_only(folder):
    disk.write(disk.OBJECT, key(1), b"one")
    disk.write(disk.PLAN, key(2), b"two")
    (folder / "mine.txt").write_text("not the cache's")
    assert {file.kind for file in disk.clear()} == {"object", "plan"}
    assert disk.files() == [] and (folder / "mine.txt").exists()


def test_left_over_temporary_files_go(folder):
    disk.write(disk.OBJECT, key(1), b"one")
    shelf = os.path.dirname(disk.files()[0].path)
    for name, age in (("old.tmp", 7200), ("young.tmp", 0)):
        path = os.path.join(shelf, name)
        open(path, "w").close()
        os.utime(path, (time.time() - age,) * 2)
    disk.files()
    assert not os.path.exists(os.path.join(shelf, "old.tmp")) and os.path.exists(os.path.join(shelf, "young.tmp"))


def test_places_that_cannot_be_used(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(blocked / "cache"))
    disk.write(disk.OBJECT, key(1), b"one")
    assert disk.read(disk.OBJECT, key(1)) is None and disk.files() == [] and disk.clear() == []
    monkeypatch.delenv("WEFT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without a home
    monkeypatch.chdir(tmp_path)
    assert disk.folder() is None
    disk.write(disk.OBJECT, key(1), b"one")
    assert disk.read(disk.OBJECT, key(1)) is None and os.listdir(tmp_path) == ["file"]


WRITER = """
import sys
from weft import disk
for turn in range(150):
    for number in range(4):
        found = disk.read(disk.OBJECT, f"{number:064d}")
        assert found is None or found == bytes([number]) * 50_000, "torn"
        disk.write(disk.OBJECT, f"{number:064d}", bytes([number]) * 50_000)
"""


def test_two_processes_write_at_once(folder):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER], stderr=subprocess.PIPE) for _ in range(2)]
    assert [writer.communicate()[1] for writer in writers] == [b"", b""]
    assert len(disk.files()) == 4
