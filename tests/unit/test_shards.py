"""The options of the test suite: `--shard` gives parts that are disjoint and complete, `--device` names a GPU that has
to be there, and what a device lacks is skipped."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import chosen_device, shards
from weft.base import dtypes
from weft.base.capabilities import Features
from weft.plan.device import Device

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(11))
def test_numbers(number):
    pass

@pytest.mark.parametrize("name", ["a", "b"])
def test_names(name):
    pass
"""
WITHOUT_FLOAT64 = """
import pytest
import weft
from tests.unit import webgpu_devices

pytestmark = pytest.mark.gpu

def test_made():
    weft.zeros(3, dtype=weft.float64, device=webgpu_devices.limited())

def test_moved():
    weft.zeros(3, dtype=weft.float64, device="cpu").to(webgpu_devices.limited())

def test_module():
    with webgpu_devices.limited():
        weft.nn.Linear(2, 2).double()

def test_by_an_operation():
    weft.ones(3, device=webgpu_devices.limited()).sum(dtype=weft.float64).numpy()
"""


def run(folder: Path, text: str, plugins: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest with these plugins on one file of tests."""
    (folder / "test_some.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: as in the suite\n")
    loaded = [word for plugin in plugins.split() for word in ("-p", plugin)]
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *loaded, *options, "test_some.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def passed(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {word for line in done.stdout.splitlines() if "PASSED" in line for word in line.split() if "::" in word}


def test_parts_are_disjoint_complete_and_of_equal_size():
    tests = list(range(1000))
    for parts in (1, 2, 7, 1000, 1003):
        kept = [shards.split(tests, part, parts) for part in range(1, parts + 1)]
        assert sorted(test for part, _ in kept for test in part) == tests
        assert all(sorted(part + others) == tests for part, others in kept)
        sizes = [len(part) for part, _ in kept]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.slow
def test_parts_of_a_run(tmp_path):
    """Of what -k leaves, with one process and with several."""
    chosen = ["-v", "-k", "numbers and not 10"]
    first = passed(run(tmp_path, TESTS, "tests.shards", *chosen, "--shard", "1/2"))
    second = passed(run(tmp_path, TESTS, "tests.shards xdist.plugin", *chosen, "--shard", "2/2", "-n", "2"))
    assert len(first) == len(second) == 5
    assert first | second == {f"test_some.py::test_numbers[{number}]" for number in range(10)}


@pytest.mark.parametrize("text", ["0/5", "6/5", "2", "2/0", "1/5/5", "-1/5", "a/b", ""])
def test_a_part_that_does_not_exist_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected I/N with 1 <= I <= N, such as 2/5"):
        shards.parse(text)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("cuda:77", "given 'cuda:77'"), ("tpu", "given 'tpu'"), ("cpu", "cpu is not a GPU; expected one of cuda")],
)
def test_a_device_that_is_not_there_or_no_gpu(name, reason):
    assert reason in chosen_device.find(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--shard", "6/5", "argument --shard: given '6/5'; expected I/N"), ("--device", "cuda:77", "--device cuda:77: ")],
)
def test_a_wrong_option_ends_the_run(option, value, message, tmp_path):
    done = run(tmp_path, TESTS, "tests.shards tests.chosen_device", option, value)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and message in done.stderr and "passed" not in done.stdout


# ---- what a device lacks --------------------------------------------------------------------------------------------


def item(*needed: str, **parameters: object) -> SimpleNamespace:
    """What `skip_unless_able` reads of a test."""
    return SimpleNamespace(
        iter_markers=lambda name: [pytest.mark.needs(*needed).mark] if name == "needs" else [],
        get_closest_marker=lambda name: None,
        callspec=SimpleNamespace(params=parameters),
    )


LIMITED = Device("fake", 0, None, dtypes=frozenset({dtypes.float32}), features=Features(workgroups=True),
               libraries={"blas": None})  # fmt: skip


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (item("cudnn"), "fake:0 has no cudnn"),
        (item("blas", "cuda"), "fake:0 has no cuda"),
        (item("float64"), "fake:0 has no float64"),
        (item(dtype=dtypes.float64), "fake:0 has no float64"),
        (item(what="int64", other=3), "fake:0 has no int64"),
        (item("blas", "float32", "fake", "hardware", dtype=dtypes.float32, name="softmax"), ""),
    ],
)
def test_what_a_device_lacks_is_skipped(test, reason):
    if not reason:
        chosen_device.skip_unless_able(test, LIMITED)
        return
    with pytest.raises(pytest.skip.Exception, match=f"^{reason}$"):
        chosen_device.skip_unless_able(test, LIMITED)


@pytest.mark.slow
@pytest.mark.devices
def test_a_dtype_that_a_test_asks_for_is_skipped_and_one_that_weft_asks_for_fails(tmp_path):
    done = run(tmp_path, WITHOUT_FLOAT64, "tests.chosen_device", "-v", "-rs")
    found = {
        line.split("::")[1].split()[0]: line.split()[1]
        for line in done.stdout.splitlines()
        if "::test" in line and "%" in line
    }
    if found["test_by_an_operation"] == "SKIPPED":
        pytest.skip("wgpu finds no adapter")
    assert found == {
        "test_made": "SKIPPED",
        "test_moved": "SKIPPED",
        "test_module": "SKIPPED",
        "test_by_an_operation": "FAILED",
    }
    assert done.stdout.count("the device has no float64") >= 1
