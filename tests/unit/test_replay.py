"""Kernels and plans are those that are recorded (`tests/replay`): every change of them is seen, and meant.

Whole programs are rendered for all devices, single operations and random graphs for the CPU and a GPU by turns; `make
replay` renders everything.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.replay import record
from tests.replay.__main__ import main
from tests.replay.rendering import Line, read_line
from weft.kernels import numerics

pytestmark = pytest.mark.unit

CHUNKS = 24  # tests, so that workers can share them


def test_every_program_is_rendered_for_a_device():
    chosen = record.programs_by_turns()
    assert {name for name, _ in chosen} == {name for name, _ in record.list_programs()}
    assert len(chosen) > 0.5 * len(record.list_programs())


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_as_recorded(chunk):
    """Without the records for a GPU: test_nvrtc_records renders and compares them, and compiles their kernels."""
    chosen = [key for key in record.programs_by_turns() if not (key[0].startswith("record/") and key[1] == "gpu")]
    chosen = chosen[chunk::CHUNKS]
    recorded = record.read()
    found = {line.key: line for line in record.render_chunk(chosen)}
    changed = record.differences({key: recorded[key] for key in chosen if key in recorded}, found)
    assert not changed, "\n".join(changed)


def test_nothing_else_is_recorded():
    assert sorted(record.read()) == sorted(record.list_programs()), "make replay ARGS=--record"
    lines = record.RECORDED.read_text().splitlines()[1:]
    assert lines == sorted(lines, key=lambda text: read_line(text).key)


SOME = (
    "program/adam",
    "program/graphs",
    "network/cnn",
    "network/lstm",
    "record/addmm",
    "random/written/00",
    "random/gradient/03",
)


@pytest.mark.parametrize("seed", ["1", "77"])
def test_digests_follow_from_the_program_alone(seed):
    """Another process, with other hashes (of nodes, too, which follow from their addresses else), other threads, other
    addresses and no memory of what was rendered before."""
    code = (
        "from weft.graph.node import Node\n"
        f"Node.__hash__ = lambda node: getattr(node, 'serial', 7) * 2654435761 * {seed} & 0xFFFFFFFF\n"
        "from tests.replay import record\n"
        f"chosen = [key for key in reversed(record.list_programs()) if key[0].startswith({SOME!r})]\n"
        "print(*record.render_chunk(chosen), sep='\\n')"
    )
    environment = {"PYTHONHASHSEED": seed, "WEFT_NUM_THREADS": seed[0], "PATH": "", "WEFT_CACHE_DIR": ""}
    where = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=where, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    found = [read_line(text) for text in done.stdout.splitlines()]
    recorded = record.read()
    assert len(found) > 30
    assert [line for line in found if recorded.get(line.key) != line] == []


def test_a_changed_kernel_is_named(monkeypatch):
    """Any change of the text that is rendered changes the digest, and the report says where."""
    chosen = [key for key in record.list_programs() if key[0] == "program/sums"]
    before = {line.key: line for line in record.render_chunk(chosen)}
    monkeypatch.setattr(numerics, "MAX_SERIAL_ROW", 4)
    after = {line.key: line for line in record.render_chunk(chosen)}
    changed = record.differences(before, after)
    assert {text.split(" changed")[0] for text in changed[:-2]} == {
        "program/sums on gpu",
        "program/sums on gpu+libraries",
    }


def test_differences_in_words():
    old = Line("a", "cpu", 1, 2, "x")
    assert record.differences({old.key: old}, {old.key: old}) == []
    said = record.differences({old.key: old}, {old.key: replace(old, kernels=3), ("b", "cpu"): replace(old, name="b")})
    assert said[:2] == ["a on cpu changed: 1 plans, 2 kernels before; 1 plans, 3 kernels now", "b on cpu is new"]
    assert record.differences({old.key: old}, {})[0] == "a on cpu is gone"


def test_show_prints_plans_and_kernels(capsys):
    assert main(["--show", "program/linear", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("=== program/linear cpu ") and "\nplan 0\n" in shown
    assert "  step Gemm(" in shown and "  interval " in shown and "\nkernel " in shown and "define " in shown
    assert main(["--show", "no such thing"]) == 2
