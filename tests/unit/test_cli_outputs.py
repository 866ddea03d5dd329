"""What commands write and print: on full disks, in any encoding, into what is no file; warnings and interrupts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.cli import main
from weft.train.faults import DISK_FULL

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A configuration, a network and a trained run."""
    path = tmp_path_factory.mktemp("outputs")
    assert main(["init", str(path / "table.json"), "--task", "tabular"]) == 0
    words = ["train", str(path / "table.json"), "--epochs", "1", "--run", str(path / "run"), "--device", "cpu"]
    assert main(words) == 0
    (path / "net.json").write_text('[{"type": "Linear", "in_features": 4, "out_features": 3}]')
    return path


class _FullDisk:
    """The `os` of `weft.base.files` on a disk that takes ten bytes of each file more."""

    def __getattr__(self, name):
        return getattr(os, name)

    @staticmethod
    def write(handle, data):
        if os.fstat(handle).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(handle, bytes(data[:10]))


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "run", "--output", "x.npy"],
        ["predict", "run", "--output", "x.npz"],
        ["predict", "run", "--output", "x.csv"],
        ["init", "x.json", "--task", "graph", "--force"],
        ["kernels", "net.json", "--map", "x.svg"],
        ["kernels", "net.json", "--sources", "full"],
        ["profile", "net.json", "--json", "x.json"],
        ["profile", "net.json", "--trace", "x.json"],
        ["graph", "net.json", "-o", "x.svg"],
        ["plot", "run", "--svg", "full"],
        ["plot", "run"],
    ],
    ids=" ".join,
)
def test_outputs_on_a_full_disk_leave_what_was_there(folder, words, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "full").mkdir(exist_ok=True)
    for name in ("x.npy", "x.npz", "x.csv", "x.json", "x.svg", "karate.npz"):
        (folder / name).write_text("before")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        patched.setattr("weft.base.files.os", _FullDisk())
        assert main(words) == DISK_FULL
    message = capsys.readouterr().err
    assert message.startswith(f"weft {words[0]}: ") and "a full disk while '" in message and "Traceback" not in message
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    for path in before:
        if path.read_bytes() == b"before":
            path.unlink()


def test_results_go_to_what_is_no_file(folder, monkeypatch):
    monkeypatch.chdir(folder)
    os.mkfifo("pipe.csv")
    try:
        reader = os.open("pipe.csv", os.O_RDONLY | os.O_NONBLOCK)
        assert main(["predict", "run", "--output", "pipe.csv"]) == 0
        assert os.read(reader, 1 << 16).count(b"\n") == 36
        os.close(reader)
    finally:
        os.unlink("pipe.csv")


@pytest.mark.parametrize("words", ["layers Linear", "plot run", "config schema", "evaluate run"])
def test_outputs_whose_encoding_lacks_characters(folder, words):
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "weft", *words.split()], cwd=folder, env=settings, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.isascii()
    if words == "config schema":
        json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes there")
def test_names_of_files_that_are_no_text(folder, monkeypatch):
    monkeypatch.chdir(folder)
    name = os.fsdecode(b"run\xff")
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["train", "table.json", "--epochs", "1", "--run", name, "--device", "cpu"]
    done = subprocess.run([sys.executable, "-m", "weft", *words], env=settings, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"kept in run" in done.stdout and (folder / name / "report.html").is_file()
    shutil.rmtree(folder / name)


def test_an_interrupt_while_a_command_is_loaded(monkeypatch, capsys):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["weft.cli.main"], "importlib", SimpleNamespace(import_module=interrupt))
    assert main(["devices"]) == 130
    assert capsys.readouterr().err == "\nweft devices: interrupted\n"


def test_warnings_are_messages(folder):
    """They were shown with a line of Weft's own source."""
    copy = folder / "damaged"
    shutil.copytree(folder / "run", copy)
    (step,) = (copy / "checkpoints").iterdir()
    os.truncate(step / "tensors.safetensors", 100)
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    words = [sys.executable, "-m", "weft", "evaluate", str(copy)]
    done = subprocess.run(words, env=settings, capture_output=True, timeout=60, text=True)
    shutil.rmtree(copy)
    *warned, refused = done.stderr.splitlines()
    assert done.returncode == 2 and "a run without a complete checkpoint" in refused
    assert len(warned) >= 1 and all(line.startswith("weft evaluate: the checkpoint ") for line in warned), done.stderr
