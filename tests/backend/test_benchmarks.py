"""The benchmarks compare like with like: Weft's and torch's side of each small case give the same numbers."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import cases
import gpu
import gpu_cases
import gpu_torch  # noqa: F401  # found later by gpu_worker, when the path is back as it was
import gpu_weft  # noqa: F401
import gpu_worker
import in_torch
import in_weft
import run

sys.path.pop(0)

pytestmark = pytest.mark.backend

SMALL_CASES = [
    cases.BY_NAME["xor"],
    cases.BY_NAME["mlp"],
    replace(cases.BY_NAME["wide"], sizes=(32,) * 6, batch=16),
    *(replace(case, rows=24, columns=40) for case in cases.CASES if isinstance(case, cases.Chain)),
]


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
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


QUICK = [*gpu_cases.GROUPS["rows"], *gpu_cases.GROUPS["products"], "copy", "adamw", "turns", "xor", "cnn", "gpt"]


@pytest.fixture(scope="module")
def workers():
    made = [gpu_worker.Worker(framework, "cpu", tiny=True) for framework in ("weft", "torch")]
    gpu_worker.LONG = 0.0
    return made


@pytest.mark.parametrize("name", QUICK)
def test_gpu_cases_agree_in_small(name, workers):
    results = {}
    for number, worker in enumerate(workers):
        results[str(number)] = worker.prepare(name) | worker.sample(name)
        worker.release(name)
    assert all(entry["values"] and entry["seconds"] > 0 for entry in results.values())
    assert gpu.disagreement(results) <= gpu_cases.shrink(gpu_cases.CASES[name]).tolerance


def test_gpu_cases_know_what_they_must_move():
    """The plans move what the cases say that they must, within what parameters, losses and pieces of sums add."""
    worker = gpu_worker.Worker("weft", "cpu", tiny=True)
    gpu_worker.LONG = 0.0
    for name in (
        "layer_norm_fp32_forward",
        "softmax_fp32_backward",
        "gelu_fp32_forward",
        "cross_entropy_fp32_backward",
    ):
        worker.prepare(name)
        moved, least = worker.runners[name].step.plan.bytes, worker.case(name).bytes
        assert least <= moved <= 1.35 * least, name


def test_gpu_report(tmp_path, capsys):
    out = tmp_path / "report.json"
    words = [
        "--device",
        "cpu",
        "--tiny",
        "--rounds",
        "2",
        "--frameworks",
        "weft",
        "--cases",
        "copy",
        "gpt",
        "first-step",
    ]
    assert gpu.main([*words, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert list(report["cases"]) == ["copy", "gpt", "first-step-cold", "first-step-warm"]
    assert all(case["results"]["weft"]["seconds"] > 0 for case in report["cases"].values())
    assert len(report["cases"]["copy"]["results"]["weft"]["rounds"]) == 2
    assert "first-step" in report["command"] and str(tmp_path) not in report["command"]
    printed = capsys.readouterr().out
    assert "tokens/s" in printed and "failed" not in printed


def test_gpu_table_gives_shares_of_the_copy():
    results = {"weft": {"seconds": 2e-3}, "torch": {"seconds": 4e-3}, "torch.compile": {"error": "no"}}
    case = {"title": "A", "aim": "85 %", "bytes": 4 * 10**9, "tolerance": 1.0, "disagreement": 0.0, "results": results}
    copy = {**case, "title": "copy", "results": {"torch": {"seconds": 1e-3}}}
    report = {"frameworks": ["weft", "torch", "torch.compile"], "cases": {"copy": copy, "a": case}}
    expected = "| A | 2 ms | 4 ms | failed | 2.00 (torch) | 2.00 TB/s (50%) | 85 % |"
    assert gpu.table(report).splitlines()[-1] == expected
