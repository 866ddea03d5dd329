"""`backward(inputs=...)`: gradients go into these tensors alone, as in torch."""

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.backend


def make(lib, device=None):
    options = {} if device is None else {"device": device}
    x = lib.tensor([[1.0, -2.0], [0.5, 3.0]], **options).requires_grad_()
    w = lib.tensor([[0.5, 1.5], [-1.0, 2.0]], **options).requires_grad_()
    return x, w


def found(*tensors):
    return [None if one.grad is None else np.asarray(one.grad.detach().cpu()).tolist() for one in tensors]


def leaf(lib, x, w):
    (x @ w).tanh().sum().backward(inputs=[x])
    return found(x, w)


def one_tensor(lib, x, w):
    (x * w).backward(lib.ones_like(x), inputs=w)
    return found(x, w)


def result(lib, x, w):
    y = x * w
    (y * y).sum().backward(inputs=[y])
    return found(x, w, y)


def result_and_leaf(lib, x, w):
    y = x * w
    (y * x).sum().backward(inputs=(y, x, y))
    return found(x, w, y)


def no_way(lib, x, w):
    (x * 2).sum().backward(inputs=[w])
    return found(x, w)


def twice(lib, x, w):
    total = (x * w).sum()
    total.backward(inputs=[x], retain_graph=True)
    total.backward(inputs=[x, w])
    return found(x, w)


def second_order(lib, x, w):
    (x**3 * w).sum().backward(inputs=[x], create_graph=True)
    first, x.grad = x.grad, None
    first.sum().backward(inputs=[x])
    return found(x, w)


def several(lib, x, w):
    lib.autograd.backward([(x * w).sum(), x * 3], [None, lib.ones_like(x)], inputs=x)
    return found(x, w)


def hooks_and_retained(lib, x, w):
    y = x * w
    y.retain_grad()
    other = w * 2
    other.retain_grad()
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    (y + other).sum().backward(inputs=[x])
    return found(x, w, y, other)


CASES = [leaf, one_tensor, result, result_and_leaf, no_way, twice, second_order, several, hooks_and_retained]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_as_torch(on_each_device, case):
    got, expected = case(weft, *make(weft, on_each_device)), case(torch, *make(torch))
    assert [one is None for one in got] == [one is None for one in expected]
    for one, other in zip(got, expected, strict=True):
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_in_a_compiled_step(on_each_device):
    """Eager, traced and replayed: the same bits, and nothing in the other leaf."""
    x, w = make(weft, on_each_device)

    def step():
        x.grad = None
        (x @ w).tanh().sum().backward(inputs=[x])
        return x.grad * 1.0

    expected = step().numpy().tobytes()
    compiled = weft.compile(step)
    for _ in range(3):
        assert compiled().numpy().tobytes() == expected
    assert w.grad is None


def test_what_is_refused(on_each_device):
    x, w = make(weft, on_each_device)
    constant = weft.ones(2, device=on_each_device)
    with pytest.raises(RuntimeError, match="no inputs"):
        (x * 2).sum().backward(inputs=[])
    with pytest.raises(RuntimeError, match="input 1, which does not require grad"):
        (x * 2).sum().backward(inputs=[x, constant])
    with pytest.raises(TypeError, match="a str among the inputs"):
        (x * 2).sum().backward(inputs=["x"])
    with pytest.raises(ValueError, match="1 grad_tensors for 2 tensors"):
        weft.autograd.backward([x.sum(), w.sum()], [None])
    total = (x * w).sum()
    total.backward(inputs=[x])
    with pytest.raises(RuntimeError, match="used up"):
        total.backward(inputs=[w])
