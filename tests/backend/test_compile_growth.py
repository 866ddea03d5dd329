"""What compiling costs grows linearly with the program: Python calls, and characters of rendered code, for n and 2n."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.backend.test_budget import calls_of
from tests.replay.devices import cpu
from weft.backends.cpu import jit
from weft.compiler import plan_cache, realize
from weft.compiler.lowering.sharing import Sharing
from weft.plan.plan import iterate_steps

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import growth

sys.path.pop(0)

pytestmark = [pytest.mark.backend, pytest.mark.cpu_only]


@pytest.fixture
def cold(monkeypatch):
    """Nothing is found again: plans are assembled and kernels rendered; how many characters were to be compiled."""
    compiled = []

    def kernels(self, codes):
        compiled.extend([code for code in codes if code.symbol not in {known.symbol for known in compiled}])
        return original(self, codes)

    original = jit.Jit.kernels
    monkeypatch.setattr(jit.Jit, "kernels", kernels)
    monkeypatch.setattr(plan_cache, "ACTIVE", False)

    def run(program, size):
        """(Python calls, characters of distinct kernels) of a run without plans in memory."""
        compiled.clear()
        realize._plans.clear()
        calls = calls_of(lambda: program(size))
        return calls, sum(len(code.text) for code in compiled)

    return run


# (program, smaller size, how much more code there may be: kernels at the ends of a program differ)
FAMILIES = [
    (growth.assign_elements, 100, 1.5),
    (growth.scale_columns, 40, 2.2),
    (growth.factorize, 20, 2.5),
    (growth.game_of_life, 8, 2.2),
    (growth.lazy_parameters, 60, 2.2),
    (growth.mlp, 12, 1.7),
    (growth.transformer, 6, 1.7),
    (growth.stack, 100, 2.2),
    (growth.concatenate, 400, 1.7),
    (growth.unary_chain, 200, 1.7),
    (growth.unary_chain_gradient, 100, 3.0),
    (growth.convolutions, 6, 1.5),
    (growth.runge_kutta, 60, 2.0),
    (growth.runge_kutta_stacked, 60, 2.0),
    (growth.sums_of_neighbours, 40, 2.2),
    (growth.tree_of_sums, 60, 2.2),
    (growth.unrolled_lstm, 10, 2.2),
    (growth.transposed_reshapes, 40, 2.2),
    (growth.residual_layers, 24, 2.2),
    (growth.gated_states, 24, 2.2),
    (growth.gathers, 60, 2.2),
    (growth.assignments_gradient, 40, 2.6),
]


@pytest.mark.parametrize(("program", "size", "code"), FAMILIES, ids=lambda value: getattr(value, "__name__", None))
def test_work_grows_linearly(cold, program, size, code):
    program(2)  # whatever is loaded or compiled once
    few, short = cold(program, size)
    many, long = cold(program, 2 * size)
    assert many < 2.7 * few
    assert long < code * short + 30_000


def test_nothing_recurses_in_the_depth_of_the_graph():
    """With little room on Python's stack: chains of operations, gradients, slices, gathers, means and reshapes."""
    programs = [
        growth.unary_chain, growth.unary_chain_gradient, growth.sums_of_neighbours, growth.gathers,
        growth.transposed_reshapes, chain_of_means, gradient_of_products,
    ]  # fmt: skip
    for program in programs:
        program(3)
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 150)
    try:
        for program in programs:
            program(150)
    finally:
        sys.setrecursionlimit(before)


def chain_of_means(n):
    x = weft.randn(8, 16)
    for _ in range(n):
        x = x - x.mean(-1, keepdim=True)
    return x.numpy()


def gradient_of_products(n):
    x = weft.randn(8, 8).requires_grad_()
    y = x
    for _ in range(n):
        y = (y @ x).tanh()
    y.sum().backward()
    return x.grad.numpy()


def test_200_sines_have_the_right_gradient():
    x = weft.tensor([0.5, 1.0]).requires_grad_()
    y = x
    for _ in range(200):
        y = y.sin()
    y.sum().backward()
    value, slope = np.array([0.5, 1.0]), np.ones(2)
    for _ in range(200):
        slope *= np.cos(value)
        value = np.sin(value)
    np.testing.assert_allclose(x.grad.numpy(), slope, rtol=2e-4)


def test_equal_layers_are_one_kernel():
    """Twice the layers launch twice the kernels, and compile none of them again."""
    weights = [weft.randn(64, 64).mul(0.1).detach() for _ in range(32)]

    def network(count):
        def run(x):
            for w in weights[:count]:
                x = F.gelu(F.layer_norm(x, (64,)) @ w) + x
            return x

        return weft.compile(run)

    x = weft.randn(8, 64)
    few, many = network(8), network(32)
    few(x)
    many(x)
    assert len(many.plan) == 4 * len(few.plan)
    assert len({kernel.source for kernel in many.plan.kernels()}) == len(
        {kernel.source for kernel in few.plan.kernels()}
    )


def test_arithmetic_of_recomputed_roots_grows_linearly():
    """Small kernels become one, which computes a root of the other at several indices; not at 4 ** n of them."""

    def flops(steps):
        x = weft.randn(16, 16).requires_grad_()

        def run():
            y = x
            for _ in range(steps):
                y = (y.roll(1, 0) + y.roll(1, 1) + y.flip(0)).sin()
            y.sum().backward()
            return y, x.grad

        step = weft.compile(run)
        step()
        return sum(one.flops for one, _ in iterate_steps(step.plan.plan.steps))

    with weft.device(cpu()):
        assert flops(80) < 2.5 * flops(40)


def test_many_layers_whose_gradients_share_kernels():
    """Regions become one while others already wait for one of them: who waits for whom must stay complete, or regions
    wait for each other in a circle."""
    with weft.device(cpu()):
        layer = weft.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model = weft.nn.TransformerEncoder(layer, 16)

        def run(x):
            model(x).sum().backward()
            return [parameter.grad for parameter in model.parameters()]

        step = weft.compile(run)
        step(weft.randn(2, 6, 16))
        assert len(step.plan) > 100


def test_dropout_in_equal_layers_draws_different_numbers():
    """Layers that share a kernel have their own draws and constants."""

    def run(x):
        out = []
        for k in range(12):
            out.append((F.dropout(x, 0.5) * (1 + k)).sum(-1))
        return out

    x = weft.ones(64, 64)
    weft.manual_seed(3)
    rows = [row.numpy() for row in weft.compile(run)(x)]
    weft.manual_seed(3)
    np.testing.assert_array_equal(rows, [row.numpy() for row in run(x)])
    kept = [row / (1 + k) for k, row in enumerate(rows)]
    assert all(not np.array_equal(a, b) for a, b in zip(kept[1:], kept[:-1], strict=True))


def test_kernels_of_regions_that_share_nothing(monkeypatch):
    """A nest that nobody keeps must not lend its identity, and with it its kernel, to a later one."""
    monkeypatch.setattr(Sharing, "lower", lambda self, region, build: build(region))
    xs = [weft.tensor(np.arange(1.0, n + 1)) for n in range(1, 120)]
    sums = [
        getattr(weft, name)(x).sum()
        for x, name in zip(xs, itertools.cycle(["exp", "sqrt", "neg", "log1p"]), strict=False)
    ]
    weft.eval(*sums)
    for x, total, f in zip(xs, sums, itertools.cycle([np.exp, np.sqrt, np.negative, np.log1p]), strict=False):
        np.testing.assert_allclose(total.item(), f(x.numpy()).sum(), rtol=1e-6)
