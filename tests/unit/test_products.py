"""Products that a library computes: what it absorbs, what is left to kernels, and that the numbers are right."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.gpu_harness import Products
from tests.unit.lockstep import Lockstep
from tests.unit.programs import PROGRAMS, assert_equal_results, expected_results, results
from weft.kernels import numerics
from weft.plan.plan import LibraryCall, Product
from weft.plan.serialize import pack, unpack

pytestmark = pytest.mark.unit


@pytest.fixture
def device():
    found = Lockstep().device
    found.libraries["products"] = Products()
    return found


def tensor(device, *shape, dtype=weft.float32, seed=0, grad=False):
    array = np.random.default_rng((seed, *shape)).normal(0, 1, shape).astype(np.float32)
    return weft.tensor(array, device=device).to(dtype).detach().requires_grad_(grad)


def steps_of(function, *args) -> list:
    compiled = weft.compile(function)
    compiled(*args)
    return list(compiled.plan.plan.steps)


def products_of(steps) -> list[Product]:
    return [Product(*step.config[:-1]) for step in steps if isinstance(step, LibraryCall)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_products_agree_with_the_reference(name, device, monkeypatch):
    monkeypatch.setattr(numerics, "MAX_FUSED_PRODUCT", 16)  # the programs are small, for the emulator
    assert_equal_results(results(PROGRAMS[name], device, small=True), expected_results(name, small=True))


def test_a_bias_is_added_by_the_library(device):
    x, w, b = tensor(device, 40, 24), tensor(device, 30, 24), tensor(device, 30)
    (step,) = steps_of(F.linear, x, w, b)
    (product,) = products_of([step])
    assert product.bias and product.transpose_b and (product.m, product.n, product.k) == (40, 30, 24)
    want = x.numpy().astype(np.float64) @ w.numpy().T.astype(np.float64) + b.numpy()
    np.testing.assert_allclose(F.linear(x, w, b).numpy(), want, 1e-5, 1e-5)


def test_leading_axes_are_rows(device):
    x, w, b = tensor(device, 4, 10, 24), tensor(device, 30, 24), tensor(device, 30)
    (product,) = products_of(steps_of(F.linear, x, w, b))
    assert product.bias and product.m == 40
    want = x.numpy().astype(np.float64) @ w.numpy().T.astype(np.float64) + b.numpy()
    np.testing.assert_allclose(F.linear(x, w, b).numpy(), want, 1e-5, 1e-5)


def test_a_product_with_another_user_is_left_as_it_is(device):
    x, w, b = tensor(device, 40, 24), tensor(device, 24, 30), tensor(device, 30)

    def both(x, w, b):
        product = x @ w
        return product, product + b

    (product,) = products_of(steps_of(both, x, w, b))
    assert not product.bias
    for result, want in zip(both(x, w, b), both(x.cpu(), w.cpu(), b.cpu()), strict=True):
        np.testing.assert_allclose(result.numpy(), want.numpy(), 1e-5, 1e-5)


def test_products_are_added_by_the_library(device):
    a, b, c = tensor(device, 30, 24), tensor(device, 24, 30), tensor(device, 30, 30)

    def total(a, b, c):
        return c - 2.0 * (a @ b) + (b.T @ a.T)

    def sums(a, b, c):
        return (a @ b) + (c @ c), c + b.T @ b

    found = products_of(steps_of(sums, a, b, c))
    assert sorted((product.add, product.alpha) for product in found) == [(False, 1.0), (True, 1.0), (True, 1.0)]
    for function in (lambda *args: (total(*args),), sums):
        for result, want in zip(function(a, b, c), function(a.cpu(), b.cpu(), c.cpu()), strict=True):
            np.testing.assert_allclose(result.numpy(), want.numpy(), 1e-4, 1e-4)


def test_constant_factors_that_rules_know_are_absorbed(device):
    a, b = tensor(device, 30, 24), tensor(device, 24, 30)
    (product,) = products_of(steps_of(lambda a, b: -(a @ b) * 0.5, a, b))
    assert product.alpha == -0.5
    np.testing.assert_allclose((-(a @ b) * 0.5).numpy(), -0.5 * (a.numpy() @ b.numpy()), 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16])
def test_16_bit_factors_stay_16_bit(device, dtype):
    x, w, b = tensor(device, 40, 24, dtype=dtype), tensor(device, 30, 24, dtype=dtype), tensor(device, 30, dtype=dtype)
    (step,) = steps_of(F.linear, x, w, b)
    (product,) = products_of([step])
    assert product.operand is product.result is dtype and product.bias
    exact = x.float().numpy() @ w.float().numpy().T + b.float().numpy()
    np.testing.assert_array_equal(F.linear(x, w, b).float().numpy(), exact.astype(dtype.numpy).astype(np.float32))


def test_factors_that_were_widened_are_read_as_they_were(device):
    a, b = tensor(device, 30, 24, dtype=weft.bfloat16), tensor(device, 24, 30, dtype=weft.bfloat16)
    for widened in (lambda a, b: a.float() @ b.float(), lambda a, b: a.float() @ a.float().mT):
        (step,) = steps_of(widened, a, b)
        (product,) = products_of([step])
        assert product.operand is weft.bfloat16 and product.result is weft.float32
    (rounded,) = products_of(steps_of(lambda a, b: (a.float() @ b.float()).bfloat16(), a, b))
    assert rounded.result is weft.bfloat16


def test_a_16_bit_product_that_is_widened_is_not_rounded(device):
    a, b = tensor(device, 30, 24, dtype=weft.bfloat16), tensor(device, 24, 30, dtype=weft.bfloat16)
    (step,) = steps_of(lambda a, b: (a @ b).float(), a, b)
    (product,) = products_of([step])
    assert product.result is weft.float32
    np.testing.assert_allclose((a @ b).float().numpy(), a.float().numpy() @ b.float().numpy(), 1e-6, 1e-6)


def test_gradients_of_weights_that_were_cast_go_straight_to_their_place(device):
    """As with torch's autocast: float32 parameters, 16-bit products; one optimizer step over all of them."""
    parameters = [tensor(device, 32, 24, grad=True), tensor(device, 16, 32, grad=True)]
    optimizer = weft.optim.SGD(parameters, lr=0.1)

    @weft.compile
    def step(x):
        for parameter in parameters:
            x = F.linear(x.bfloat16(), parameter.bfloat16())
        loss = (x.float() ** 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step(tensor(device, 40, 24))
    found = products_of(step.plan.plan.steps)  # two forward, one gradient of values, two of weights; none twice
    assert sorted(product.result.name for product in found) == ["bfloat16"] * 3 + ["float32"] * 2
    assert not [step.name for step in step.plan.plan.steps if step.name.startswith("map_cast_16x32")][1:]


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16])
def test_a_linear_layer_and_its_gradients(device, dtype):
    x, w, b = (tensor(device, *shape, dtype=dtype, grad=True) for shape in ((40, 24), (30, 24), (30,)))

    def step(x, w, b):
        y = F.gelu(F.linear(x, w, b), approximate="tanh")
        (y.float() ** 2).sum().backward()
        return x.grad, w.grad, b.grad

    found = step(x, w, b)
    with weft.device("cpu"):
        wanted = step(*[t.detach().cpu().float().requires_grad_() for t in (x, w, b)])
    for result, want in zip(found, wanted, strict=True):
        scale = np.abs(want.numpy()).max()
        bound = 3e-2 if dtype.is_16_bit else 1e-5
        np.testing.assert_allclose(result.float().numpy() / scale, want.numpy() / scale, 0, bound)


