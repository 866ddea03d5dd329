"""Gradients as users meet them: backward, grad, higher orders, switches, and what is kept and forgotten."""

import gc
import weakref

import numpy as np
import pytest
import torch

import weft
from weft.core.realize import take_consumed

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def on_reference():
    with weft.device("reference"):
        yield


def leaf(*values):
    return weft.tensor(list(values), requires_grad=True)


def test_gradients_add_up():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    (3 * x).sum().backward()
    assert x.grad.tolist() == [5.0, 7.0]
    x.grad = None
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_shared_nodes_count_every_path():
    x = leaf(2.0)
    y = x * x
    z = (y + y) * y
    z.sum().backward()
    assert x.grad.tolist() == [64.0]


def test_equal_leaves_stay_apart():
    a, b = weft.zeros(2, requires_grad=True), weft.zeros(2, requires_grad=True)
    (a * 2 + b * 3).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_zero_in_place_keeps_leaves_apart():
    a, b = leaf(1.0), leaf(2.0)
    with weft.no_grad():
        a.zero_()
        b.zero_()
    (a * 2 + b * 3).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([2.0], [3.0])


def test_requires_grad_does_not_reach_back():
    a = weft.tensor([3.0])
    before = a * 2
    a.requires_grad_()
    (before * a).sum().backward()
    assert a.grad.tolist() == [6.0]


def test_no_gradient_for_frozen_leaves():
    a, b = leaf(1.0), leaf(2.0)
    a.requires_grad = False
    (a * b).sum().backward()
    assert a.grad is None
    assert b.grad.tolist() == [1.0]


def test_a_second_backward_raises():
    x = leaf(1.0)
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(weft.GraphError, match=r"used up already.*retain_graph=True"):
        loss.backward()
    with pytest.raises(weft.GraphError, match="used up already"):
        (loss * 2).backward()


def test_an_equal_loss_is_not_the_consumed_one():
    x = leaf(3.0)
    first = (x * x).sum()
    first.backward()
    first.item()
    (x * x).sum().backward()
    assert x.grad.tolist() == [12.0]


def test_retain_graph_keeps_the_history():
    x = leaf(1.0)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad.tolist() == [4.0]


def test_reading_a_value_keeps_its_history():
    x = leaf(3.0)
    y = x * x
    assert y.tolist() == [9.0]
    (y * 2).sum().backward()
    assert x.grad.tolist() == [12.0]


def test_a_read_tensor_without_gradients_forgets_how_it_was_made():
    y = weft.ones(2) * 3
    weft.eval(y)
    assert y._node.op == "buffer"


def test_a_consumed_loss_is_offered_to_the_optimizer_once():
    take_consumed()
    x = leaf(1.0)
    loss = (x * x).sum()
    loss.backward()
    assert [one is loss for one in take_consumed()] == [True]
    assert take_consumed() == []
    assert loss.item() == 1.0
    assert loss._node.op == "buffer"


def test_histories_are_freed():
    x = leaf(1.0)
    loss = (x.exp() * x).sum()
    inner = weakref.ref(loss._node.srcs[0])
    loss.backward()
    x.grad.numpy()
    loss.item()
    gc.collect()
    assert inner() is None


def test_detach_and_no_grad_cut():
    x = leaf(2.0)
    (x.detach() * x).sum().backward()
    assert x.grad.tolist() == [2.0]
    with weft.no_grad():
        y = x * x
        assert not weft.is_grad_enabled()
        with weft.enable_grad():
            assert (x * 2).requires_grad
    assert not y.requires_grad
    x.grad = None
    (y * x).sum().backward()
    assert x.grad.tolist() == [4.0]


def test_no_grad_decorates():
    @weft.no_grad()
    def double(x):
        return x * 2

    assert not double(leaf(1.0)).requires_grad
    assert weft.is_grad_enabled()


def test_create_graph_gives_second_order():
    x = leaf(3.0)
    (x**3).sum().backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.sum().backward()
    assert first.tolist() == [27.0]
    assert x.grad.tolist() == [18.0]


def test_non_scalar_backward_takes_a_gradient():
    x = leaf(1.0, 2.0)
    (x * x).backward(weft.tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 40.0]


def test_grad_of_grad_of_grad():
    third = weft.grad(weft.grad(weft.grad(lambda x: x**4)))
    assert third(weft.tensor(2.0)).item() == pytest.approx(48.0)


