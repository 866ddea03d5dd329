"""`weft.profile` on an emulated GPU: events around every step, loops, joined launches, unchanged plans."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import weft
import weft.nn as nn
from tests.unit.fake_cuda import FakeCuda
from tests.unit.fake_driver import FakeGpu, HandleDriver
from weft.backends.gpu.execution import _Spans
from weft.compiler.inspect.origins import Origins
from weft.compiler.pipeline import assemble
from weft.compiler.plan_cache import render_kernels
from weft.jit.compiled import Compiled
from weft.plan.plan import iterate_steps
from weft.profiling import profile as profiling
from weft.profiling import rates

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def known_rates(monkeypatch):
    """An emulated device needs minutes for the benchmark."""
    monkeypatch.setattr(rates, "Benchmark", lambda device, dtype: SimpleNamespace(work=1e9, seconds=lambda: 1.0))
    monkeypatch.setattr(rates, "_known", {})
    monkeypatch.setattr(profiling, "ROUNDS", 2)
    monkeypatch.setattr(profiling, "MIN_ROUNDS", 1)
    monkeypatch.setattr("weft.backends.gpu.execution.MAX_BUSY_LAUNCHES", 2)


def training(device):
    with device:
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
        update = weft.optim.Adam(model.parameters(), lr=0.01)
        args = weft.randn(5, 6), weft.tensor([0, 1, 2, 1, 0])
        loss_of = nn.CrossEntropyLoss()
        weft.eval(*args, *model.parameters())

    def step(x, y):
        loss = loss_of(model(x), y)
        update.zero_grad()
        loss.backward()
        update.step()
        return loss

    return model, step, args


@pytest.mark.parametrize("make", [FakeGpu, lambda: FakeGpu(kind=HandleDriver)], ids=["graphs", "handles"])
def test_a_training_step(make):
    backend = make()
    model, step, args = training(backend.device)
    before = [parameter.numpy().copy() for parameter in model.parameters()]
    found = weft.profile(step, *args)
    assert all((one == other.numpy()).all() for one, other in zip(before, model.parameters(), strict=True))
    assert all(kernel.seconds > 0 for kernel in found.kernels)
    assert {"0", "1", "2", "3", "CrossEntropyLoss", "Adam"} <= {layer.layer for layer in found.layers}
    assert "mark" in backend.driver.log
    assert sum(kernel.seconds for kernel in found.kernels) == pytest.approx(found.kernel_seconds)


def test_a_loop_is_timed_by_some_of_its_iterations(monkeypatch):
    backend = FakeGpu()
    monkeypatch.setattr("weft.backends.gpu.execution.TIMED_ITERATIONS", 3)
    with backend.device:
        layer, x = nn.RNN(3, 4), weft.randn(9, 2, 3)
        weft.eval(x, *layer.parameters())
    found = weft.profile(lambda x: layer(x)[0], x)
    inside = [kernel for kernel in found.kernels if kernel.times == 9]
    assert inside and all(kernel.seconds > 0 for kernel in inside)


class Clock:
    """A driver whose events take the times that are given, in seconds, one after the other."""

    def __init__(self, event_seconds):
        self.now, self._event_seconds = 0.0, iter(event_seconds)

    def create_event(self):
        return SimpleNamespace(at=0.0)

    def record_event(self, event):
        self.now += next(self._event_seconds)
        event.at = self.now

    def synchronise(self):
        """Everything is over at once."""

    def seconds_between(self, first, second):
        return second.at - first.at

    def run(self):
        """A kernel of one second."""
        self.now += 1.0


def test_the_time_between_two_events_and_that_of_the_events():
    """Of two steps, the second of which is in a loop whose iterations count three times; then of four empty spans."""
    clock = Clock([0.0, 2.0, 0.0, 3.0, 0.0, 2.0, *[0.0, 4.0] * 3, 0.0, 2.0])
    spans = _Spans(clock, 2)
    spans.span(clock.run, 1.0)
    for _ in range(2):
        spans.at = 1
        spans.span(clock.run, 3.0)
    assert spans.seconds() == ([3.0, 3.0 * (4.0 + 3.0)], [2.0, 3.0 * (2.0 + 2.0)])


def test_a_step_shorter_than_what_disturbs_an_event_has_a_time(monkeypatch):
    """In the second round the events alone took longer than those around the step, as where an event costs as much as
    a short kernel."""
    monkeypatch.setattr(profiling, "MIN_ROUNDS", 3)
    rounds = iter([([4.0], [2.0]), ([3.0], [5.0]), ([5.0], [2.0])])
    isolated = SimpleNamespace(
        run=lambda count, is_checked: None, time_runs=lambda count: 1.0, time_steps=lambda: next(rounds)
    )
    assert profiling._rounds(isolated, 0.0, True, None) == (1.0, [1.0], 3)


def test_joined_launches_have_the_layers_of_all_their_parts():
    backend = FakeCuda()
    _, step, args = training(backend.device)
    found = weft.profile(step, *args)
    joined = [kernel for kernel in found.kernels if kernel.name.startswith(("steps_", "beside_"))]
    assert joined
    assert any(len({part.layer for part in kernel.layers}) > 1 for kernel in joined)
    for kernel in found.kernels:
        assert sum(part.share for part in kernel.layers) == pytest.approx(1)


@pytest.mark.parametrize("make", [FakeCuda, FakeGpu])
def test_origins_leave_the_plan_as_it_is(make):
    backend = make()
    _, step, args = training(backend.device)
    origins = Origins()
    variant, _ = Compiled(step).prepare_variant(args, {}, "test", origins)
    plan, _ = assemble(variant.program, variant.device, origins=origins)
    made = render_kernels(plan, backend)
    assert _form(made) == _form(variant.entry.plan) and made.slots == variant.entry.plan.slots
    assert len(origins.steps) == len(plan.steps)
    assert sum(1 for _ in iterate_steps(plan.steps)) >= len(plan.steps)


def _form(plan):
    """The steps of a plan, kernels by their text."""
    return [
        (step.kernel.text, step.places, step.scalars, step.extent, times) for step, times in iterate_steps(plan.steps)
    ]
