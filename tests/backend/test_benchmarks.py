"""The benchmarks compare like with like: Weft's and torch's side of each small case give the same numbers."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import cases
import in_torch
import in_weft
import run

sys.path.pop(0)

pytestmark = pytest.mark.backend

SMALL = [
    cases.BY_NAME["xor"],
    cases.BY_NAME["mlp"],
    replace(cases.BY_NAME["wide"], sizes=(32,) * 6, batch=16),
    *(replace(case, rows=24, columns=40) for case in cases.CASES if isinstance(case, cases.Chain)),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_weft_and_torch_agree(case):
    ours, theirs = in_weft.make(case), in_torch.make(case)
    for _ in range(2):  # the second time: `reset` really goes back to the start
        values = []
        for runner in (ours, theirs):
            runner.reset()
            runner.run(case.warmup)
            values.append(runner.values(runner.run(20)))
        np.testing.assert_allclose(values[0], values[1], rtol=1e-4)


def test_ratio_and_table():
    results = {"weft": {"seconds": 1e-4}, "torch": {"seconds": 3e-4}, "jax": {"seconds": 2e-4}, "x": {"error": "no"}}
    assert run.ratio(results) == (2.0, "jax")
    report = {"frameworks": list(results), "cases": {"a": {"title": "A", "aim": "2 x", "results": results}}}
    assert run.markdown(report).splitlines()[-1] == "| A | 100 us | 300 us | 200 us | failed | 2.00 (jax) | 2 x |"


def test_disagreement_is_relative_and_takes_the_worst():
    record = {"a": {"values": [1.0, 2.0]}, "b": {"values": [1.0, 2.2]}, "c": {"error": "none"}}
    assert run.disagreement(record) == pytest.approx(0.2 / 2.2)


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us")])
def test_readable(seconds, text):
    assert run.readable(seconds) == text


def test_machine_is_described_without_names_or_paths():
    assert set(run.machine()) == {"processor", "architecture", "cores", "system", "python"}
