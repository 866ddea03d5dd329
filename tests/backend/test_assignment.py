"""Writes into parts of a tensor: values and gradients as torch has them, reads that look through writes, and loops over
positions, which compile a fixed number of plans whatever their length."""

import random
import re
import sys

import numpy as np
import pytest
import torch

import weft
from tests.unit.lockstep import Lockstep
from weft.compiler import evaluate, plancache, positions
from weft.graph import build
from weft.graph.node import leaf

pytestmark = pytest.mark.backend

DTYPES = ("float32", "float32", "float64", "int32", "bool", "float16", "int64")


@pytest.fixture
def cold(monkeypatch):
    """No plan is known from before."""
    monkeypatch.setattr(plancache, "ACTIVE", False)
    monkeypatch.setattr(evaluate, "_plans", type(evaluate._plans)())
    monkeypatch.setattr(evaluate, "_forms", type(evaluate._forms)())


def plans_built(call):
    before = weft.counters()["plans_built"]
    call()
    return weft.counters()["plans_built"] - before


def python_calls(call):
    """How many functions run, those in C included."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


# --- values and gradients ---------------------------------------------------------------------------------------------


def random_key(rng, shape):
    """Ints, slices with steps (empty ones, too), None and '...'."""
    key = []
    for extent in shape[: rng.randint(0, len(shape))] if rng.random() < 0.5 else shape:
        kind = rng.random()
        if kind < 0.4:
            key.append(rng.randrange(-extent, extent))
        elif kind < 0.9:
            bounds = [rng.choice([None, rng.randint(-extent - 1, extent + 1)]) for _ in range(2)]
            key.append(slice(*bounds, rng.choice([None, 1, 1, 2, 3])))
        else:
            key.append(slice(None))
    if rng.random() < 0.15:
        key.insert(rng.randint(0 if len(key) == len(shape) else len(key), len(key)), Ellipsis)
    if rng.random() < 0.15:
        key.insert(rng.randint(0, len(key)), None)
    return tuple(key)


class Program:
    """Some writes and reads, one after the other, of ours and of torch's tensors alike."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.shape = tuple([rng.choice([1, 2, 3, 4, 5, 7]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 3]))])
        self.turned = len(self.shape) > 1 and rng.random() < 0.3
        self.dtype = rng.choice(DTYPES)
        shown = self.shape[::-1] if self.turned else self.shape
        kinds = ["number", "read", "read", "array", "add", "look"]
        self.steps = [
            (rng.choice(kinds), random_key(rng, shown), random_key(rng, shown), rng.choice([0, 1, 3.5]), rng.random())
            for _ in range(rng.randint(1, 9))
        ]
        draw = np.random.default_rng(seed)
        self.arrays = draw.integers(-5, 6, self.shape).astype(self.dtype), draw.normal(size=400).astype(np.float32)

    def run(self, module, x, values):
        logic = self.dtype == "bool"
        x = x & x if logic else x * 1
        x = x.permute(*range(len(self.shape))[::-1]) if self.turned else x
        x = x & x if logic else x * 1
        looks = []
        for kind, key, other, number, chance in self.steps:
            shape = tuple(x[key].shape)
            if kind == "number":
                x[key] = {"b": bool, "i": int}.get(np.dtype(self.dtype).kind, float)(number)
            elif kind == "read":
                part = x[other].reshape(-1)[:1]
                if part.shape[0]:
                    part = ~part if logic else part * 2 + 1
                    x[key] = part.reshape(()) if chance < 0.5 or not shape else part
            elif kind == "array":
                shape = (1, *shape[1:]) if chance < 0.5 and shape and shape[0] > 1 else shape
                x[key] = values[: int(np.prod(shape))].reshape(shape).to(getattr(module, self.dtype))
            elif kind == "add" and not logic:
                x[key] += 1 if chance < 0.5 else 2
            else:
                looks.append(x[other] & x[other] if logic else x[other] * 1)
        return [x, *looks]

    def loss(self, results):
        return sum([(one * one * (number + 1)).sum() for number, one in enumerate(results)])


def compare_with_torch(program, how):
    gradients = program.dtype in ("float32", "float64")
    theirs = [torch.tensor(array, requires_grad=gradients and array.dtype.kind == "f") for array in program.arrays]
    ours = [weft.tensor(array, requires_grad=gradients and array.dtype.kind == "f") for array in program.arrays]
    expected = program.run(torch, *theirs)
    run = weft.compile(lambda x, values: program.run(weft, x, values)) if how == "compiled" else None
    actual = run(*ours) if run else program.run(weft, *ours)
    for one, two in zip(actual, expected, strict=True):
        assert tuple(one.shape) == tuple(two.shape)
        np.testing.assert_allclose(
            one.detach().numpy().astype(np.float64), two.detach().numpy().astype(np.float64), rtol=1e-5
        )
    if gradients:
        program.loss(expected).backward()
        program.loss(program.run(weft, *ours)).backward()
        for one, two in zip(ours, theirs, strict=True):
            zero = np.zeros(tuple(two.shape))
            got, wanted = (zero if x.grad is None else x.grad.numpy() for x in (one, two))
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(0, 120, 10))
def test_writes_and_reads_by_the_reference(seed):
    with weft.device("reference"):
        for one in range(seed, seed + 10):
            compare_with_torch(Program(one), "eager")


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("seed", range(200, 212))
def test_writes_and_reads(seed, how):
    compare_with_torch(Program(seed), how)


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


