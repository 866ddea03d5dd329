"""The files that outlive a process: whole or absent, found again, never more than the limit, and never an error."""

import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.base import disk

pytestmark = pytest.mark.unit


def key(name):
    return hashlib.sha256(str(name).encode()).hexdigest()


def path_of(kind, name):
    """Where the file of a key lies."""
    return Path(disk.folder(), *disk._folder_and_name(kind, key(name)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(disk, "_writing", disk._Writing())
    return tmp_path / "cache"


def test_tests_use_a_folder_of_their_own():
    """Neither tests nor what they start read or write the user's cache (`conftest.py`)."""
    at_home = os.path.join(os.path.expanduser("~"), ".cache", "weft")
    code = "from weft.base import disk; print(disk.folder())"
    where = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], cwd=where, capture_output=True, text=True, check=True).stdout
    assert said.strip() == disk.folder() == os.path.abspath(os.environ["WEFT_CACHE_DIR"]) != at_home


def test_what_was_written_is_read(folder):
    assert disk.read(disk.PLAN, key(1)) is None
    disk.write(disk.PLAN, key(1), b"one")
    disk.write(disk.OBJECT, key(1), b"")
    assert disk.read(disk.PLAN, key(1)) == b"one"
    assert disk.read(disk.OBJECT, key(1)) == b""
    disk.write(disk.PLAN, key(1), b"another")
    assert disk.read(disk.PLAN, key(1)) == b"another"
    assert sorted(file.kind for file in disk.files()) == ["object", "plan"]


def test_damage_is_absence_and_is_written_again(folder):
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
        path = path_of(disk.OBJECT, number)
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
from weft.base import disk
for iteration in range(150):
    for number in range(4):
        found = disk.read(disk.OBJECT, f"{number:064d}")
        assert found is None or found == bytes([number]) * 50_000, "torn"
        disk.write(disk.OBJECT, f"{number:064d}", bytes([number]) * 50_000)
