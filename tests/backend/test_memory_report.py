"""Memory as predicted and as it is: the report comes before the first run and is right to the byte."""

import gc
import weakref
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.backend.compiling import numbers


@pytest.fixture
def allocated_bytes(monkeypatch):
    """The bytes of slabs made from now on that are alive, as a function; `most` is their largest number at any time."""
    backend = weft.get_device("cpu").backend
    allocate = backend.allocate

    def count():
        return count.now

    def release(nbytes):
        count.now -= nbytes

    def spy(nbytes):
        slab = allocate(nbytes)
        weakref.finalize(slab, release, nbytes)
        count.now += nbytes
        count.most = max(count.most, count.now)
        return slab

    count.now = count.most = 0
    monkeypatch.setattr(backend, "allocate", spy)
    return count


def training(dtype="float32"):
    """A compiled training step with optimizer state, its arguments and its parameters."""
    shapes = ((48, 64), (64,), (64, 80), (80,), (80, 10), (10,))
    params = [weft.tensor(numbers(*shape).astype(dtype), requires_grad=True) for shape in shapes]
    optimizer = weft.optim.AdamW(params, lr=0.01)

    @weft.compile
    def step(x, y):
        h = x
        for weight, bias in zip(params[::2], params[1::2], strict=True):
            h = (h @ weight + bias).tanh()
        loss = F.cross_entropy(h, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, h.softmax(-1)

    x, y = weft.tensor(numbers(32, 48).astype(dtype)), weft.tensor(np.arange(32) % 10)
    return step, (x, y), params


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_peak_is_what_a_step_holds(allocated_bytes, dtype):
    gc.collect()
    step, args, _ = training(dtype)
    report = step.memory(*args)
    for _ in range(2):
        results = step(*args)
    gc.collect()
    before = allocated_bytes()
    allocated_bytes.most = 0
    del results
    step(*args)
    # Status words and host-written numbers are no tensors of the plan.
    assert 0 <= before - report.peak <= 64
    assert allocated_bytes.most == 0  # a replay whose results nobody kept allocates nothing


def test_nothing_runs_and_the_first_call_finds_the_plan():
    step, args, params = training()
    weft.eval(*params)
    values = [param.numpy() for param in params]
    before = weft.counters()
    report = step.memory(*args)
    after = weft.counters()
    assert after["traces"] - before["traces"] == 1
    assert report.arena_bytes > 0
    assert all(param.grad is None for param in params)
    for param, value in zip(params, values, strict=True):
        np.testing.assert_array_equal(param.numpy(), value)
    before = weft.counters()
    step(*args)
    after = weft.counters()
    assert (after["traces"], after["plans_built"]) == (before["traces"], before["plans_built"])
    assert after["plans_run"] - before["plans_run"] == 1
    assert step.retraces == [] and str(step.plan.memory()) == str(report)
    assert all(param.grad is not None for param in params)


def test_asking_changes_no_result():
    asked, plain = training(), training()
    for iteration in range(3):
        if iteration != 1:
            asked[0].memory(*asked[1])
        results = [step(*args) for step, args, _ in (asked, plain)]
        np.testing.assert_array_equal(results[0][0].numpy(), results[1][0].numpy())
    for one, two in zip(asked[2], plain[2], strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
        np.testing.assert_array_equal(one.grad.numpy(), two.grad.numpy())


def test_the_table():
    step, args, params = training()
    params[0].name = "first weight"
    report = step.memory(*args)
    lines = str(report).splitlines()
    assert lines[0].startswith("peak ") and " inputs and state " in lines[0]
    assert all(len(line) <= 100 for line in lines)
    assert any("6 updated tensors in one piece" in line for line in lines)
    assert any("6 gradients in one piece" in line for line in lines)
    assert any("argument 0" in line for line in lines)
    short = report.table(3).splitlines()
    assert len(short) == 3 + 3 + 1 and short[-1].endswith("smaller ones")
    assert sum(stay.nbytes for stay in report.stays if stay.kind == "input") == report.inputs


def test_intervals_that_live_together_do_not_overlap():
    report = training()[0].memory(*training()[1])
    for number, one in enumerate(report.arena):
        assert one.offset + one.nbytes <= report.arena_bytes
        for two in report.arena[:number]:
            if one.first <= two.last and two.first <= one.last:
                assert one.offset + one.nbytes <= two.offset or two.offset + two.nbytes <= one.offset


def test_the_plot(tmp_path):
    step, args, _ = training()
    report = step.memory(*args)
    report.plot(tmp_path / "arena.svg")
    root = ET.parse(tmp_path / "arena.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    boxes = [rect for rect in root.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    assert len(boxes) == len(report.arena)
    for rect in boxes:
        x, y, wide, high = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + wide <= 960.1 and y + high <= 480.1
    assert any("peak" in (text.text or "") for text in root.iter(f"{space}text"))
    with pytest.raises(weft.RangeError, match=r"plot: given the path .*arena\.pdf"):
        report.plot(tmp_path / "arena.pdf")


def test_a_plan_without_temporaries(tmp_path):
    report = weft.memory_report(lambda x: x + 1, weft.ones(8))
    assert (report.peak, report.arena_bytes, report.temporaries) == (64, 0, 0)
    report.plot(tmp_path / "arena.svg")
    ET.parse(tmp_path / "arena.svg")
    assert "temporar" not in str(report)


@pytest.mark.parametrize("shape", [(), (1,), (8,)])
def test_constants_are_never_read(shape):
    """Not even where somebody has computed the same one and still uses it."""
    ones = weft.ones(*shape)
    waiting = ones + weft.arange(3)[0]
    weft.eval(ones)
    report = weft.memory_report(lambda x: x + 1, weft.ones(8))
    assert (report.inputs, report.outputs) == (32, 32)
    assert waiting.sum().item() == ones.numel()


def test_functions_that_are_not_compiled():
    weight = weft.tensor(numbers(16, 16), requires_grad=True)
    report = weft.memory_report(lambda x: (x @ weight).relu().sum(), weft.ones(64, 16))
    assert report.inputs == 64 * 16 * 4 + 16 * 16 * 4 and report.outputs == 4


def test_inside_compile_is_refused():
    inner = weft.compile(lambda x: x + 1)
    with pytest.raises(weft.GraphError, match=r"inside weft\.compile"):
        weft.compile(lambda x: inner.memory(x) or x)(weft.ones(3))