def loop(seed, device, turns):
    """A loop that reads and writes at changing positions, beside torch; the number of plans built by each turn."""
    rng = random.Random(seed)
    shape = tuple([rng.choice([3, 4, 7, 9, 16]) for _ in range(rng.randint(1, 3))])
    written, read = Windows(rng, shape), Windows(rng, shape)
    waits, kind = rng.random() < 0.5, rng.choice(["number", "full", "sum", "own"])
    array = np.random.default_rng(seed).normal(size=shape).astype(rng.choice(["float32", "float64"]))
    theirs, ours = torch.tensor(array), weft.tensor(array, device=device)
    sources = torch.linspace(-1, 1, 4096).to(theirs.dtype), weft.linspace(-1, 1, 4096).to(ours.dtype).to(device)
    plans, start = [], weft.counters()["plans_built"]
    for turn in range(turns):
        key, other = written.key(), read.key()
        results = []
        for x, source in zip((theirs, ours), sources, strict=True):
            seen = (x * 2 + 1)[other] if waits else x[other].clone()
            x[key] = value_for(kind, x[key].clone(), source, seen)
            if turn % 3 == 0:
                results.append((np.array(seen.sum().numpy()), np.array(x.numpy())))
        if turn % 3 == 0:
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
    plans = loop(seed, Lockstep(features=("numbers",)).device, 19)
    assert plans[-1] == plans[15] and plans[-1] <= 12


def shifted(state, x):
    """One turn of a loop that writes into its state."""
    state = state * 1
    state[1] = state[0].clone() * x + 1
    state[0] += state[1].clone() * 0.5
    return state, state


def test_inside_a_loop():
    first, xs = np.ones(3, np.float32), np.linspace(0.1, 1, 7, dtype=np.float32)
    ours = [weft.tensor(array, requires_grad=True) for array in (first, xs)]
    theirs = [torch.tensor(array, requires_grad=True) for array in (first, xs)]
    last, states = weft.loop(shifted, *ours)
    ((states * states).sum() + last.sum()).backward()
    state, stacked = theirs[0], []
    for x in theirs[1]:
        state, _ = shifted(state, x)
        stacked.append(state)
    ((torch.stack(stacked) ** 2).sum() + state.sum()).backward()
    np.testing.assert_allclose(last.detach().numpy(), state.detach().numpy(), rtol=1e-5)
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-4)


def test_inside_a_checkpoint():
    def fn(p):
        y = p * 1
        for i in range(1, 5):
            y[i] = y[i - 1].clone() * p[i] + 1
        return y

    array = np.linspace(-1, 1, 6, dtype=np.float32)
    ours, theirs = weft.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    (weft.checkpoint(fn, ours) ** 2).sum().backward()
    (fn(theirs) ** 2).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5)


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
    """The aim of the issue: n = 1,000 in seconds. Once compiled, a turn costs a fixed number of calls."""
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


# --- what a read is made of -------------------------------------------------------------------------------------------


def in_memory(*shape):
    tensor = weft.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), device="reference")
    return leaf(tensor.node.buffer, shape, tensor.dtype, tensor.device)


def test_a_read_inside_a_write_is_what_was_written():
    x, row, all_rows = in_memory(6, 4), in_memory(1, 4), (0, 0)
    y = build.update_slice(x, row, (2, 0), (1, 1))
    assert build.slice_(y, (2, 0), (3, 4)) is row
    assert build.slice_(y, (2, 1), (3, 3)) is build.slice_(row, (0, 1), (1, 3))
    assert build.slice_(y, (3, 0), (6, 4)) is build.slice_(x, (3, 0), (6, 4))
    assert build.slice_(y, all_rows, (3, 4)).srcs[0] is y  # some of it was written
    z = build.update_slice(y, in_memory(3, 2), (0, 1), (2, 2))  # rows 0, 2, 4 and columns 1, 3
    assert build.slice_(z, (2, 0), (3, 3), (1, 2)) is build.slice_(row, (0, 0), (1, 3), (1, 2))
    assert build.slice_(z, (0, 1), (5, 2), (4, 1)) is build.slice_(z.srcs[1], (0, 0), (3, 1), (2, 1))
    assert build.slice_(z, (0, 1), (5, 2), (1, 1)).srcs[0] is z