"""


def test_two_processes_write_at_once(folder):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER], stderr=subprocess.PIPE) for _ in range(2)]
    assert [writer.communicate()[1] for writer in writers] == [b"", b""]
    assert len(disk.files()) == 4


# --- whose folder it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077, 0o277, 0o777])
def test_folders_and_files_are_for_their_owner_alone(folder, umask):
    before = os.umask(umask)
    try:
        disk.write(disk.OBJECT, key(1), b"one")
    finally:
        os.umask(before)
    path = path_of(disk.OBJECT, 1)
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (folder, path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]
    assert disk.read(disk.OBJECT, key(1)) == b"one" and not disk.explain_distrust() and not disk.find_foreign_files()


def test_a_good_file_under_another_name_is_ignored(folder):
    """The checksum covers kind and key: a copy of one kernel over another would run as the other."""
    disk.write(disk.OBJECT, key(1), b"one")
    disk.write(disk.OBJECT, key(2), b"two")
    disk.write(disk.PLAN, key(2), b"plan")
    shutil.copyfile(path_of(disk.OBJECT, 1), path_of(disk.OBJECT, 2))
    shutil.copyfile(path_of(disk.OBJECT, 1), path_of(disk.PLAN, 1).parent / f"{key(1)[2:]}.plan")
    assert disk.read(disk.OBJECT, key(1)) == b"one"
    assert disk.read(disk.OBJECT, key(2)) is None and disk.read(disk.PLAN, key(1)) is None
    assert disk.read(disk.PLAN, key(2)) == b"plan"
    disk.write(disk.OBJECT, key(2), b"two")
    assert disk.read(disk.OBJECT, key(2)) == b"two"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_a_folder_that_others_may_write_to_is_not_used(folder, mode):
    disk.write(disk.OBJECT, key(1), b"one")
    folder.chmod(mode)
    assert disk.read(disk.OBJECT, key(1)) is None
    disk.write(disk.OBJECT, key(2), b"two")
    assert not path_of(disk.OBJECT, 2).exists()
    why = disk.explain_distrust()
    assert why == f"{folder} can be written by others (mode {mode:04o}): chmod 700 {folder}"
    subprocess.run(why.partition(": ")[2].split(), check=True)  # the one thing to do
    assert disk.read(disk.OBJECT, key(1)) == b"one" and not disk.explain_distrust()


def test_others_may_read(folder):
    disk.write(disk.OBJECT, key(1), b"one")
    folder.chmod(0o755)
    assert disk.read(disk.OBJECT, key(1)) == b"one" and not disk.explain_distrust()


def test_the_folder_of_another_user_is_not_used(folder, monkeypatch):
    disk.write(disk.OBJECT, key(1), b"one")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert disk.read(disk.OBJECT, key(1)) is None
    disk.write(disk.OBJECT, key(2), b"two")
    assert not path_of(disk.OBJECT, 2).exists()
    expected = f"belongs to user {owner}, not to you (user {owner + 1}): set WEFT_CACHE_DIR to a folder of your own"
    assert disk.explain_distrust() == f"{folder} {expected}"


@pytest.mark.parametrize("what", ["file", "shelf"])
def test_files_and_folders_inside_are_checked_too(folder, what):
    disk.write(disk.OBJECT, key(1), b"one")
    path = path_of(disk.OBJECT, 1)
    inside = path if what == "file" else path.parent
    inside.chmod(0o777)
    assert disk.read(disk.OBJECT, key(1)) is None
    assert disk.find_foreign_files() == [str(inside)] and not disk.explain_distrust()
    if what == "file":
        disk.write(disk.OBJECT, key(1), b"one")  # replaced
        assert disk.read(disk.OBJECT, key(1)) == b"one" and not disk.find_foreign_files()


@pytest.mark.parametrize("what", ["file", "shelf"])
def test_links_inside_are_not_followed(folder, tmp_path, what):
    disk.write(disk.OBJECT, key(1), b"one")
    path = path_of(disk.OBJECT, 1)
    inside, away = (path if what == "file" else path.parent), tmp_path / "away"
    inside.rename(away)
    inside.symlink_to(away)
    assert disk.read(disk.OBJECT, key(1)) is None
    assert disk.find_foreign_files() == [str(inside)]
    disk.write(disk.OBJECT, key(1), b"another")
    kept = away if what == "file" else away / path.name
    assert kept.read_bytes().endswith(b"one")  # nothing was written through the link
    disk.clear()
    assert not inside.is_symlink() and kept.exists() and not disk.find_foreign_files()


def test_the_mark_of_the_last_sweep_is_not_written_through_a_link(folder, tmp_path):
    disk.write(disk.OBJECT, key(1), b"one")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / disk._SWEPT).unlink(missing_ok=True)
    (folder / disk._SWEPT).symlink_to(victim)
    disk.sweep(1 << 20)
    assert victim.read_text() == "precious"


def test_the_folder_itself_may_be_a_link_of_the_users_own(folder, tmp_path, monkeypatch):
    real = tmp_path / "scratch"
    real.mkdir(0o700)
    folder.symlink_to(real)
    disk.write(disk.OBJECT, key(1), b"one")
    assert disk.read(disk.OBJECT, key(1)) == b"one" and list(real.iterdir())
    lstat = os.lstat

    def by_another(path):
        about = list(lstat(path))
        about[4] += 1  # the owner
        return os.stat_result(about)

    monkeypatch.setattr(os, "lstat", by_another)
    assert disk.read(disk.OBJECT, key(1)) is None and "is a link that user" in disk.explain_distrust()


def test_a_pipe_is_not_waited_for(folder):
    disk.write(disk.OBJECT, key(1), b"one")
    path = path_of(disk.OBJECT, 1)
    path.unlink()
    os.mkfifo(path)
    assert disk.read(disk.OBJECT, key(1)) is None


def test_a_folder_that_can_only_be_read(folder, monkeypatch):
    disk.write(disk.OBJECT, key(1), b"one")

    def refuse(*_args, **_kwargs):
        raise OSError(errno.EROFS, "read-only file system")

    for name in ("mkdir", "replace", "utime", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    disk.write(disk.OBJECT, key(2), b"two")
    assert disk.read(disk.OBJECT, key(1)) == b"one" and disk.read(disk.OBJECT, key(2)) is None


FULL = """
import resource
from weft.base import disk
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
disk.write(disk.OBJECT, "a" * 64, bytes(50_000))
disk.write(disk.OBJECT, "b" * 64, bytes(10_000))
print(disk.read(disk.OBJECT, "a" * 64), len(disk.read(disk.OBJECT, "b" * 64)))
"""


def test_a_full_disk(folder):
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("None 10000\n", "")
    assert [path.suffix for path in folder.rglob("*") if path.is_file() and path.suffix] == [".object"]
