"""weft.checkpoint: the same gradients to the last bit from less memory, eager and compiled."""

import numpy as np
import pytest
import torch

import weft
from weft.nn import functional as F

pytestmark = pytest.mark.backend

WIDTH, LAYERS = 64, 16


def weights(count=LAYERS, width=WIDTH):
    rng = np.random.default_rng(0)
    return [weft.tensor(rng.normal(0, 0.2, (width, width)).astype("float32"), requires_grad=True) for _ in range(count)]


def batch(rows=32, width=WIDTH):
    return weft.tensor(np.random.default_rng(1).normal(0, 1, (rows, width)).astype("float32"))


def layers(x, ws, p=0.1):
    for w in ws:
        x = F.dropout((x @ w).tanh(), p) + x
    return x


def plainly(fn, *args):
    return fn(*args)


def gradients(call, ws, x, segment=4, compiled=False):
    """Loss and all gradients of a deep network whose segments are called by `call`."""

    def step(x):
        for w in ws:
            w.grad = None
        h = x
        for first in range(0, len(ws), segment):
            h = call(layers, h, ws[first : first + segment])
        loss = (h * h).mean()
        loss.backward()
        return loss

    weft.manual_seed(5)
    run = weft.compile(step) if compiled else step
    loss = run(x).numpy()
    return [loss, *(w.grad.numpy() for w in ws)], run


def assert_same(ones, others):
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_function_wrapped_once(compiled):
    ws, x = weights(8), batch()
    wrapped = weft.checkpoint(layers)
    assert wrapped.__name__ == "layers"
    plain, plain_run = gradients(plainly, ws, x, compiled=compiled)
    again, run = gradients(lambda _, *args: wrapped(*args), ws, x, compiled=compiled)
    assert_same(again, plain)
    if compiled:
        assert run.plan.memory().arena_bytes < plain_run.plan.memory().arena_bytes


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_have_the_bits_of_the_plain_form(compiled):
    ws, x = weights(), batch()
    assert_same(gradients(plainly, ws, x)[0], gradients(weft.checkpoint, ws, x, compiled=compiled)[0])


