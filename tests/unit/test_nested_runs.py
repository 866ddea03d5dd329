"""What a signal handler or finalizer computes in the middle of a computation of its thread changes nothing there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.fake_driver import FakeGpu
from tests.unit.test_gpu_backend import array, expected, two_steps
from weft.backends import registry
from weft.backends.cpu import code_memory, execution, jit, worker_team
from weft.backends.gpu import execution as gpu_execution
from weft.compiler import realize

pytestmark = pytest.mark.unit


def nest(monkeypatch, owner: Any, name: str, work: Callable[[], object], after: int = 0) -> list[object]:
    """Let a call of `owner.name`, after so many, run `work` first, as a signal handler might; what it returned."""
    original, calls, found = getattr(owner, name), [0], []

    def nesting(*args, **kwargs):
        calls[0] += 1
        if calls[0] == after + 1:
            found.append(work())
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, nesting)
    return found


@pytest.mark.parametrize("after", [0, 1])
def test_numbers_of_a_run_on_the_cpu(monkeypatch, after):
    """Both runs are of one plan, whose numbers lie beside it until it has run."""
    x = weft.tensor(array(4))

    def compute(first: float, second: float) -> list[float]:
        return ((x * first).exp() + second).tolist()

    expected = compute(0.3, 2.1), compute(0.7, 3.3)
    found = nest(monkeypatch, execution, "_word", lambda: compute(0.7, 3.3), after)
    assert compute(0.3, 2.1) == expected[0] and found == [expected[1]]
    assert compute(0.7, 3.3) == expected[1]


@pytest.mark.parametrize("after", [0, 1])
def test_words_and_temporaries_of_a_run_on_a_gpu(monkeypatch, after):
    """Two compiled functions of one program have one plan; one is called while the other enqueues its kernels."""
    monkeypatch.setattr("weft.compiler.lowering.batch_launches.join_launches", lambda steps, *_: list(steps))
    gpu = FakeGpu()
    one, other = array(5, 7), array(5, 7) + 1.0
    with weft.device(gpu.device):
        x, y = weft.tensor(one), weft.tensor(other)
        step, again = weft.compile(two_steps), weft.compile(two_steps)
        again(y)
        found = nest(monkeypatch, gpu_execution._Kernel, "__call__", lambda: again(y).numpy(), after)
        result = step(x).numpy()
        assert len(step.plan.kernels()) > 1 and not gpu.is_enqueueing
    np.testing.assert_allclose(result, expected(one), rtol=1e-6)
    assert len(found) == 1
    np.testing.assert_allclose(found[0], expected(other), rtol=1e-6)


def test_code_that_is_placed_meanwhile():
    """The memory for the code of a kernel is reserved when it is laid out."""
    if not jit.jit().memory.available:
        pytest.skip("code is placed by LLVM's loader here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit.jit(), "addresses", {})
        patch.setattr(realize, "_plans", OrderedDict())
        x = weft.tensor(array(6))
        found = nest(patch, code_memory, "_name", lambda: (x * 3.0 - 1.25).cos().tolist())
        result = (x + 0.75).sin().tolist()
    np.testing.assert_allclose(result, np.sin(array(6) + 0.75), rtol=1e-5)
    assert len(found) == 1
    np.testing.assert_allclose(found[0], np.cos(array(6) * 3.0 - 1.25), rtol=1e-5)


def test_a_compiler_that_is_made_meanwhile(monkeypatch):
    """Whoever is first has made the one of this process."""
    before = jit.jit()
    monkeypatch.setattr(jit, "_jits", [])
    found = nest(monkeypatch, jit, "Jit", jit.jit)
    assert jit.jit() is found[0] is jit.jit() is not before


def test_a_runtime_that_is_made_meanwhile(monkeypatch):
    """Its workers may be at work: the team is not made new once more."""
    resets: list[int] = []
    before = worker_team.runtime()
    monkeypatch.setattr(worker_team, "_runtimes", [])
    monkeypatch.setattr(
        worker_team.NativeRuntime, "__init__", lambda self: vars(self).update(threads=2, reset=resets.append)
    )
    found = nest(monkeypatch, worker_team, "NativeRuntime", worker_team.runtime)
    assert worker_team.runtime() is found[0] is worker_team.runtime() is not before and resets == [1]


def test_devices_that_are_found_meanwhile(monkeypatch):
    monkeypatch.setattr(registry, "_loaded", {})
    found = nest(monkeypatch, registry.importlib, "import_module", lambda: registry.load("reference"))
    assert registry.load("reference") is found[0]