@pytest.mark.parametrize("name", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16])
def test_an_activation_is_computed_by_the_library(device, dtype, name):
    def layer(x, w, b):
        y = F.linear(x, w, b)
        return F.relu(y) if name == "relu" else F.gelu(y, approximate="tanh")

    x, w, b = (tensor(device, *shape, dtype=dtype) for shape in ((2, 20, 24), (32, 24), (32,)))
    (product,) = products_of(steps_of(layer, x, w, b))
    assert product.activation == name and product.bias and not product.keep
    want = layer(*[t.cpu().float() for t in (x, w, b)]).numpy()
    found = layer(x, w, b)
    assert found.dtype is dtype
    np.testing.assert_allclose(found.float().numpy(), want, *((2e-2, 5e-2) if dtype.is_16_bit else (1e-5, 1e-5)))


def test_gelu_by_the_error_function_is_not_the_librarys(device):
    x, w, b = (tensor(device, *shape) for shape in ((40, 24), (32, 24), (32,)))
    (product,) = products_of(steps_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b))
    assert not product.activation


def steps_with_gradient(activation, device, dtype, g):
    def step(x, w, b):
        return weft.value_and_grad(lambda x, w, b: (activation(F.linear(x, w, b)) * g).sum(), (0, 1, 2))(x, w, b)

    x, w, b = (tensor(device, *shape, dtype=dtype) for shape in ((40, 24), (32, 24), (32,)))
    return steps_of(step, x, w, b), step(x, w, b)