def test_the_arena_shrinks_to_segments():
    ws, x = weights(), batch(256)
    value = 4 * 256 * WIDTH
    plain = gradients(plainly, ws, x, compiled=True)[1].plan.memory().arena_bytes
    few = gradients(weft.checkpoint, ws, x, compiled=True)[1].plan.memory().arena_bytes
    assert plain >= 2 * LAYERS * value  # two values per layer
    assert few <= (LAYERS // 4 + 2 * 4 + 3) * value  # the inputs of segments, and one segment


def test_memory_grows_with_the_segments_not_the_layers():
    sizes = []
    for count in (16, 64):
        ws, x = weights(count), batch(128)
        sizes.append(gradients(weft.checkpoint, ws, x, int(count**0.5), compiled=True)[1].plan.memory().arena_bytes)
    assert sizes[1] <= 2.2 * sizes[0]


def test_reading_the_loss_first_keeps_no_activations():
    """What a gradient will read is kept when a loss is read; what a checkpoint covers is not among it."""
    from weft.core.realize import find_saved_for_backward

    ws, x = weights(4), batch()
    outer = weft.checkpoint(layers, x, ws).sum()
    assert [node.op for node in find_saved_for_backward([outer.node])] == ["reduce_sum"]
    del outer
    assert len(find_saved_for_backward([layers(x, ws).sum().node])) > 4
    expected, _ = gradients(plainly, ws, x)
    weft.manual_seed(5)
    for w in ws:
        w.grad = None
    h = weft.checkpoint(layers, x, ws)
    loss = (h * h).mean()
    np.testing.assert_array_equal(loss.numpy(), expected[0])
    loss.backward()
    assert_same([w.grad.numpy() for w in ws], expected[1:])


def test_a_nested_checkpoint():
    def block(x, ws):
        return weft.checkpoint(layers, weft.checkpoint(layers, x, ws[:4]), ws[4:])

    def nested(fn, h, ws):
        return weft.checkpoint(block, h, ws)

    ws, x = weights(), batch(128)
    expected, _ = gradients(plainly, ws, x, 8)
    assert_same(gradients(nested, ws, x, 8)[0], expected)
    found, run = gradients(nested, ws, x, 8, compiled=True)
    assert_same(found, expected)
    flat = gradients(weft.checkpoint, ws, x, 8, compiled=True)[1]
    assert run.plan.memory().arena_bytes < flat.plan.memory().arena_bytes


def test_parameters_of_a_closure_several_outputs_and_plain_arguments():
    def both(fn):
        w = weft.tensor(np.linspace(-1, 1, 9, dtype="float32").reshape(3, 3), requires_grad=True)
        x = weft.tensor(np.arange(6, dtype="float32").reshape(2, 3), requires_grad=True)

        def body(x, *, power, index, name):
            assert name == "a name"
            h = (x @ w).sin()
            return {"h": h**power, "rows": (h[index], x.detach(), h.argmax(1)), "number": 7}

        out = fn(body, x, power=3, index=weft.tensor([1, 1, 0]), name="a name")
        assert out["number"] == 7 and not out["rows"][1].requires_grad
        (out["h"].sum() + (out["rows"][0] * 2).exp().sum() + x.sum()).backward()
        return [w.grad.numpy(), x.grad.numpy(), out["rows"][2].numpy()]

    assert_same(both(lambda fn, *args, **kwargs: fn(*args, **kwargs)), both(weft.checkpoint))


def test_an_output_nobody_uses_and_an_input_that_is_returned():
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    same, y, _unused = weft.checkpoint(lambda x: (x, x * x, x.exp()), x)
    assert same is x
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert not weft.checkpoint(lambda x: x * 2, weft.ones(2)).requires_grad
    with weft.no_grad():
        assert not weft.checkpoint(lambda x: x * 2, x).requires_grad


def test_what_came_before_is_not_computed_again():
    """A closure over an intermediate value reads it; only what `fn` did is done again."""
    w = weights(2)

    @weft.compile
    def step(x):
        early = (x @ w[0]).tanh()
        h = weft.checkpoint(lambda y: (y @ w[1]).tanh() * early, x)
        (h * h).sum().backward()
        return h

    step(batch(256))
    products = [kernel.name for kernel in step.plan.kernels() if kernel.name.startswith("gemm")]
    assert len(products) == 5, products  # two forward, one again, two for the gradients of the weights


def test_second_derivatives_pass():
    def grads(fn):
        x = weft.tensor([0.3, -0.7], requires_grad=True)
        return weft.grad(lambda x: weft.grad(lambda y: fn(lambda z: (z.sin() * z).sum(), y))(x).square().sum())(x)

    plain = grads(lambda fn, y: fn(y))
    np.testing.assert_allclose(grads(weft.checkpoint).numpy(), plain.numpy(), rtol=1e-6)
    theirs = torch.tensor([0.3, -0.7], requires_grad=True)
    (first,) = torch.autograd.grad((theirs.sin() * theirs).sum(), theirs, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), theirs)
    np.testing.assert_allclose(plain.numpy(), second.numpy(), rtol=1e-5)


def test_an_update_in_place_waits_for_the_second_pass():
    """The weights are read again by the recomputation, so they may not be overwritten before."""

    def train(call):
        ws, x = weights(8), batch()
        optimizer = weft.optim.SGD(ws, lr=0.1)

        @weft.compile
        def step(x):
            optimizer.zero_grad()
            h = call(layers, call(layers, x, ws[:4], 0.0), ws[4:], 0.0)
            loss = (h * h).mean()
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(3):
            step(x)
        return [w.numpy() for w in ws]

    assert_same(train(plainly), train(weft.checkpoint))


def test_on_the_reference_device():
    with weft.device("reference"):
        ws, x = weights(4), batch()
        assert_same(gradients(plainly, ws, x, 2)[0], gradients(weft.checkpoint, ws, x, 2)[0])


def test_what_is_refused():
    with pytest.raises(weft.GraphError, match="checkpoint: given a Tensor; expected a function"):
        weft.checkpoint(weft.ones(2))
