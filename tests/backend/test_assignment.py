"""Writes into parts of a tensor: values and gradients as torch has them, reads that look through writes, and many
writes in one program."""

import random
import re

import numpy as np
import pytest
import torch

import weft
from tests.backend.call_counts import plans_built
from weft.compiler.passes import slice_starts
from weft.graph import build
from weft.graph.node import leaf

pytestmark = pytest.mark.backend

DTYPES = ("float32", "float32", "float64", "int32", "bool", "float16", "int64")


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
        self.transposed = len(self.shape) > 1 and rng.random() < 0.3
        self.dtype = rng.choice(DTYPES)
        shown = self.shape[::-1] if self.transposed else self.shape
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
        x = x.permute(*range(len(self.shape))[::-1]) if self.transposed else x
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


def shifted(state, x):
    """One iteration of a loop that writes into its state."""
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
    transposed = build.update_slice(build.permute(x, (1, 0)), build.permute(row, (1, 0)), (0, 2), (1, 1))
    assert transposed.op == "permute" and transposed.srcs[0] is build.update_slice(x, row, (2, 0), (1, 1))
    assert build.slice_(transposed, (0, 2), (4, 3)) is build.permute(row, (1, 0))
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
    monkeypatch.setattr(slice_starts, "CHOICES", 0)
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