def test_a_read_looks_through_permutes_and_detached_values():
    x, row = in_memory(6, 4), in_memory(1, 4)
    turned = build.update_slice(build.permute(x, (1, 0)), build.permute(row, (1, 0)), (0, 2), (1, 1))
    assert turned.op == "permute" and turned.srcs[0] is build.update_slice(x, row, (2, 0), (1, 1))
    assert build.slice_(turned, (0, 2), (4, 3)) is build.permute(row, (1, 0))
    cut = build.stop_gradient(build.update_slice(x, row, (2, 0), (1, 1)))
    assert build.slice_(cut, (2, 0), (3, 4)) is build.stop_gradient(row)


def test_what_is_written_everywhere_or_nowhere():
    x, other = in_memory(3, 2), in_memory(3, 2)
    assert build.update_slice(x, other, (0, 0), (1, 1)) is other
    assert build.update_slice(x, build.slice_(other, (0, 0), (0, 2)), (1, 0), (1, 1)) is x


# --- many writes in one program ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (8, 5, 3), (50,)], ids=str)
@pytest.mark.parametrize("points", [False, True], ids=["windows", "windows and elements"])
def test_a_chain_as_a_concatenation(shape, points, cold, monkeypatch):
    monkeypatch.setattr(positions, "CHOICES", 0)
    rng = random.Random(len(shape))
    axis = int(shape == (6, 40) and not points)
    keys = []
    for number in range(20):
        start = rng.randrange(shape[axis])
        key = (*[slice(None)] * axis, slice(start, start + rng.randint(1, 4)))
        keys.append(tuple([rng.randrange(n) for n in shape]) if points and number % 2 else key)

    def write(x, y):
        x = x * 1
        for number, key in enumerate(keys):
            x[key] = y[key] * (number + 1)
        return x

    x, y = (np.random.default_rng(seed).normal(size=shape).astype(np.float32) for seed in (0, 1))
    actual = weft.compile(write)(weft.tensor(x), weft.tensor(y)).numpy()
    np.testing.assert_array_equal(actual, write(torch.tensor(x), torch.tensor(y)).numpy())


def test_a_large_tensor_is_computed_every_few_writes():
    x = weft.zeros(100, 20_000)
    weft.eval(x)
    before = weft.counters()["launches"]
    for i in range(96):
        x[i] = weft.full((20_000,), float(i))
    assert weft.counters()["launches"] - before <= 8
    np.testing.assert_array_equal(x.numpy()[:, 7], [*range(96), 0, 0, 0, 0])


def test_few_writes_wait_until_the_value_is_read():
    x = weft.zeros(3, 3)
    before = weft.counters()["plans_run"]
    x[0, 0], x[1, 1], x[2, 2] = 1.5, 2.5, 3.5
    assert weft.counters()["plans_run"] == before
    np.testing.assert_array_equal(x.numpy(), np.diag([1.5, 2.5, 3.5]))
    assert weft.counters()["plans_run"] == before + 1


MOVING = {
    "product": lambda x, i: x[:, i : i + 4] @ x[:4],
    "column": lambda x, i: x[:, i] @ x,
    "sums": lambda x, i: x[:, i : i + 30].sum(0),
    "softmax of a part": lambda x, i: x[:, i : i + 20].softmax(-1),
    "part of a softmax": lambda x, i: (x * 2).softmax(-1)[:, i : i + 3],
    "running sums": lambda x, i: x[:, i : i + 20].cumsum(1),
    "order": lambda x, i: x[i : i + 40 : 2, 1:33:3].argsort(1),
    "narrow": lambda x, i: x.narrow(1, i, 3).exp() + x.select(1, i).reshape(-1, 1),
}


@pytest.mark.parametrize("name", MOVING)
def test_a_start_that_comes_with_the_run_changes_no_bit(name, cold):
    fn, x = MOVING[name], weft.tensor(np.random.default_rng(0).normal(size=(65, 48)).astype(np.float32))
    results = []
    assert plans_built(lambda: results.extend([fn(x, i).numpy() for i in (3, 7, 0, 11)])) <= 2
    for i, result in zip((3, 7, 0, 11), results, strict=True):
        np.testing.assert_array_equal(result, weft.compile(lambda x, i=i: fn(x, i))(x).numpy())


def test_rows_outside_of_a_slice_load_nothing_from_unmapped_memory():
    """A masked load whose lanes are all off has the address of its buffer: at one that is not mapped it would take
    microseconds, for each row of the table."""
    table, rows = weft.zeros(5000, 64, device="cpu"), weft.rand(4, 64, device="cpu")

    def write(rows):
        table[4:8] = rows

    step = weft.compile(write)
    for _ in range(2):
        step(rows)
    expected = np.zeros((5000, 64), np.float32)
    expected[4:8] = rows.numpy()
    np.testing.assert_array_equal(table.numpy(), expected)
    (kernel,) = step.plan.kernels()
    loads = re.findall(r"call .*@llvm\.masked\.load.*\(ptr align 4 (%\w+),", kernel.source)
    chosen = re.findall(r"(%\w+) = select i1 %\w+, ptr %\w+, ptr %\w+", kernel.source)
    assert loads and set(loads) <= set(chosen)
