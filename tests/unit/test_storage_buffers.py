"""Kernels stay within the least that a GPU has: eight buffers, 256 lanes, 16 KiB of shared memory, no subgroups.

All records, programs and networks are compiled for such a device, whose checks raise; the emulator runs programs that
would need more buffers, against the reference backend.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.records import GROUPS
from tests.records.cases import cases, compiled, results
from tests.replay.devices import Renderer
from tests.unit.lockstep import Lockstep
from tests.unit.networks import NETWORKS, Training
from tests.unit.programs import PROGRAMS, Make
from weft.backends.gpu.limits import check_kernel, check_plan
from weft.base.capabilities import Features, Limits
from weft.compiler import realize
from weft.errors import GraphError
from weft.kernels.ir.language import Kernel
from weft.plan.plan import Code, Plan, code_of

pytestmark = pytest.mark.unit

BUFFERS = 8
FEATURES = Features(workgroups=True, scalar_arguments=True, int64_arithmetic=False)
LIMITS = Limits(storage_buffers=BUFFERS, workgroups=65535)


class Least(Renderer):
    """A device that compiles and runs nothing; a kernel or plan that exceeds it is an error."""

    def __init__(self) -> None:
        super().__init__("gpu", FEATURES, LIMITS)
        self.buffers: list[int] = []  # of each kernel

    def render(self, kernel: Kernel) -> Code:
        check_kernel(kernel, self.device)
        self.buffers.append(len(kernel.buffers))
        return code_of(kernel, f"kernel_{len(self.buffers)}", "")

    def executable(self, plan: Plan):
        check_plan(plan, self.device)
        return super().executable(plan)


@pytest.fixture
def least(monkeypatch):
    monkeypatch.setattr(realize, "_plans", type(realize._plans)())
    backend = Least()
    with weft.device(backend.device):
        weft.manual_seed(0)
        yield backend
    assert max(backend.buffers) <= BUFFERS


@pytest.mark.parametrize("name", GROUPS)
def test_records(name, least):
    """The first sample of each in its first dtype, and its gradient as a compiled function; the last one where there is
    no gradient."""
    for record in GROUPS[name]:
        for case in [case for case in cases(record) if case.dtype == record.dtypes[0]]:
            if case.gradient and case.sample is record.samples[0]:
                lower_compiled(case)
            elif case.sample is record.samples[0 if record.differentiable else -1]:
                weft.eval(*results(case))


def lower_compiled(case):
    try:
        compiled(case)()
    except GraphError as error:  # shapes that depend on data, and functions whose gradient is 0 everywhere
        if "inside weft.compile" not in str(error) and "returns no tensor" not in str(error):
            raise


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, least):
    for small in (False, True):
        weft.eval(*PROGRAMS[name](Make(least.device, small)))


@pytest.mark.parametrize("narrow", [None, weft.bfloat16])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, narrow, least):
    training = Training(name, narrow=narrow)
    for _ in range(2):
        training.step()


def chain_of_sums(x):
    """Each state is a result, too, after a reduction."""
    total = weft.tensor(-1.0)
    for _ in range(60):
        x = (x * 1.01).sin()
        total = weft.maximum(total, x.sum())
    return [total]


def gradient_of_a_chain(x):
    before, state = x, x * 2
    for _ in range(80):
        before, state = state, (before + state).tanh()
    return weft.autograd.grad(state.sum(), [x])


class Texts(Renderer):
    """A device that keeps what its plans launch."""

    def __init__(self, limits: Limits) -> None:
        super().__init__("gpu", FEATURES, limits)
        self.size = 0

    def executable(self, plan: Plan):
        self.size += sum(len(step.kernel.text) for step in plan.steps)
        return super().executable(plan)


@pytest.mark.parametrize("program", [chain_of_sums, gradient_of_a_chain])
def test_few_buffers_do_not_make_every_kernel_compute_a_chain_again(program, monkeypatch):
    """What kernels have in common is stored where it is stored with any number of buffers."""

    def measure(limits):
        monkeypatch.setattr(realize, "_plans", type(realize._plans)())
        backend = Texts(limits)
        with weft.device(backend.device):
            weft.eval(*program(weft.tensor(numbers(33, 65), requires_grad=program is gradient_of_a_chain)))
        return backend.size

    assert measure(LIMITS) < 4 * measure(replace(LIMITS, storage_buffers=0))


# --- results ---------------------------------------------------------------------------------------------------------


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def masked_attention(q, k, v):
    mask = weft.tensor(np.tril(np.ones((5, 7), bool), 2))
    total = (F.scaled_dot_product_attention(q, k, v, mask) * weft.tensor(numbers(2, 3, 5, 4, seed=9))).sum()
    return weft.autograd.grad(total, [q, k, v])


def dropped_attention(q, k, v):
    weft.manual_seed(3)
    mask = weft.tensor(numbers(5, 7, seed=8))
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.3)
    return [out, *weft.autograd.grad((out * weft.tensor(numbers(2, 3, 5, 4, seed=9))).sum(), [q, k, v])]


def attention_inputs():
    return [numbers(2, 3, 5, 4), numbers(2, 3, 7, 4, seed=1), numbers(2, 3, 7, 4, seed=2)]


def adam(*arrays):
    """Two steps over many parameters of two dtypes."""
    parameters = [
        weft.nn.Parameter(x.detach().to(weft.float16 if k % 3 == 0 else weft.float32)) for k, x in enumerate(arrays)
    ]
    optimizer = weft.optim.AdamW(parameters, lr=0.1, amsgrad=True)
    for _ in range(2):
        optimizer.zero_grad()
        sum([(one.float() ** 2).sum() for one in parameters]).backward()
        optimizer.step()
    return parameters


CASES = {
    "concatenation of 50": (lambda *xs: weft.cat([x * 2 for x in xs]), [numbers(3, 4, seed=k) for k in range(50)]),
    "columns of 50": (lambda *xs: weft.cat([x + 1 for x in xs], 1), [numbers(3, 2, seed=k) for k in range(50)]),
    "stack": (lambda *xs: weft.stack(xs, 1).softmax(1), [numbers(5, 4, seed=k) for k in range(20)]),
    "sum of 30": (lambda *xs: sum(xs), [numbers(40, seed=k) for k in range(30)]),
    "maximum of products": (
        lambda *xs: (weft.stack([a * b for a, b in zip(xs[::2], xs[1::2], strict=True)]).amax(0), sum(xs).mean(-1)),
        [numbers(6, 70, seed=k) for k in range(24)],
    ),
    "meshgrid": (
        lambda *xs: [grid * 2 for grid in weft.meshgrid(*xs, indexing="ij")], [numbers(2, seed=k) for k in range(6)],
    ),
    "many results": (lambda *xs: [(x - y).exp() for x in xs for y in xs], [numbers(33, seed=k) for k in range(4)]),
    "many reductions": (
        lambda *xs: [one for x in xs for one in (x.sum(-1), x.amax(-1), x.softmax(-1), x.var(-1))],
        [numbers(9, 70, seed=k) for k in range(5)],
    ),
    "gathers": (
        lambda *xs: sum(x[weft.tensor(np.arange(9) * k % 5)] for k, x in enumerate(xs)),
        [numbers(5, 3, seed=k) for k in range(12)],
    ),
    "attention with a mask": (masked_attention, attention_inputs()),
    "attention with a mask and dropout": (dropped_attention, attention_inputs()),
    "optimizer over 100": (adam, [numbers(3 + k % 4, 2, seed=k) for k in range(100)]),
}  # fmt: skip


@pytest.mark.parametrize("buffers", [5, BUFFERS])
@pytest.mark.parametrize("name", CASES)
def test_results_within_few_buffers(name, buffers):
    function, arrays = CASES[name]
    if buffers < BUFFERS and "attention" in name:
        pytest.skip("its kernels read six values")

    def run(device):
        with weft.device(device):
            given = [weft.tensor(x, requires_grad="attention" in name) for x in arrays]
            found = function(*given)
            found = found if isinstance(found, (list, tuple)) else [found]
            weft.eval(*found)
            return [one.detach().float().numpy() for one in found]

    backend = Lockstep(features=("scalar_arguments",), storage_buffers=buffers)
    found = run(backend.device)
    assert 2 < max(len(kernel.buffers) for kernel in backend.kernels) <= buffers
    for one, expected in zip(found, run("reference"), strict=True):
        np.testing.assert_allclose(one, expected, 1e-5, 1e-5 * max(float(np.abs(expected).max()), 1e-3))


def test_what_is_between_reductions_takes_no_bindings():
    """The products of a grouped convolution are many times what a kernel can bind, and are never stored."""

    def run(device):
        points = [weft.tensor(x, device=device, requires_grad=True) for x in (numbers(2, 4, 8, 7), numbers(8, 1, 3, 3))]
        found = F.conv2d(*points, padding=2, dilation=2, groups=4)
        return [found, *weft.autograd.grad((found * found).sum(), points)]

    backend = Lockstep(features=("scalar_arguments",), storage_buffers=BUFFERS, binding_bytes=4096)
    for one, expected in zip(run(backend.device), run("reference"), strict=True):
        np.testing.assert_allclose(one.detach().numpy(), expected.detach().numpy(), 1e-4, 1e-4)
    assert max(one.bindings for kernel in backend.kernels for one in kernel.buffers) == 1
