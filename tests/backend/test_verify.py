"""`weft.testing.verify`: silent on what is right, and exact about the kernel that is wrong."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import weft
import weft.nn.functional as F
from tests.backend.compiling import numbers, parameter
from tests.backend.random_graphs import graphs, transplant
from weft.backends.cpu import execution
from weft.core.tensor import Tensor
from weft.kernels.ir.language import Literal, Op
from weft.kernels.math import functions as kernel_math
from weft.render.llvm import module as llvm_module
from weft.testing import verify

pytestmark = pytest.mark.usefixtures("on_each_device")


def network(seed=0, width=37):
    """A training step with dropout, clipping and AdamW; its arguments and parameters."""
    params = [parameter(*shape, seed=seed) for shape in ((24, width), (width,), (width, 10), (10,))]
    optimizer = weft.optim.AdamW(params, lr=0.01)

    def step(x, y, rate):
        w1, b1, w2, b2 = params
        h = (x @ w1 + b1).tanh() * (weft.rand(50, width) > 0.2)
        loss = F.cross_entropy(h @ w2 + b2, y) * rate
        optimizer.zero_grad()
        loss.backward()
        weft.optim.clip_grad_norm_(params, 1.0)
        optimizer.step()
        return loss, h

    return step, (weft.tensor(numbers(50, 24)), weft.tensor(np.arange(50) % 10), 0.5), params


@pytest.mark.cpu_only  # counts kernels, of which a GPU joins small ones
def test_a_training_step():
    step, args, _ = network()
    checked = verify(step, *args)
    assert len(checked) == len(memory_plan(step, args)) and all(0 <= step.error <= 1 for step in checked)
    assert any("gemm" in step.name for step in checked)


def memory_plan(step, args):
    compiled = weft.compile(step)
    compiled(*args)
    return compiled.plan.kernels()


def test_nothing_changes():
    step, args, params = network()
    plain, plain_args, plain_params = network()
    weft.manual_seed(3)
    for _ in range(2):
        verify(step, *args)
    assert all(param.grad is None for param in params)
    compiled, other = weft.compile(step), weft.compile(plain)
    results = []
    for call, given_args in ((compiled, args), (other, plain_args)):
        weft.manual_seed(3)
        results.append([call(*given_args)[0].item() for _ in range(2)])
        if call is compiled:
            verify(compiled, *args)
    assert results[0] == results[1]
    for one, two in zip(params, plain_params, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_a_compiled_function_with_state_goes_on_from_it():
    total = weft.zeros(200)

    @weft.compile
    def add(x):
        total.add_(x)
        return total.sum()

    assert add(weft.ones(200)).item() == 200
    verify(add, weft.ones(200))
    assert add(weft.ones(200)).item() == 400


@weft.kernel(out=lambda x: ((x.shape[0],), x.dtype))
def log_sum_exp(i, x, out):
    n = x.shape[1]
    top = weft.kernel.max(n, lambda j: x[i, j])
    out[i] = top + weft.kernel.log(weft.kernel.sum(n, lambda j: weft.kernel.exp(x[i, j] - top)))


def operations():
    x, y = numbers(33, 65), numbers(33, 65, seed=1)
    index = np.random.default_rng(0).integers(0, 33, 100)
    yield "softmax", lambda x: (x.softmax(-1), x.log_softmax(0)), (x,)
    yield "sums", lambda x: (x.sum(), x.sum(0), x.mean(1), x.var(), x.prod(1)), (x,)
    yield "long sums", lambda x: (x.sum(), x.sum(0)), (numbers(3000, 65),)
    yield "large sums that cancel", lambda x: (x - x.mean()).sum(0), (numbers(3000, 8) + 1000,)
    yield "products", lambda x, y: (x @ y.T, (x @ y.T).relu().softmax(-1)), (x, y)
    yield "gather", lambda x, i: x[i] * 2, (x, index)
    yield "gradient of gather", lambda x, i: weft.grad(lambda x: (x[i] ** 2).sum())(x), (x, index)
    yield "concatenation", lambda x, y: weft.cat([x + 1, (y * 2).tanh(), x * y], 1), (x, y)
    yield "comparisons", lambda x, y: (x > y, (x > y).sum(), x.argmax(1)), (x, y)
    yield "integers", lambda i: (i * 3 // 7, i % 5, i.float().exp()), (index,)
    yield "narrow", lambda x: (x.to(weft.float16).exp().sum(1), x.to(weft.bfloat16) * 3), (x,)
    yield "infinities", lambda x: ((x * 1e30) * 1e30, (x - x) / (x - x), (x * 200).exp()), (x,)
    yield "empty", lambda x: (x[:0] + 1, x[:0].sum(0)), (x,)
    yield "random", lambda x: x * weft.rand(33, 65), (x,)
    yield "sorting", lambda x: (x.sort(1), x.cumsum(0)), (x,)
    yield "a kernel of the user's", lambda x: log_sum_exp(x) * 2, (x,)
    yield "recurrence", recurrence, (numbers(7, 4, 16), numbers(16, 16))
    yield "recurrence backwards", lambda xs, w: recurrence(xs, w, True), (numbers(7, 4, 16), numbers(16, 16))
    yield "convolution", lambda x, w: F.conv2d(x, w, padding=1).relu(), (numbers(2, 3, 9, 9), numbers(4, 3, 3, 3))
    yield (
        "attention",
        lambda q: F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True),
        (numbers(2, 2, 40, 16),),
    )


def recurrence(xs, w, reverse=False):
    """The last state, all states, and the gradient of both to the weight."""

    def loss(w):
        last, states = weft.loop(lambda h, x: ((h @ w + x).tanh(),) * 2, weft.zeros(4, 16), xs, reverse=reverse)
        return (states * states).sum() + last.sum()

    return weft.value_and_grad(loss)(w)


OPERATIONS = list(operations())


@pytest.mark.parametrize("case", OPERATIONS, ids=[case[0] for case in OPERATIONS])
def test_operations(case):
    _, function, arrays = case
    assert verify(function, *map(weft.tensor, arrays))


PHASES = (Phase.explicit, Phase.generate)  # a failure is as good a report as a smaller one, and quicker


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(graphs(most=12, writes=True))
def test_random_graphs(graph):
    cells = {leaf: weft.tensor(array, device="cpu") for leaf, array in graph.leaves.items()}
    wanted = [*graph.outputs, *graph.writes.values()]

    def run():
        nodes = transplant(wanted, {leaf: cell.node for leaf, cell in cells.items()})
        for leaf, node in zip(graph.writes, nodes[len(graph.outputs) :], strict=True):
            cells[leaf].copy_(Tensor(node))
        return [Tensor(node) for node in nodes[: len(graph.outputs)]]

    verify(run)


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.cpu_only  # names kernels; a GPU has a tanh of its own
def test_a_wrong_function_is_named(monkeypatch):
    """tanh is a thousandth too large: of all kernels only those that compute it are wrong."""
    build = kernel_math.build

    def wrong(op, args, dtype):
        right = build(op, args, dtype)
        return Op("mul", (right, Literal(1.001, dtype)), dtype) if op == "tanh" else right

    step, args, _ = network(width=41)
    names = [checked.name for checked in verify(step, *args)]
    monkeypatch.setattr(kernel_math, "build", wrong)
    step, args, _ = network(width=41)
    with pytest.raises(AssertionError) as failure:
        verify(step, *args)
    text = str(failure.value)
    number = int(text.split("step ")[1].split(" ")[0])
    assert f"step {number} of {len(names)}, {names[number]}, differs from the reference" in text
    assert number == next(k for k, name in enumerate(names) if "50x41x24" in name)  # the product that ends in tanh
    assert " tanh %" in text and "<-" in text and " read" in text
    assert "and should be" in text


@pytest.mark.cpu_only
def test_the_first_wrong_kernel_is_named_not_those_behind_it(monkeypatch, tmp_path):
    """What follows from wrong numbers is right as long as its own kernels are."""

    def function(x):
        first = (x * 1.5).exp().sum(1)
        second = first.reshape(-1, 4).sum(0)
        return (second * 2).sqrt().sum()

    x = weft.tensor(numbers(64, 300))
    names = [checked.name for checked in verify(function, x)]
    assert len(names) >= 2
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    render = llvm_module.render
    for number, name in enumerate(names):

        def faulty(kernel, name=name):
            text = render(kernel)
            symbol = llvm_module.symbol_of(text)
            return text.replace("fadd", "fsub").replace(symbol, symbol + "_wrong") if kernel.name == name else text

        with monkeypatch.context() as patch:
            patch.setattr(llvm_module, "render", faulty)
            with pytest.raises(AssertionError, match=f"step {number} of {len(names)}, {name}, differs"):
                verify(function, x)


@pytest.mark.cpu_only
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_single_wrong_elements_are_found(monkeypatch, bad):
    """One element out of many, overwritten after the kernel ran."""
    run = execution.CpuExecutable.run
    x = weft.tensor(numbers(50, 70) + 3)

    def spoiling(self, slots):
        run(self, slots)
        plan = self._keep[0]
        output = next(k for k, slot in enumerate(plan.slots) if slot.kind == "output")
        raw = (execution.ctypes.c_float * 3500).from_address(slots[output])
        raw[1234] = bad

    monkeypatch.setattr(execution.CpuExecutable, "run", spoiling)
    with pytest.raises(
        AssertionError, match=rf"element \({1234 // 70}, {1234 % 70}\) of \w+ float32\[50, 70\] is {bad}"
    ):
        verify(lambda x: x * 2 + 1, x)


@pytest.mark.cpu_only
def test_integers_must_be_equal(monkeypatch):
    run = execution.CpuExecutable.run

    def spoiling(self, slots):
        run(self, slots)
        plan = self._keep[0]
        output = next(k for k, slot in enumerate(plan.slots) if slot.kind == "output")
        (execution.ctypes.c_int64 * 100).from_address(slots[output])[7] += 1

    monkeypatch.setattr(execution.CpuExecutable, "run", spoiling)
    with pytest.raises(AssertionError, match=r"element \(7,\) .* is 22 and should be 21 "):
        verify(lambda i: i * 3, weft.tensor(np.arange(100)))


def test_inside_compile_is_refused():
    with pytest.raises(weft.GraphError, match=r"verify.*inside weft\.compile"):
        weft.compile(lambda x: verify(lambda y: y + 1, x) and x)(weft.ones(3))