def test_what_gelu_was_given_is_kept_for_its_gradient(device):
    g = tensor(device, 40, 32)
    steps, (value, gradients) = steps_with_gradient(lambda y: F.gelu(y, approximate="tanh"), device, weft.float32, g)
    first = products_of(steps)[0]
    assert (first.activation, first.keep) == ("gelu", True)
    _, (want, wanted) = steps_with_gradient(
        lambda y: F.gelu(y, approximate="tanh"), weft.get_device("cpu"), weft.float32, g.cpu()
    )
    np.testing.assert_allclose(value.numpy(), want.numpy(), 1e-4)
    for result, right in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(result.numpy(), right.numpy(), 1e-4, 1e-4)


def test_the_gradient_of_relu_needs_only_its_result(device):
    g = tensor(device, 40, 32)
    steps, (value, gradients) = steps_with_gradient(F.relu, device, weft.float32, g)
    first = products_of(steps)[0]
    assert (first.activation, first.keep) == ("relu", False)
    _, (want, wanted) = steps_with_gradient(F.relu, weft.get_device("cpu"), weft.float32, g.cpu())
    np.testing.assert_allclose(value.numpy(), want.numpy(), 1e-4)
    for result, right in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(result.numpy(), right.numpy(), 1e-4, 1e-4)


def test_an_activation_whose_argument_is_wanted_stays_a_kernel(device):
    x, w, b = (tensor(device, *shape) for shape in ((40, 24), (32, 24), (32,)))

    def both(x, w, b):
        y = F.linear(x, w, b)
        return y, F.relu(y)

    (product,) = products_of(steps_of(both, x, w, b))
    assert not product.activation
    y, z = both(x, w, b)
    np.testing.assert_array_equal(np.maximum(y.numpy(), 0), z.numpy())


def test_nothing_is_lost_where_columns_do_not_fit_the_library(device):
    x, w, b = (tensor(device, *shape) for shape in ((40, 24), (30, 24), (30,)))
    layer = lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh")  # noqa: E731
    (product,) = products_of(steps_of(layer, x, w, b))
    assert not product.activation
    np.testing.assert_allclose(layer(x, w, b).numpy(), layer(x.cpu(), w.cpu(), b.cpu()).numpy(), 1e-5, 1e-5)


def test_small_products_are_part_of_kernels(device):
    assert not products_of(steps_of(lambda a, b: a @ b, tensor(device, 4, 2), tensor(device, 2, 8)))
    assert products_of(steps_of(lambda a, b: a @ b, tensor(device, 64, 784), tensor(device, 784, 128)))


def test_heads_are_strided_batches(device):
    q, k = tensor(device, 2, 16, 3 * 12), tensor(device, 2, 16, 3 * 12, seed=1)

    def scores(q, k):
        q, k = (x.reshape(2, 16, 3, 12).transpose(1, 2) for x in (q, k))
        return q @ k.transpose(-1, -2)

    (step,) = steps_of(scores, q, k)
    (product,) = products_of([step])
    assert (product.outer, product.inner, product.leading_a) == (2, 3, 36)
    np.testing.assert_allclose(scores(q, k).numpy(), scores(q.cpu(), k.cpu()).numpy(), 1e-5, 1e-5)


def test_the_precision_of_float32_products_is_part_of_the_plan(device):
    a = tensor(device, 40, 40)
    step = weft.compile(lambda a: a @ a)
    assert weft.get_float32_matmul_precision() == "highest"
    try:
        for precision, planned in (("highest", "highest"), ("high", "high"), ("medium", "high")):
            weft.set_float32_matmul_precision(precision)
            step(a)
            (product,) = products_of(step.plan.plan.steps)
            assert product.precision == planned
        assert len(step.retraces) == 1
    finally:
        weft.set_float32_matmul_precision("highest")
    with pytest.raises(weft.RangeError, match="'highest', 'high', 'medium'"):
        weft.set_float32_matmul_precision("low")


def test_the_precision_changes_nothing_on_the_cpu():
    a = weft.rand(40, 40)
    step = weft.compile(lambda a: a @ a)
    before = step(a).numpy().tobytes()
    try:
        weft.set_float32_matmul_precision("high")
        assert step(a).numpy().tobytes() == before and not step.retraces
    finally:
        weft.set_float32_matmul_precision("highest")


def test_a_plan_with_products_can_be_stored(device):
    compiled = weft.compile(F.linear)
    compiled(tensor(device, 40, 24), tensor(device, 30, 24), tensor(device, 30))
    plan = compiled.plan.plan
    assert unpack(pack(plan)) == plan


