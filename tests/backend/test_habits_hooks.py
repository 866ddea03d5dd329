"""Hooks of tensors, as PyTorch programs use them."""

import gc
import weakref

import numpy as np
import pytest

import weft
from tests.backend.test_habits_gradients import W, X, lists, same

pytestmark = pytest.mark.usefixtures("on_each_device")


def on_leaves_and_results(m):
    x, log = m.tensor([1.0, 2.0], requires_grad=True), []
    h = x * 2
    y = (h * h).sum()  # before the hooks are registered
    h.register_hook(lambda g: log.append(lists(g)))
    h.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    h.retain_grad()
    y.backward()
    return x.grad, h.grad, log


def removed(m):
    x, log = m.tensor([1.0], requires_grad=True), []
    handle = x.register_hook(lambda g: log.append(lists(g)))
    with x.register_hook(lambda g: g * 100):
        (x * 2).sum().backward()
    handle.remove()
    handle.remove()
    (x * 3).sum().backward()
    return x.grad, log


def written_in_place(m):
    x = m.tensor([1.0], requires_grad=True)
    x.register_hook(lambda g: g * 2)
    with m.no_grad():
        x.add_(1)
    (x * x).sum().backward()
    return x.grad


def of_views(m):
    a, log = m.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True), []
    b = a * 1.5
    t = b.t()
    t.register_hook(lambda g: (log.append(lists(g)), g * 2)[1])
    t.retain_grad()
    s = t[0:2]
    s.retain_grad()
    v = s.reshape(4)
    v.retain_grad()
    w = v.reshape(2, 2)
    w.retain_grad()
    ((t * t).sum() + t.t().sum() * 3 + s[1].sum() * 5 + (w * w).sum()).backward()
    return a.grad, t.grad, s.grad, v.grad, w.grad, log


def of_a_convolution(m):
    x, w, log = m.tensor(X, requires_grad=True), m.tensor(W, requires_grad=True), []
    h = m.nn.functional.conv2d(x, w)
    r = m.nn.functional.relu(h)
    r.register_hook(lambda g: g * 0.5)
    h.register_hook(lambda g: log.append(lists(g)))
    h.retain_grad()
    (r * r).sum().backward()
    return h.grad, w.grad, x.grad, log


def same_operation_after_a_hook(m):
    x = m.tensor([1.0, 2.0], requires_grad=True)
    h = x * 2
    h.register_hook(lambda g: g * 10)
    h.retain_grad()
    again = x * 2
    (h * 3 + again * 5).sum().backward()
    return x.grad, h.grad


def of_second_derivatives(m):
    x = m.tensor(2.0, requires_grad=True)
    y = x * x
    y.register_hook(lambda g: g * g)
    (g,) = m.autograd.grad(y * y * y, x, create_graph=True)
    return g, m.autograd.grad(g, x)


def whose_leaf_is_gone(m):
    log = []

    def result():
        x = m.tensor([1.0, 2.0], requires_grad=True)
        return x * 3

    y = result()
    y.register_hook(lambda g: log.append(lists(g)))
    (y * y).sum().backward()
    return log


def through_grad(m):
    x = m.tensor([1.0, 2.0], requires_grad=True)
    h = x * 2
    h.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    y = (h * h).sum()
    return m.autograd.grad(y, h, retain_graph=True), m.autograd.grad(y, x)


def changing_its_argument(m):
    x = m.tensor([1.0], requires_grad=True)
    x.register_hook(lambda g: g.mul_(3) and None)
    (x * 2).sum().backward()
    return x.grad


def retained_twice(m):
    x = m.tensor([1.0], requires_grad=True)
    h = x * 2
    h.retain_grad()
    h.retain_grad()
    x.retain_grad()
    y = (h * h).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad, h.grad


HOOKS = [
    on_leaves_and_results, removed, written_in_place, of_views, of_a_convolution, same_operation_after_a_hook,
    of_second_derivatives, whose_leaf_is_gone, through_grad, changing_its_argument, retained_twice,
]  # fmt: skip


@pytest.mark.parametrize("program", HOOKS, ids=lambda program: program.__name__)
def test_hooks(program):
    same(program, rtol=2e-4, atol=2e-4)


def test_hooks_inside_compile():
    w = weft.tensor([1.0, 2.0], requires_grad=True)

    def step(x):
        h = x * w
        h.register_hook(lambda g: g * 10)
        h.retain_grad()
        (h * h).sum().backward()
        return h.grad

    eager = step(weft.tensor([3.0, 4.0]))
    expected, w.grad = w.grad, None
    compiled = weft.compile(step)
    for _ in range(3):
        w.grad = None
        np.testing.assert_array_equal(compiled(weft.tensor([3.0, 4.0])).numpy(), eager.numpy())
        np.testing.assert_array_equal(w.grad.numpy(), expected.numpy())


def test_a_compiled_function_sees_hooks_come_and_go():
    w = weft.tensor([1.0, 2.0], requires_grad=True)

    @weft.compile
    def step(x):
        w.grad = None
        (x * w).sum().backward()
        return w.grad

    def gradient():
        step(weft.ones(2))
        return w.grad.tolist()

    assert gradient() == gradient() == [1.0, 1.0]
    handle = w.register_hook(lambda g: g * 5)
    assert gradient() == gradient() == [5.0, 5.0]
    handle.remove()
    before = weft.counters()["traces"]
    assert gradient() == gradient() == [1.0, 1.0]
    assert weft.counters()["traces"] == before  # the first plan serves again


def test_errors_of_hooks():
    x, w = weft.ones(2, requires_grad=True), weft.ones(2, requires_grad=True)

    def wrong(hook):
        y = weft.ones(2, requires_grad=True)
        y.register_hook(hook)
        (y * 2).sum().backward()

    for call, message in [
        (lambda: weft.ones(2).register_hook(print), "does not require grad"),
        (lambda: weft.ones(2).retain_grad(), "does not require grad"),
        (lambda: x.register_hook(3), "a int; expected a function"),
        (lambda: wrong(lambda g: 3), "a int from the hook; expected a tensor or None"),
        (lambda: wrong(lambda g: g.sum()), r"float32\[\] on .* from the hook; expected the form of the gradient"),
        (lambda: weft.compile(lambda x: (w.register_hook(print), x)[1])(weft.ones(1)), "register it before the call"),
        (
            lambda: weft.loop(lambda s, _: (s, (s * w).register_hook(print)), weft.ones(2), length=2),
            "inside the function of weft.loop",
        ),
    ]:
        with pytest.raises(weft.WeftError, match=message):
            call()


def test_hooks_do_not_keep_anything_alive():
    def result():
        x = weft.ones(2, requires_grad=True)
        h = x * 2
        h.register_hook(lambda g: g * h)  # refers to its own tensor
        x.register_hook(lambda g: g * x)
        return weakref.ref(x), weakref.ref(h)

    references = result()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
