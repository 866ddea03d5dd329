"""What a compiled function has returned keeps its value (`weft.cli.retained`), and which interpreters are supported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import weft
from weft.base import interpreter
from weft.base.references import count_references
from weft.cli import doctor, retained
from weft.jit import result_memory
from weft.jit.result_memory import Piece

pytestmark = [pytest.mark.backend, pytest.mark.smoke]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("size", retained.SIZES)
@pytest.mark.parametrize("name", retained.all_checks())
def test_a_retained_result_keeps_its_value(name, size):
    retained.CHECKS[name](retained.Case(size))


def test_a_result_that_is_overwritten_is_noticed(monkeypatch):
    """The checks fail where memory is handed out again although it is retained."""

    class Free(Piece):
        last_slab = property(lambda self: lambda: None, lambda self, _: None)  # type: ignore[assignment]

    monkeypatch.setattr(result_memory, "Piece", Free)
    with pytest.raises(AssertionError, match="retained 1, 2, 3, and found"):
        retained.CHECKS["list_display"](retained.Case(4))


def test_memory_of_dropped_results_is_used_again():
    case = retained.Case(1000)
    pointer = case.step().node.buffer.pointer
    assert {case.step().node.buffer.pointer for _ in range(5)} == {pointer}
    small = retained.Case(4)
    kept = small.step()
    pointers = set()
    for _ in range(6):
        kept = small.step()
        pointers.add(kept.node.buffer.pointer)
    assert len(pointers) == 2


def test_references_are_counted_the_same_way_everywhere():
    thing, others = object(), []
    for count in range(1, 5):
        assert count_references([thing]) == [count]
        others.append(thing)


def test_no_other_module_counts_references():
    found = [
        path.relative_to(ROOT).as_posix() for path in (ROOT / "weft").rglob("*.py") if "getrefcount" in path.read_text()
    ]
    assert found == ["weft/base/references.py"]


@pytest.mark.parametrize(
    ("implementation", "version", "has_gil", "text"),
    [
        ("cpython", (3, 10, 9), True, "given CPython 3.10; expected CPython 3.11 to 3.14"),
        ("cpython", (3, 15, 0), True, "given CPython 3.15"),
        ("pypy", (3, 11, 0), True, "given pypy 3.11; .* Fix: use CPython"),
        ("cpython", (3, 14, 0), False, "without its global interpreter lock"),
    ],
)
def test_what_is_not_supported_is_refused(monkeypatch, implementation, version, has_gil, text):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_gil, raising=False)
    monkeypatch.setattr(interpreter.sys, "implementation", type("Is", (), {"name": implementation}))
    monkeypatch.setattr(interpreter.sys, "version_info", version)
    with pytest.raises(ImportError, match=text):
        interpreter.require_support()


def test_what_is_supported_is_what_the_package_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, newest = interpreter.OLDEST, interpreter.NEWEST
    assert project["requires-python"] == f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    named = [
        text.rsplit(" ")[-1]
        for text in project["classifiers"]
        if text.startswith("Programming Language :: Python :: 3.")
    ]
    assert named == [f"3.{minor}" for minor in range(oldest[1], newest[1] + 1)]
    for minor in range(oldest[1], newest[1] + 1):
        assert interpreter.reason_to_refuse("cpython", (3, minor), True) == ""


def test_the_checks_run_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "weft.cli.retained"], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout + done.stderr


def test_the_doctor_says_how_many_hold_and_which_do_not(monkeypatch):
    mark, text = doctor._check_retained_results()[1:]
    assert mark is doctor.GOOD and f"{2 * len(retained.CHECKS)} checks" in text
    monkeypatch.setattr(retained, "failures", lambda: iter([("closure[4]", "AssertionError: retained 1, and found 2")]))
    mark, text = doctor._check_retained_results()[1:]
    assert mark is doctor.BAD and "1 checks of retained results fail" in text and "closure[4]" in text
    assert weft.__version__
