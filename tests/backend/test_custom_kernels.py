"""weft.kernel: kernels that users write, compiled and interpreted, against NumPy; and what is refused while tracing."""

import concurrent.futures
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import kernel
from weft.core.tensor import Tensor
from weft.graph import build

pytestmark = pytest.mark.backend

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True, params=["cpu", "reference"])
def on_device(request):
    with weft.device(request.param):
        yield request.param


def floats(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


@weft.kernel
def scale_add(i, x, y, out):
    out[i] = 2.0 * x[i] + y[i]


@weft.kernel(out=lambda x: ((x.shape[0],), x.dtype))
def log_sum_exp(i, x, out):
    n = x.shape[1]
    top = kernel.max(n, lambda j: x[i, j])
    out[i] = top + kernel.log(kernel.sum(n, lambda j: kernel.exp(x[i, j] - top)))


@weft.kernel(over=lambda x: x.shape[0])
def running_sum(i, x, out):
    out[i, 0] = x[i, 0]
    for j in kernel.loop(1, x.shape[1]):
        out[i, j] = out[i, j - 1] + x[i, j]


@weft.kernel(out=lambda x, index, a: [x, ((x.shape[1], x.shape[0]), x.dtype)])
def two_results(i, j, x, index, a, p, q):
    p[i, j] = kernel.where(x[i, j] > 0.0, x[index[i], j] * a, x.load(i + 1, j, other=-1.0))
    q[j, i] = x[i, j] + kernel.cast(i, x.dtype)


@weft.kernel
def self_convolution(i, x, out):
    out[i] = kernel.sum(i + 1, lambda j: x[j] * x.load(i - j))


@weft.kernel(out=lambda x: ((), x.dtype), over=lambda x: ())
def mean(x, out):
    out[()] = kernel.sum(x.shape[0], lambda j: x[j]) / x.shape[0]


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (40, 33), (100, 129)])
def test_values(shape):
    x, index = floats(*shape), RNG.integers(0, shape[0], shape[0])
    wx = weft.tensor(x)
    np.testing.assert_array_equal(scale_add(wx[0], wx[-1]).numpy(), np.float32(2) * x[0] + x[-1])
    np.testing.assert_allclose(log_sum_exp(wx).numpy(), np.log(np.exp(x.astype("f8")).sum(1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(running_sum(wx).numpy(), np.add.accumulate(x, 1))
    p, q = two_results(wx, weft.tensor(index), 3.0)
    below = np.concatenate([x[1:], np.full((1, shape[1]), -1, "float32")])
    np.testing.assert_array_equal(p.numpy(), np.where(x > 0, x[index] * np.float32(3), below))
    np.testing.assert_array_equal(q.numpy(), (x + np.arange(shape[0], dtype="float32")[:, None]).T)
    np.testing.assert_allclose(
        self_convolution(wx[:, 0]).numpy(), np.convolve(x[:, 0], x[:, 0])[: shape[0]], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(mean(wx[:, 0]).item(), x[:, 0].mean(), rtol=1e-4, atol=1e-6)


@weft.kernel(out=lambda x, scale, name: x)
def words(i, j, x, scale, name, out):
    v = x[i, j]
    u = kernel.tanh(v) + kernel.erf(v) - kernel.sin(v) * kernel.cos(v) + kernel.expm1(-abs(v)) + v**3
    u = u + kernel.log1p(v * v) + kernel.sqrt(abs(v)) + kernel.floor(v) + abs(v) ** 0.5 + v // 0.7 + v % 0.7
    u = kernel.where((v > 0.0) & ~(v >= 1.0) | (v == 0.0), kernel.maximum(u, v), kernel.minimum(u, -v))
    parity = kernel.cast((i + j) % 2, x.dtype)
    out.store((i, j), u / scale + parity, where=v != 123.0)
    assert name == "a name"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_words_of_the_language(dtype):
    x = floats(9, 17, dtype=dtype)
    v = x.astype("f8")
    erf = np.vectorize(__import__("math").erf)
    u = np.tanh(v) + erf(v) - np.sin(v) * np.cos(v) + np.expm1(-abs(v)) + v**3
    u = u + np.log1p(v * v) + np.sqrt(abs(v)) + np.floor(v) + abs(v) ** 0.5 + v // 0.7 + v % 0.7
    u = np.where((v > 0) & ~(v >= 1) | (v == 0), np.maximum(u, v), np.minimum(u, -v))
    expected = u / 1.25 + np.add.outer(np.arange(9), np.arange(17)) % 2
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(words(weft.tensor(x), 1.25, "a name").numpy(), expected, rtol=tolerance, atol=tolerance)


@weft.kernel
def counts(i, x, out):
    out[i] = kernel.sum(x.shape[0], lambda j: kernel.where((x[j] & 1) == (x[i] & 1), 1, 0)) // 2 - (x[i] ^ 3)


def test_integers():
    x = RNG.integers(-9, 9, 50)
    expected = np.array([((x & 1) == (v & 1)).sum() // 2 - (v ^ 3) for v in x])
    np.testing.assert_array_equal(counts(weft.tensor(x)).numpy(), expected)


def test_inputs_that_are_views_or_computed():
    x = floats(6, 8)
    wx = weft.tensor(x)
    np.testing.assert_array_equal(running_sum(wx.T).numpy(), np.add.accumulate(x.T, 1))
    np.testing.assert_array_equal(running_sum(wx[2:5, ::2]).numpy(), np.add.accumulate(x[2:5, ::2], 1))
    np.testing.assert_array_equal(running_sum(wx[2:5] + 1).numpy(), np.add.accumulate(x[2:5] + 1, 1))
    np.testing.assert_array_equal((running_sum(wx)[1:] * 2).numpy(), np.add.accumulate(x, 1)[1:] * 2)
    np.testing.assert_array_equal(running_sum(weft.ones(3, 4)).numpy(), np.add.accumulate(np.ones((3, 4)), 1))


def test_an_input_that_is_partly_padding():
    x = weft.tensor([[[1.0, 2.0, 3.0]]])
    folded = Tensor(build.fold(x.node, 0, 2, 1, 1))
    assert running_sum(folded).tolist() == [[1.0, 3.0, 6.0], [0.0, 0.0, 0.0]]


def test_nothing_to_compute_and_nothing_to_read():
    assert scale_add(weft.zeros(0), weft.zeros(0)).shape == (0,)
    assert log_sum_exp(weft.zeros(0, 3)).shape == (0,)

    @weft.kernel(out=lambda x: ((x.shape[1],), x.dtype))
    def column_sums(j, x, out):
        out[j] = kernel.sum(x.shape[0], lambda i: x[i, j])

    assert column_sums(weft.zeros(0, 3)).tolist() == [0.0, 0.0, 0.0]


def test_inside_compile_as_one_step(on_device):
    if on_device == "reference":
        pytest.skip("interprets graphs, not plans")

    @weft.compile
    def step(x, scale):
        p, q = two_results(x * 2, weft.zeros(x.shape[0]).long(), scale)
        return p + 1, running_sum(q)

    x = floats(40, 24)
    found = step(weft.tensor(x), 0.5)
    expected = two_results(weft.tensor(x) * 2, weft.zeros(40).long(), 0.5)
    np.testing.assert_array_equal(found[0].numpy(), expected[0].numpy() + 1)
    np.testing.assert_array_equal(found[1].numpy(), running_sum(expected[1]).numpy())
    assert len([k for k in step.plan.kernels() if k.name.startswith("custom_")]) == 2


def test_a_new_batch_size_or_number_compiles_nothing(on_device):
    if on_device == "reference":
        pytest.skip("compiles nothing")

    @weft.kernel
    def centred(i, j, x, factor, out):
        n = x.shape[0]
        out[i, j] = (x[i, j] - kernel.sum(n, lambda k: x[k, j]) / n) * factor

    def built():
        counters = weft.counters()
        return counters["kernels_compiled"] + counters["kernels_from_disk"]

    for rows, factor in ((32, 0.3), (48, 0.7), (7, 1.9)):
        x = floats(rows, 19)
        before = built()
        result = centred(weft.tensor(x), factor).numpy()
        assert rows == 32 or built() == before
        np.testing.assert_allclose(result, (x - x.mean(0)) * factor, rtol=1e-4, atol=1e-5)


def test_equal_calls_are_one_node():
    x = weft.tensor(floats(4))
    assert scale_add(x, x).node is scale_add(x, x).node


def test_gradients():
    @weft.kernel
    def cube_slope(i, g, x, out):
        out[i] = 3.0 * x[i] ** 2 * g[i]

    @weft.kernel(backward=lambda g, x, n: (cube_slope(g, x), None))
    def cube(i, x, n, out):
        assert n == 3
        out[i] = x[i] * x[i] * x[i]

    x = weft.tensor([1.0, -2.0], requires_grad=True)
    (cube(x, 3) * weft.tensor([1.0, 10.0])).sum().backward()
    assert x.grad.tolist() == [3.0, 120.0]

    twice = weft.kernel(lambda i, x, out: out.store(i, x[i] * 2.0), backward=lambda g, x: g * 2)
    assert weft.grad(lambda x: twice(twice(x)).sum())(x).tolist() == [4.0, 4.0]


def test_the_examples_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "custom-kernels.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    scope: dict = {"__name__": "docs"}
    if str(weft.default_device()) == "reference":
        blocks = blocks[:2]
    for block in blocks:
        exec(compile(block, "custom-kernels.md", "exec"), scope)
    if "in_a" in scope:
        y = np.array([1, 1.5, 1.75])
        np.testing.assert_allclose(scope["in_a"].item(), 2 * 2 * (1.5 * 1 + 1.75 * (1.5 + 0.5)), rtol=1e-5)
        back = [2 * y[0] + y[1] + 0.5 * y[2], 2 * y[1] + y[2], 2 * y[2]]
        np.testing.assert_allclose(scope["in_x"][0].numpy(), back, rtol=1e-5)


X = (5, 7)


def call(function, *args, **options):
    return lambda: weft.kernel(function, **options)(*(args or (weft.ones(*X),)))


def branches(i, j, x, out):
    if x[i, j] > 0:
        out[i, j] = x[i, j]


def leaves_early(i, j, x, out):
    for _ in kernel.loop(3):
        out[i, j] = x[i, j]
        break


def uses_after(i, j, x, out):
    for k in kernel.loop(3):
        v = x[i, k]
        out[i, j] = v
    out[i, j] = v + kernel.cast(k, x.dtype)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (call(lambda i, x, out: None), weft.GraphError, r"3 parameters \(i, x, out\); expected 4: 2 indices, 1 arg"),
        (call(lambda i, j, x, out: None), weft.GraphError, "never assigns to 'out'"),
        (call(branches), weft.GraphError, r"`if`, .* expected weft.kernel.where"),
        (call(leaves_early), weft.GraphError, "a loop that is left early"),
        (call(uses_after), weft.GraphError, "outside the block that defines it"),
        (call(lambda i, j, x, out: out.store((i, j), x[i])), weft.ShapeError, r"1 indices for 'x' of shape \(5, 7\)"),
        (call(lambda i, j, x, out: out.store((i, j), x[j, i])), weft.IndexRangeError, "indices from 0 to 6 on axis 0"),
        (call(lambda i, j, x, out: out.store((i, 9), 0.0)), weft.IndexRangeError, "the index 9 on axis 1 of extent 7"),
        (call(lambda i, j, x, out: x.store((i, j), 0.0)), weft.GraphError, "an assignment to the input 'x'"),
        (call(lambda i, j, x, out: out.store((i, j), x[i, j] + i)), weft.DTypeError, "add of int64 and float32"),
        (call(lambda i, j, x, out: out.store((i, j), i + j)), weft.DTypeError, "a int64 value for 'out'"),
        (call(lambda i, j, x, out: out.store((i, j), i / j)), weft.DTypeError, "/ of int64"),
        (call(lambda i, j, x, out: out.store((i, j), x[x[i, j], j])), weft.DTypeError, "a float32 value as an index"),
        (call(lambda i, j, x, out: out.store((i, j), kernel.exp(i))), weft.DTypeError, "exp of int64"),
        (call(lambda i, j, x, out: out.store((i, j), kernel.where(i, 1.0, 2.0))), weft.DTypeError, "a int64 condition"),
        (call(lambda i, j, x, out: out.store((i, j), "x")), weft.GraphError, "given a str"),
        (call(lambda i, j, x, out: out.store((i, j), sum(x[i, j]))), weft.GraphError, "where Python needs a number"),
        (call(lambda i, j, x, out: [0 for _ in kernel.loop(x[i, j])]), weft.GraphError, "a Value as a bound"),
        (call(lambda *x: None), weft.GraphError, r"the parameter \*x"),
        (call(lambda i, x=2: None), weft.GraphError, "a default for 'x'"),
        (call(lambda i, out: None, 3.0), weft.GraphError, "no tensor among the arguments"),
        (call(lambda i, x, y, out: None, weft.ones(2), []), weft.GraphError, "nor hashable"),
        (call(lambda i, x, out: None, out=lambda x: 3), weft.GraphError, "3 from out="),
        (call(lambda i, x, out: None, over=lambda x: "a"), weft.ShapeError, "'a' from over="),
        (
            call(lambda i, j, x, p, q: None, out=lambda x: [x, (x.shape, weft.int64)]),
            weft.DTypeError,
            "outputs of float32 and int64",
        ),
        (call(scale_add.function, weft.ones(2), weft.ones(2, device="null")), weft.DeviceError, "tensors on"),
        (lambda: kernel.exp(1.0), weft.GraphError, "outside a kernel"),
        (lambda: weft.kernel(3), weft.GraphError, "weft.kernel: given a int"),
    ],
)
def test_what_is_refused(wrong, kind, words):
    with pytest.raises(kind, match=words):
        wrong()


def test_a_kernel_without_a_gradient_is_not_differentiated():
    x = weft.ones(2, requires_grad=True)
    y = scale_add(x, x)
    assert y.requires_grad and not scale_add(x.detach(), x.detach()).requires_grad
    with pytest.raises(
        weft.GraphError, match=r"kernel scale_add: given a kernel without a gradient; expected.*backward="
    ):
        y.sum().backward()


def test_a_gradient_of_the_wrong_count_is_refused():
    wrong = weft.kernel(scale_add.function, backward=lambda g, x, y: g)
    x = weft.ones(2, requires_grad=True)
    with pytest.raises(weft.GraphError, match="1 gradients from backward=; expected 2"):
        wrong(x, x).sum().backward()


def test_an_unknown_word():
    with pytest.raises(AttributeError, match="no word 'softmax'; it has loop"):
        kernel.softmax  # noqa: B018


def test_two_threads_trace_at_once():
    """The words of a kernel mean what their own thread records, also while another thread is tracing."""
    meeting = threading.Barrier(2, timeout=100)

    def totals(i, x, out):
        meeting.wait()
        out[i] = kernel.sum(x.shape[0], lambda j: x[j]) * 2.0
        meeting.wait()

    def largest(i, x, out):
        meeting.wait()
        out[i] = -kernel.max(x.shape[0], lambda j: x[j])
        meeting.wait()

    x = np.linspace(0.5, 2.0, 7, dtype="float32")
    given = weft.tensor(x)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda made: weft.kernel(made)(given).numpy(), (totals, largest)))
    np.testing.assert_allclose(found[0], np.full(7, 2 * x.sum()), rtol=1e-6)
    np.testing.assert_array_equal(found[1], np.full(7, -x.max()))
