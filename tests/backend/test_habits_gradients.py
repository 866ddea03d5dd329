"""Gradients as PyTorch's users ask for them: `grad` of tensors, hooks, retained gradients, switches, `data`."""

import threading

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 6, 6)).astype(np.float32)
W = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)


def lists(value):
    """Tensors of either library as nested lists."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (tuple, list)):
        return [lists(one) for one in value]
    return value.detach().cpu().tolist()


def same(program, **tolerance):
    """What a program gives in both libraries."""
    ours, theirs = lists(program(weft)), lists(program(torch))
    flat = [np.asarray(one, float) if not isinstance(one, list) else one for one in (ours, theirs)]
    compare(flat[0], flat[1], **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


def compare(ours, theirs, **tolerance):
    if ours is None or theirs is None:
        assert ours is theirs
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other, **tolerance)
    else:
        np.testing.assert_allclose(ours, theirs, **tolerance)


# ---- grad -----------------------------------------------------------------------------------------------------------


def several_outputs(m):
    x, y = (m.tensor(values, requires_grad=True) for values in ([1.0, 2.0], [3.0, 4.0]))
    return m.autograd.grad([(x * y).sum(), x * x], [x, y], [None, m.tensor([1.0, 10.0])])


def one_tensor(m):
    x = m.tensor([1.0, 2.0], requires_grad=True)
    return m.autograd.grad((x**3).sum(), x), x.grad


def results_as_inputs(m):
    x = m.tensor([1.0, 2.0], requires_grad=True)
    h = x * 2
    k = h.exp()
    return m.autograd.grad((k * h).sum(), [h, k, x])


def clones_are_apart(m):
    x = m.tensor([1.0, 2.0], requires_grad=True)
    y, z = x.clone(), x.view(2)
    return m.autograd.grad((x * 3 + y * 5 + z * 7).sum(), [x, y, z])


def second_derivatives(m):
    x = m.tensor(2.0, requires_grad=True)
    (first,) = m.autograd.grad(x**4, x, create_graph=True)
    (second,) = m.autograd.grad(first, x, create_graph=True)
    return first, second, m.autograd.grad(second, x)


def unused(m):
    x, y = m.tensor([1.0], requires_grad=True), m.tensor([2.0, 3.0], requires_grad=True)
    return (
        m.autograd.grad(x.sum(), [x, y], allow_unused=True),
        m.autograd.grad(x.sum() * 2, [y, x], materialize_grads=True),
        m.autograd.grad(x.sum() * 3, [y, x], None, False, False, True, True, False, False),  # in torch's order
    )


def read_and_written_before_grad(m):
    w = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
    read = []
    for _ in range(3):
        loss = (w**3).sum()
        read.append(loss.item())  # computes what was written to w below
        (g,) = m.autograd.grad(loss, w, create_graph=True)
        read.append(g.tolist())
        (h,) = m.autograd.grad((g * g).sum(), w)
        with m.no_grad():
            w -= 0.01 * g + 0.001 * h
    before = (w * 3).sum()
    with m.no_grad():
        w.mul_(2)
    both = m.autograd.grad(before + (w * 5).sum(), [w, w])
    return m.tensor(read[0::2]), m.tensor(read[1::2]), h, w.detach(), both


def hooks_of_leaves_that_were_read(m):
    w = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with m.no_grad():
        w.mul_(1.5)  # computed below, while the graph is made
    seen = []
    w.register_hook(lambda g: seen.append(g.clone()) or g.clamp(max=30.0))
    first = w * w
    first.tolist()
    (first.sum() + (w * 3).sum() + w.exp().sum()).backward()
    return *seen, w.grad, *m.autograd.grad((w * w).sum() + (w * 5).sum(), w), m.tensor(len(seen))


def gradient_penalty(m):
    x, w = m.tensor(X, requires_grad=True), m.tensor(W, requires_grad=True)
    score = m.nn.functional.conv2d(x, w).tanh()
    (g,) = m.autograd.grad(
        outputs=score, inputs=x, grad_outputs=m.ones_like(score), create_graph=True, retain_graph=True, only_inputs=True
    )
    return m.autograd.grad(((g.flatten(1).norm(2, dim=1) - 1) ** 2).mean(), w)


def a_convolution(m):
    x, w = m.tensor(X, requires_grad=True), m.tensor(W, requires_grad=True)
    h = m.nn.functional.conv2d(x, w)
    r = m.nn.functional.relu(h)
    return m.autograd.grad((r * r).sum(), [x, w, h, r])


def kept_and_not_kept(m):
    x = m.tensor([1.0], requires_grad=True)
    y = (x * x).sum()
    first = m.autograd.grad(y, x, retain_graph=True)
    second = m.autograd.grad(y, x)
    with pytest.raises(RuntimeError):
        m.autograd.grad(y, x)
    return first, second


PROGRAMS = [
    several_outputs, one_tensor, results_as_inputs, clones_are_apart, second_derivatives, unused, a_convolution,
    gradient_penalty, read_and_written_before_grad, hooks_of_leaves_that_were_read, kept_and_not_kept,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_grad_of_tensors(program):
    same(program, rtol=2e-4, atol=2e-4)


def test_grad_of_tensors_inside_compile():
    w = weft.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)

    def loss_and_grads(x):
        loss = (x @ w).tanh().sum()
        return loss.detach(), *weft.grad(loss, [w])

    x = weft.tensor([[0.1, -0.2]])
    for eager, compiled in zip(loss_and_grads(x), weft.compile(loss_and_grads)(x), strict=True):
        np.testing.assert_array_equal(eager.numpy(), compiled.numpy())
    assert w.grad is None


def test_the_form_for_functions_stays():
    assert weft.grad(lambda x: (x * x).sum())(weft.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert weft.grad(lambda x, y: (x * y).sum(), 1)(weft.ones(1), weft.ones(1)).tolist() == [1.0]
    grads, extra = weft.grad(fn=lambda x: ((x * x).sum(), "extra"), has_aux=True)(weft.ones(1))
    assert grads.tolist() == [2.0] and extra == "extra"


def test_reading_changes_no_bits_of_gradients():
    """The gradient is the same sum in the same order, although the leaf has another node once it is computed."""
    values, results = np.random.default_rng(0).standard_normal((40, 12)), []
    for reads in (False, True):
        w = weft.tensor(values, requires_grad=True)
        with weft.no_grad():
            w.mul_(0.3)
        first = w.sin()
        if reads:
            first.tolist()
        parts = [w.roll(shift, 1) * (shift + 0.1) for shift in range(1, 6)]
        (sum(parts) * first + w.exp()).sum().backward()
        results.append(w.grad.numpy())
    np.testing.assert_array_equal(*results)


def test_a_function_that_reads_its_argument_after_it_was_used():
    def cubes(x):
        loss = (x**3).sum()
        assert x.tolist() == [1.0, 2.0, 3.0] and loss.item() == 36.0
        return loss

    x = weft.tensor([1.0, 2.0, 3.0])
    for value in (x, x * 1):
        assert weft.grad(cubes)(value).tolist() == [3.0, 12.0, 27.0]
        assert weft.value_and_grad(cubes)(value)[1].tolist() == [3.0, 12.0, 27.0]


def test_errors_of_grad():
    x, y = weft.ones(2, requires_grad=True), weft.ones(2)
    for call, message in [
        (lambda: weft.grad((x * 2).sum(), y), "input 0, which does not require grad"),
        (lambda: weft.grad((x * 2).sum(), weft.ones(1, requires_grad=True)), "no output was computed from"),
        (lambda: weft.grad(x * 2, x), "no gradient; expected one element. Fix: .* pass grad_outputs="),
        (lambda: weft.grad(y.sum(), x), "does not require grad and has no history"),
        (lambda: weft.grad((x * 2).sum(), [x], [None, None]), "2 grad_outputs for 1 outputs"),
        (lambda: weft.grad(x * 2, x, weft.ones(3)), r"a gradient of shape \(3,\)"),
        (lambda: weft.grad(x.sum(), x, allow_unused=False, materialize_grads=True), "allow_unused=False"),
        (lambda: weft.grad(x * 2, x, weft.eye(2), is_grads_batched=True), "is_grads_batched=True.*each of them"),
        (lambda: weft.grad(3, x), "an? int among the outputs"),
    ]:
        with pytest.raises(weft.WeftError, match=message):
            call()
    m = weft.ones(2, 3, requires_grad=True) * 2
    with pytest.raises(weft.GraphError, match=r"a transpose of another tensor.*clone"):
        weft.grad(m.t().sum(), m.t())
    t = m.t().clone()
    assert weft.grad((t * 3).sum() + m.sum(), t)[0].tolist() == [[3.0, 3.0]] * 3


# ---- switches -------------------------------------------------------------------------------------------------------


def decorators(m):
    x = m.ones(1, requires_grad=True)

    @m.no_grad
    def bare(x):
        return (x * 2).requires_grad

    @m.no_grad()
    def called(x):
        return (x * 2).requires_grad

    @m.set_grad_enabled(False)
    def chosen():
        return m.is_grad_enabled()

    @m.inference_mode
    def inference(x):
        return (x * 2).requires_grad

    @m.inference_mode(False)
    def no_inference(x):
        return (x * 2).requires_grad

    @m.enable_grad()
    def enabled(x):
        return (x * 2).requires_grad

    with m.no_grad():
        inner = enabled(x), bare(x), m.is_grad_enabled()
    return [bare(x), called(x), chosen(), inference(x), no_inference(x), *inner, m.is_grad_enabled()]


def generators(m):
    @m.no_grad()
    def steps():
        got = yield m.is_grad_enabled()
        try:
            yield got, m.is_grad_enabled()
        except KeyError:
            yield m.is_grad_enabled()

    running = steps()
    seen = [next(running), m.is_grad_enabled(), *running.send(True), m.is_grad_enabled(), running.throw(KeyError())]
    return [*seen, list(running), m.is_grad_enabled()]


def switched(m):
    seen = []
    m.set_grad_enabled(False)
    seen.append(m.is_grad_enabled())
    m.set_grad_enabled(mode=True)
    with m.set_grad_enabled(False):
        seen.append(m.is_grad_enabled())
    with m.inference_mode(), m.inference_mode(False):
        seen.append(m.is_grad_enabled())
    return [*seen, m.is_grad_enabled()]


@pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature of throw:DeprecationWarning")  # of torch's
@pytest.mark.parametrize("program", [decorators, generators, switched], ids=lambda program: program.__name__)
def test_switches(program):
    assert program(weft) == program(torch)


def test_decorated_functions_keep_their_names_and_are_safe_in_threads():
    both = threading.Barrier(2, timeout=100)

    @weft.no_grad
    def named():
        """A docstring."""
        both.wait()
        return weft.is_grad_enabled()

    assert named.__name__ == "named" and named.__doc__ == "A docstring."
    seen = []

    def work():
        seen.append((named(), weft.is_grad_enabled()))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(False, True)] * 2


def test_a_compiled_function_leaves_the_switch_as_it_was():
    @weft.compile
    def step(x):
        weft.set_grad_enabled(False)
        return x * 2

    for _ in range(3):
        step(weft.ones(1))
        assert weft.is_grad_enabled()


# ---- data -----------------------------------------------------------------------------------------------------------


def written_through_data(m):
    p = m.ones(3, requires_grad=True)
    p.data.add_(1)
    p.data -= 0.5
    p.data[0] = 7
    seen = [lists(p), p.requires_grad, p.is_leaf, p.data.requires_grad]
    (p * p).sum().backward()
    p.data = m.zeros(3)
    return [*seen, p.grad, p, p.requires_grad]


def of_another_form(m):
    p = m.ones(3, requires_grad=True)
    p.data = m.full((2,), 4.0, dtype=m.float64)
    (p * 2).sum().backward()
    return p, p.grad, str(p.dtype).split(".")[1] == "float64"


def of_a_result(m):
    x = m.ones(2, requires_grad=True)
    y = x * 3
    y.data.mul_(2)
    (y * y).sum().backward()
    return y, x.grad


@pytest.mark.parametrize(
    "program", [written_through_data, of_another_form, of_a_result], ids=lambda program: program.__name__
)
def test_data(program):
    same(program)


def test_data_inside_compile():
    p, q = (weft.ones(3, requires_grad=True) for _ in range(2))

    def step(p, x):
        p.data.add_(x)
        p.data -= 0.25
        p.data = p.data * 2

    compiled = weft.compile(lambda x: step(p, x))
    for _ in range(3):
        compiled(weft.ones(3))
        step(q, weft.ones(3))
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
    with pytest.raises(weft.ShapeError, match=r"inside weft\.compile"):
        weft.compile(lambda x: setattr(p, "data", x))(weft.ones(2))
    with pytest.raises(weft.ShapeError, match="a tensor that has views"):
        view = weft.ones(3)
        part = view[1:]
        view.data = part
