"""Loops that write into a tensor at changing positions: they compile a fixed number of plans whatever their length,
and what they cost in Python grows with the number of writes."""

import random

import numpy as np
import pytest
import torch

import weft
from tests.backend.call_counts import plans_built, python_calls
from tests.unit.lockstep import Lockstep

pytestmark = pytest.mark.backend


class Windows:
    """An int, a whole axis or a window of fixed extent and step for each axis; where it begins changes."""

    def __init__(self, rng, shape):
        self.rng, self.parts = rng, []
        for extent in shape:
            step = rng.choice([1, 1, 2, 3])
            span = (rng.randint(1, max(1, (extent - 1) // step)) - 1) * step + 1
            self.parts.append((rng.choice(["int", "int", "all", "window", "window"]), extent, step, span))

    def key(self):
        found = {"all": lambda extent, step, span: slice(None)}
        found["int"] = lambda extent, step, span: self.rng.randrange(extent)
        found["window"] = lambda extent, step, span: slice(at := self.rng.randint(0, extent - span), at + span, step)
        return tuple([found[kind](*rest) for kind, *rest in self.parts])


def value_for(kind, part, source, read):
    if kind == "full":
        return (source[: part.numel()] * 2).reshape(tuple(part.shape))
    return {"number": 2.5, "sum": read.sum() * 0.01, "own": part * 0.5 + 1}[kind]


def loop(seed, device, iterations):
    """A loop that reads and writes at changing positions, beside torch; the number of plans built by each iteration."""
    rng = random.Random(seed)
    shape = tuple([rng.choice([3, 4, 7, 9, 16]) for _ in range(rng.randint(1, 3))])
    written, read = Windows(rng, shape), Windows(rng, shape)
    waits, kind = rng.random() < 0.5, rng.choice(["number", "full", "sum", "own"])
    array = np.random.default_rng(seed).normal(size=shape).astype(rng.choice(["float32", "float64"]))
    theirs, ours = torch.tensor(array), weft.tensor(array, device=device)
    sources = torch.linspace(-1, 1, 4096).to(theirs.dtype), weft.linspace(-1, 1, 4096).to(ours.dtype).to(device)
    plans, start = [], weft.counters()["plans_built"]
    for iteration in range(iterations):
        key, other = written.key(), read.key()
        results = []
        for x, source in zip((theirs, ours), sources, strict=True):
            seen = (x * 2 + 1)[other] if waits else x[other].clone()
            x[key] = value_for(kind, x[key].clone(), source, seen)
            if iteration % 3 == 0:
                results.append((np.array(seen.sum().numpy()), np.array(x.numpy())))
        if iteration % 3 == 0:
            for one, two in zip(*results, strict=True):
                np.testing.assert_allclose(two, one, rtol=2e-4, atol=2e-4)
        plans.append(weft.counters()["plans_built"] - start)
    return plans


@pytest.mark.parametrize("seed", range(16))
def test_loops_over_positions_compile_a_few_plans(seed, cold):
    plans = loop(seed, "cpu", 24)
    assert plans[-1] == plans[15] and plans[-1] <= 12


@pytest.mark.parametrize("seed", range(100, 106))
def test_loops_over_positions_on_a_gpu(seed, cold):
    plans = loop(seed, Lockstep(features=("scalar_arguments",)).device, 19)
    assert plans[-1] == plans[15] and plans[-1] <= 12


def test_parameters_that_a_loop_by_hand_writes(cold):
    def train(module, n):
        rng = np.random.default_rng(0)
        u, v = (module.tensor(rng.normal(size=(rows, 4)).astype(np.float32), requires_grad=True) for rows in (9, 7))
        with module.no_grad():
            for _ in range(n):
                i, j = int(rng.integers(9)), int(rng.integers(7))
                ui, vj = u[i].clone(), v[j].clone()
                error = float(rng.normal()) - (ui * vj).sum()
                u[i] = ui + 0.01 * error * vj
                v[j] = vj + 0.01 * error * ui
        (u * u).sum().backward()
        return u.grad.numpy()

    train(weft, 20)
    assert plans_built(lambda: np.testing.assert_allclose(train(weft, 60), train(torch, 60), rtol=1e-5)) <= 1


# --- growth -----------------------------------------------------------------------------------------------------------


def recurrence(n):
    x = weft.zeros(n)
    for i in range(1, n):
        x[i] = x[i - 1] * 0.5 + 1
    return x.numpy()


def columns(n):
    x = weft.ones(8, n)
    for k in range(n):
        x[:, k] *= 2
    return x.numpy()


def factorisation(n):
    rng = np.random.default_rng(0)
    u, v = (weft.tensor(rng.normal(size=(rows, 4)).astype(np.float32)) for rows in (20, 30))
    for _ in range(n):
        i, j, rating = int(rng.integers(20)), int(rng.integers(30)), float(rng.normal())
        ui, vj = u[i].clone(), v[j].clone()
        error = rating - (ui * vj).sum()
        u[i] = ui + 0.01 * error * vj
        v[j] = vj + 0.01 * error * ui
    return u.numpy()


def read_each_time(n):
    x = weft.zeros(n)
    for i in range(n):
        x[i] = i * 0.37
        x.sum().item()
    return x.numpy()


def reads_of_what_waits(n):
    a, b = weft.ones(n, 16), weft.ones(n, 16)
    weft.eval(a, b)
    x = a + b
    return [(x[i].sum().item(), x[:, i % 16].sum().item()) for i in range(n)]


def elements(n):
    x = weft.zeros(8, 8)
    for i in range(n):
        x[i % 8, i // 8 % 8] = x[i % 8][(i + 3) % 8] + 1
    return x.numpy()


def blocks(n):
    data, out, w = weft.ones(4 * n, 8), weft.zeros(4 * n, 8), weft.ones(8, 8)
    weft.eval(data, out, w)
    for i in range(n):
        out[4 * i : 4 * i + 4] = (data[4 * i : 4 * i + 4] @ w).tanh()
    return out.numpy()


def losses(n):
    w = weft.ones(8).requires_grad_()
    optimizer, found = weft.optim.SGD([w], lr=0.01), weft.zeros(n)
    for i in range(n):
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        found[i] = loss.detach()
        optimizer.step()
    return found.numpy()


LOOPS = [recurrence, columns, factorisation, read_each_time, reads_of_what_waits, elements, blocks, losses]


@pytest.mark.parametrize("run", LOOPS, ids=lambda run: run.__name__)
def test_a_longer_loop_builds_no_more_plans(run, cold):
    """Once compiled, an iteration costs a fixed number of calls."""
    run(40)
    plans, calls = [], []
    for n in (64, 128):
        plans.append(plans_built(lambda n=n: calls.append(python_calls(lambda: run(n)))))
    assert plans[1] <= plans[0] + 1 and max(plans) <= 6
    assert calls[1] < 2.5 * calls[0]


def compiled_recurrence(n):
    def fn(x):
        x = x * 1
        for i in range(1, n):
            x[i] = x[i - 1] * 0.5 + 1
        return x

    return weft.compile(fn)(weft.ones(n)).numpy()


def compiled_rows(n):
    def fn(x):
        x = x * 1
        for i in range(n):
            x[i] = x[i].tanh() * 2
        return x

    return weft.compile(fn)(weft.ones(n, 8)).numpy()


def compiled_columns(n):
    def fn(x):
        x = x * 1
        for k in range(n):
            x[:, k] *= 2
        return x

    return weft.compile(fn)(weft.ones(8, n)).numpy()


def gradient_of_a_recurrence(n):
    def fn(x):
        y = x * 1
        for i in range(1, n):
            y[i] = y[i - 1] * x[0] + 1
        return y.sum()

    return weft.grad(fn)(weft.full((n,), 0.9)).numpy()


@pytest.mark.parametrize(
    "run",
    [compiled_recurrence, compiled_rows, compiled_columns, gradient_of_a_recurrence],
    ids=lambda run: run.__name__,
)
def test_compiling_writes_grows_with_their_number(run, cold):
    run(20)
    few, many = (python_calls(lambda n=n: run(n)) for n in (32, 64))
    assert many < 2.5 * few


def test_values_of_a_loop():
    for run, first in ((recurrence, 0), (compiled_recurrence, 1)):
        x = np.full(40, first, np.float32)
        for i in range(1, 40):
            x[i] = x[i - 1] * np.float32(0.5) + 1
        np.testing.assert_array_equal(run(40), x)