def test_gradients_are_added_up_in_place(device):
    w = tensor(device, 30, 24, grad=True)
    x, g = tensor(device, 40, 24), tensor(device, 40, 30)

    @weft.compile
    def step(x, g):
        (F.linear(x, w) * g).sum().backward()

    step(x, g)
    once = w.grad.numpy().copy()
    step(x, g)
    step(x, g)
    np.testing.assert_allclose(w.grad.numpy(), 3 * once, 1e-5, 1e-5)
    (only,) = step.plan.plan.steps
    (product,) = products_of([only])
    assert product.add and only.places[2] == only.places[3]


def random_program(seed: int, device) -> list[np.ndarray]:
    """Results and gradients of a few products with what a library may absorb around them; odd seeds have bfloat16."""
    rng = np.random.default_rng(seed)
    n = 8
    leaves = [
        weft.tensor(rng.normal(0, 1, shape).astype(np.float32), device=device, requires_grad=True)
        for shape in [(n, n)] * 3 + [(n,)] * 2
    ]
    values = leaves[:3]
    kept = []
    for _ in range(rng.integers(3, 9)):
        a, b = (values[rng.integers(len(values))] for _ in range(2))
        vector = leaves[3 + rng.integers(2)]
        narrow = weft.bfloat16 if seed % 2 and rng.random() < 0.5 else weft.float32
        made = [
            lambda a=a, b=b, dtype=narrow: a.to(dtype) @ b.to(dtype),
            lambda a=a, b=b, dtype=narrow, v=vector: F.linear(a.to(dtype), b.to(dtype), v.to(dtype)),
            lambda a=a, v=vector: (a.reshape(2, n // 2, n) + v).reshape(n, n),
            lambda a=a, b=b: a + b,
            lambda a=a: F.relu(a),
            lambda a=a: F.gelu(a, approximate="tanh"),
            lambda a=a: -a * 0.5,
            lambda a=a: a.mT,
        ][rng.choice(8, p=[0.25, 0.25, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])]()
        values = [*values, made.float()]
        if rng.random() < 0.25:
            kept.append(values[-1])
    kept.append(values[-1])
    loss = sum([(value * value).mean() for value in kept[1:]], (kept[0] * kept[0]).mean())
    if rng.random() < 0.6:
        loss.backward()
    return [x.numpy() for x in [*kept, *[leaf.grad for leaf in leaves if leaf.grad is not None]]]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed, device, monkeypatch):
    monkeypatch.setattr(numerics, "MAX_FUSED_PRODUCT", 0)
    for found, want in zip(
        random_program(seed, device), random_program(seed, weft.get_device("reference")), strict=True
    ):
        scale = np.abs(want).max() + 1e-6
        np.testing.assert_allclose(found / scale, want / scale, 0, 5e-2)


class Choosy(Products):
    """A library that leaves small products of float32 to others."""

    def can_multiply(self, dtype, batch, m, n, k):
        return dtype is not weft.float32 or batch * m * n * k > 40_000


def test_a_product_that_the_library_does_not_take_is_a_kernel_with_what_follows():
    device = Lockstep().device
    device.libraries["products"] = Choosy()

    def layer(x, w, b):
        return F.relu(F.linear(x, w, b))

    def shapes(rows, dtype=weft.float32):
        return [tensor(device, *shape, dtype=dtype) for shape in ((rows, 24), (30, 24), (30,))]

    (step,) = steps_of(layer, *shapes(40))
    assert step.name.startswith("product") and not isinstance(step, LibraryCall)
    x, w, b = [one.numpy().astype(np.float64) for one in shapes(40)]
    np.testing.assert_allclose(layer(*shapes(40)).numpy(), np.maximum(x @ w.T + b, 0), 1e-5, 1e-5)
    for args in (shapes(60), shapes(40, weft.bfloat16)):
        (product,) = products_of(steps_of(layer, *args))
        assert product.bias and product.activation == "relu"


def test_a_transposed_twin_of_a_product_that_is_not_taken_is_not_computed_again():
    device = Lockstep().device
    device.libraries["products"] = Choosy()
    a, b = tensor(device, 30, 24), tensor(device, 24, 20)
    steps = steps_of(lambda a, b: ((a @ b) * 2, (b.T @ a.T) * 3), a, b)
    assert len([step for step in steps if step.flops >= 2 * 30 * 24 * 20]) == 1, [step.name for step in steps]