def test_grad_of_a_closure_over_an_outer_variable():
    def outer(x):
        return weft.grad(lambda y: (x * y * y).sum())(x)  # 2 x y at y = x: 2 x^2

    assert weft.grad(lambda x: outer(x).sum())(weft.tensor([3.0])).tolist() == [12.0]


def test_value_and_grad_follows_structures():
    params = {"w": weft.tensor([1.0, 2.0]), "more": [weft.tensor(3.0), (weft.tensor(4.0),)]}

    def loss(p, scale):
        return (p["w"].sum() * p["more"][0] + p["more"][1][0]) * scale

    value, grads = weft.value_and_grad(loss)(params, 2.0)
    assert value.item() == 26.0
    assert grads["w"].tolist() == [6.0, 6.0]
    assert grads["more"][0].item() == 6.0
    assert grads["more"][1][0].item() == 2.0


def test_grad_of_several_arguments_and_aux():
    a, b = weft.tensor(2.0), weft.tensor(5.0)
    one, two = weft.grad(lambda x, y: x * y, argnums=(0, 1))(a, b)
    assert (one.item(), two.item()) == (5.0, 2.0)
    grads, extra = weft.grad(lambda x: (x * x, "note"), has_aux=True)(a)
    assert (grads.item(), extra) == (4.0, "note")


def test_grad_of_the_same_tensor_twice():
    x = weft.tensor(3.0)
    assert weft.grad(lambda a, b: a * b)(x, x).item() == 3.0
    assert weft.grad(lambda a: weft.tensor(1.0) + 0 * a.detach())(x).item() == 0.0


def test_grad_leaves_requires_grad_leaves_alone():
    w = leaf(2.0)
    g = weft.grad(lambda x: (w * x * x).sum())(weft.tensor([3.0]))
    assert g.requires_grad  # it depends on w
    g.sum().backward()
    assert w.grad.tolist() == [6.0]


@pytest.mark.parametrize(
    "name", ["exp", "log", "tanh", "erf", "sigmoid", "sqrt", "sin", "cos", "log1p", "expm1", "reciprocal"]
)
def test_second_derivatives_match_torch(name):
    values = np.linspace(0.2, 1.5, 5)
    x = torch.tensor(values, requires_grad=True)
    (first,) = torch.autograd.grad(getattr(torch, name)(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    ours = weft.grad(lambda x: weft.grad(lambda y: getattr(weft, name)(y).sum())(x).sum())(weft.tensor(values))
    np.testing.assert_allclose(ours.numpy(), second.numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.softmax(-1).square().sum(),
        lambda x: x.log_softmax(0).square().sum(),
        lambda x: (x @ x.T).square().sum(),
        lambda x: weft.nn.functional.layer_norm(x, (3,)).pow(3).sum(),
        lambda x: x.var(1).square().sum(),
        lambda x: x[1:, ::2].exp().sum(),
        lambda x: weft.cat([x, x * x]).amax(1).square().sum(),
        lambda x: x[weft.tensor([0, 0, 2])].pow(3).sum(),
    ],
)
def test_second_order_by_finite_differences(fn):
    x = weft.tensor(np.random.default_rng(0).uniform(0.5, 1.5, (3, 3)))
    assert weft.testing.gradcheck(weft.grad(fn), [x], rtol=1e-4, atol=1e-6)


def test_gradcheck_sees_a_wrong_gradient():
    with pytest.raises(AssertionError, match="gradient of input 0"):
        weft.testing.gradcheck(lambda x: x * x.detach(), [weft.tensor([1.0, 2.0], dtype=weft.float64)])


def test_weak_tensors_take_their_partners_dtype():
    rate = weft.tensor(0.5)
    rate.weak = True
    assert (weft.ones(2, dtype=weft.float64) * rate).dtype is weft.float64
    assert (weft.arange(2) * rate).dtype is weft.float32
    assert (1 - rate).weak
    assert not (weft.ones(2) * rate).weak


def test_in_place_rebinds_one_tensor_only():
    x = weft.ones(2)
    y = x
    z = x + 0
    x += 1
    assert (x.tolist(), y.tolist(), z.tolist()) == ([2.0, 2.0], [2.0, 2.0], [1.0, 1.0])
    x[0] += 5
    assert x.tolist() == [7.0, 2.0]


def test_in_place_takes_part_in_gradients():
    x = leaf(2.0, 3.0)
    y = weft.zeros(2)
    y += x * x
    y[0] = 1.0
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 6.0]


def test_long_chains_are_cut():
    x = weft.zeros(1)
    for _ in range(5000):
        x = x + 1
    assert x.item() == 5000.0
