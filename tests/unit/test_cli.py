"""The `weft` command: what it prints, and its exit code."""

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import weft
from tests.unit.fake_driver import FakeGpu
from weft.backends.registry import _loaded
from weft.base import disk
from weft.cli import doctor, main
from weft.cli.main import Output

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Run the command in this process with a cache of its own; (exit code, standard output)."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
        output = capsys.readouterr().out
        assert all(len(line) <= 80 for line in output.splitlines())
        return code, output

    return run


def test_version_and_entry_points():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "weft", "--version"], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == f"weft {weft.__version__}" and done.returncode == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"weft": "weft.cli:main"} and project["version"] == weft.__version__


def test_without_a_command(command):
    assert command() == (2, "")


def test_ctrl_c_prints_one_line(monkeypatch, capsys):
    def interrupted(options, console):
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.layers.run", interrupted)
    assert main(["layers"]) == 130
    assert capsys.readouterr().err.split("\n") == ["", "weft layers: interrupted", ""]


def test_a_reader_that_has_seen_enough_is_no_error():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import sys; from weft.cli import main; sys.exit(main(['layers']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 0)


def test_files_and_pipes_are_wide(monkeypatch, tmp_path):
    monkeypatch.delenv("COLUMNS", raising=False)
    with open(tmp_path / "out.txt", "w") as file:
        assert Output(file=file).width == 200
        monkeypatch.setenv("COLUMNS", "70")
        assert Output(file=file).width == 70


def test_errors_name_the_command_once(monkeypatch, capsys):
    def refused(options, console):
        raise weft.errors.ConfigError("weft layers: given nothing")

    monkeypatch.setattr("weft.cli.layers.run", refused)
    assert main(["layers"]) == 2 and capsys.readouterr().err == "weft layers: given nothing\n"


def test_cache(command, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "3M")
    code, output = command("cache")
    assert code == 0 and "plans    0 (0 B)" in output and "of 3.0 MiB" in output and "oldest" not in output
    disk.write(disk.PLAN, "0" * 64, bytes(2000))
    disk.write(disk.OBJECT, "1" * 64, bytes(500))
    code, output = command("cache", "show")
    assert code == 0 and "plans       1 (2.0 KiB)" in output and "kernels     1 (552 B)" in output
    assert "oldest use  less than a minute ago" in output
    code, output = command("cache", "clear")
    assert code == 0 and "Removed 2 files (2.5 KiB)" in output and disk.files() == []


def test_cache_of_a_user_without_a_home(command, monkeypatch):
    monkeypatch.setattr(disk, "folder", lambda: None)
    assert command("cache")[1].startswith("Nothing is kept")
    assert command("doctor")[0] == 0


def test_doctor(command):
    code, output = command("doctor")
    assert code == 0 and output.rstrip().endswith("Weft works here.")
    for name in ("python", "weft", "numpy", "llvmlite", "cpu", "reference", "blas", "cuda", "cache", "self-test"):
        assert f" {name} " in output, name


def test_doctor_says_what_to_install_to_the_letter(command, monkeypatch):
    monkeypatch.setattr(doctor, "_libraries", lambda: iter([("a library", doctor.LATER, "pip install 'weft[cuda]'")]))
    assert "'weft[cuda]'" in command("doctor")[1]


def test_doctor_finds_a_limit_that_is_no_size(command, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "much")
    code, output = command("doctor")
    assert code == 1 and "no  cache      WEFT_CACHE_LIMIT is 'much'" in output
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "1M")
    assert command("doctor")[0] == 0


def unwrapped(output):
    """The text of a table's last column on one line."""
    return " ".join(output.split())


def test_doctor_and_cache_say_why_a_folder_is_not_used(command, tmp_path):
    disk.write(disk.OBJECT, "1" * 64, b"code")
    folder = tmp_path / "cache"
    folder.chmod(0o777)
    for name in ("doctor", "cache"):
        code, output = command(name)
        text = output.replace("\n", "").replace(" ", "")
        assert code == (1 if name == "doctor" else 0)
        assert f"canbewrittenbyothers(mode0777):chmod700{folder}" in text, output
    folder.chmod(0o700)
    assert command("doctor")[0] == 0 and "not used" not in command("cache")[1]


def test_doctor_finds_links_in_the_cache(command, tmp_path):
    disk.write(disk.OBJECT, "1" * 64, b"code")
    path = Path(disk.files()[0].path)
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    code, output = command("doctor")
    assert code == 1 and "Run: weft cache clear" in unwrapped(output)
    command("cache", "clear")
    assert command("doctor")[0] == 0


def test_doctor_makes_the_folder_for_its_user_alone(command, tmp_path):
    before = os.umask(0)
    try:
        assert command("doctor")[0] == 0
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_doctor_finds_wrong_numbers(command, monkeypatch):
    right = doctor.training_step("reference")
    monkeypatch.setattr(doctor, "training_step", lambda device: [x + 1e-3 * (device == "cpu") for x in right])
    code, output = command("doctor")
    assert code == 1 and "no  self-test" in output and "1.0e-03" in output


class Gpus:
    """Two GPUs, of which one does not answer."""

    def __len__(self):
        return 2

    def __getitem__(self, number):
        if number == 1:
            raise weft.DeviceError("it is in use")
        return replace(FakeGpu().device, kind="cuda", is_software=True, api="vulkan")


def test_doctor_looks_at_every_gpu(command, monkeypatch):
    asked, step = [], doctor.training_step

    def training_step(device):
        asked.append(device)
        return step("cpu" if device == "cuda:0" else device)

    monkeypatch.setitem(_loaded, "cuda", SimpleNamespace(devices=Gpus, reason=""))
    for kind in ("hip", "opencl", "webgpu"):  # which may be installed here
        monkeypatch.setitem(_loaded, kind, SimpleNamespace(devices=list, reason="it is not installed"))
    monkeypatch.setattr(doctor, "training_step", training_step)
    code, output = command("doctor")
    assert code == 1 and asked == ["cpu", "reference", "cuda:0", "reference"]
    assert "ok  cuda:0" in output and "no  cuda:1" in output and "DeviceError: it is in use" in output
    assert "three training steps on cuda:0" in output and "through vulkan. Software: emulates a GPU" in output
    assert "memory: 64.0 MiB" in output and "limits: 256 lanes and 16.0 KiB of shared memory" in output


def test_doctor_survives_what_is_broken(command, monkeypatch):
    def broken(device):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(doctor, "training_step", broken)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    code, output = command("doctor")
    assert code == 1 and "no such luck" in output and "pip install 'llvmlite>=0.50'" in output


def test_layers(command):
    code, output = command("layers")
    assert code == 0 and "Linear " in output and "L026" in output and "layers NAME" in output
    assert all(f"L{number:03d}" in output for number in range(1, 107))
    for name in ("Linear", "dense_layer", "L026"):
        code, output = command("layers", name)
        assert code == 0 and output.startswith("nn.Linear(in_features, out_features, bias=True")
        assert "x Wᵀ + b" in output and "learns by        gradient" in output and "DenseLayer" in output
    code, output = command("layers", "Softma")
    assert code == 1 and "no layer is called 'Softma'" in output and "LogSoftmax" in output


def test_layers_suggests_a_name(command):
    code, output = command("layers", "Lineer")
    assert code == 1 and "Did you mean Linear" in output
