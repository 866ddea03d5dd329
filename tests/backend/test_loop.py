"""`weft.loop`: recurrences against torch and NumPy, and their gradients. Their plans: test_loop_plans.py."""

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F
from tests.backend.compiling import numbers
from tests.backend.recurrent import KINDS, SIZES, recurrent

pytestmark = pytest.mark.usefixtures("on_each_device")


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers_and_their_gradients_are_torchs(kind, size):
    time, batch, width, hidden = size
    torch.manual_seed(0)
    theirs = KINDS[kind](width, hidden)
    x = numbers(time, batch, width)
    their_x, our_x = torch.tensor(x, requires_grad=True), weft.tensor(x, requires_grad=True)
    expected, last = theirs(their_x)
    last = last[0] if kind == "lstm" else last
    (expected.square().sum() + last.sin().sum()).backward()
    leaves, ys, h = recurrent(kind, theirs, our_x)
    (ys.square().sum() + h.sin().sum()).backward()
    np.testing.assert_allclose(ys.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h.numpy(), last[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(our_x.grad.numpy(), their_x.grad.numpy(), rtol=1e-4, atol=1e-5)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(leaves[name].grad.numpy(), parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_sequences_of_different_lengths_by_masks():
    time, batch, width, hidden = 7, 4, 5, 6
    lengths = np.array([7, 1, 4, 5])
    theirs = torch.nn.LSTM(width, hidden)
    x = numbers(time, batch, width)
    their_x, our_x = torch.tensor(x, requires_grad=True), weft.tensor(x, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(their_x, lengths, enforce_sorted=False)
    out, (last, _) = theirs(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(out)
    (expected.square().sum() + last.sum()).backward()
    leaves, ys, h = recurrent("lstm", theirs, our_x, weft.tensor(lengths))
    (ys.square().sum() + h.sum()).backward()
    np.testing.assert_allclose(ys.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h.numpy(), last[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(our_x.grad.numpy(), their_x.grad.numpy(), rtol=1e-4, atol=1e-5)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(leaves[name].grad.numpy(), parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_both_directions():
    theirs = torch.nn.GRU(4, 6, bidirectional=True)
    x = numbers(5, 3, 4)
    expected, _ = theirs(torch.tensor(x))
    expected.square().sum().backward()
    ahead, ys, _ = recurrent("gru", theirs, weft.tensor(x))
    back, zs, _ = recurrent("gru", theirs, weft.tensor(x), suffix="_l0_reverse", reverse=True)
    both = weft.cat([ys, zs], 2)
    both.square().sum().backward()
    np.testing.assert_allclose(both.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    for name, parameter in theirs.named_parameters():
        leaf = (back if name.endswith("reverse") else ahead)[name]
        np.testing.assert_allclose(leaf.grad.numpy(), parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


# ---- any state ------------------------------------------------------------------------------------------------------


def test_fibonacci_and_no_inputs():
    (a, b), seen = weft.loop(lambda s, _: ((s[1], s[0] + s[1]), s[0]), (weft.tensor(0), weft.tensor(1)), length=10)
    assert (a.item(), b.item()) == (55, 89)
    assert seen.tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


def test_states_of_mixed_dtypes_and_structures():
    x = numbers(6, 3)

    def step(state, now):
        high = weft.maximum(state["high"], now["x"])
        grew = now["x"] > state["high"]
        return {"high": high, "count": state["count"] + grew.long(), "any": state["any"] | grew}, (high, [grew])

    init = {"high": weft.tensor(x[0]), "count": weft.zeros(3, dtype=weft.int64), "any": weft.zeros(3, dtype=weft.bool)}
    state, (highs, [grew]) = weft.loop(step, init, {"x": weft.tensor(x)})
    expected = np.maximum.accumulate(x)
    rose = np.diff(expected, axis=0, prepend=x[:1]) > 0
    np.testing.assert_array_equal(highs.numpy(), expected)
    np.testing.assert_array_equal(grew.numpy(), rose)
    np.testing.assert_array_equal(state["count"].numpy(), rose.sum(0))
    np.testing.assert_array_equal(state["any"].numpy(), rose.any(0))


def test_the_keys_of_a_state_may_come_in_another_order():
    init = {"a": weft.zeros(2), "b": weft.ones(2)}
    state, _ = weft.loop(lambda s, _: ({"b": s["b"] * 2, "a": s["a"] + 1}, None), init, length=3)
    assert list(state) == ["a", "b"] and state["a"].tolist() == [3.0, 3.0] and state["b"].tolist() == [8.0, 8.0]


def test_a_constant_that_is_used_very_often():
    w = weft.tensor([0.5, 1.0], requires_grad=True)

    def step(s, _):
        for _ in range(1100):
            s = s + w * 0.001
        return s, None

    weft.loop(step, weft.zeros(2), length=2)[0].sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [2.2, 2.2], rtol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sums_and_products(reverse):
    x = numbers(8, 5) + 1.5
    reversed_x = x[::-1] if reverse else x
    (total, product), (sums, before, products) = weft.loop(
        lambda s, x: ((s[0] + x, s[1] * x), (s[0] + x, s[0], s[1] * x)), (weft.zeros(5), weft.ones(5)),
        weft.tensor(x), reverse=reverse,
    )  # fmt: skip
    expected = np.cumsum(reversed_x, 0)
    behind = np.concatenate([np.zeros((1, 5)), expected[:-1]])
    direction = slice(None, None, -1) if reverse else slice(None)
    np.testing.assert_allclose(sums.numpy(), expected[direction], rtol=1e-6)
    np.testing.assert_allclose(before.numpy(), behind[direction], rtol=1e-6)
    np.testing.assert_allclose(products.numpy(), np.cumprod(reversed_x, 0)[direction], rtol=1e-5)
    np.testing.assert_allclose(total.numpy(), expected[-1], rtol=1e-6)
    np.testing.assert_allclose(product.numpy(), np.prod(reversed_x, 0), rtol=1e-5)


def test_values_that_pass_through():
    """Inputs, constants and old states as results; states that change places."""
    x, w = weft.tensor(numbers(4, 3)), weft.tensor(numbers(3, seed=1))
    (a, b), (xs, ws, olds, ones) = weft.loop(
        lambda s, x: ((s[1], s[0]), (x, w, s[0], weft.ones(2))), (weft.zeros(3), weft.ones(3)), x
    )
    np.testing.assert_array_equal(xs.numpy(), x.numpy())
    np.testing.assert_array_equal(ws.numpy(), np.tile(w.numpy(), (4, 1)))
    np.testing.assert_array_equal(olds.numpy(), np.tile(np.array([[0.0], [1.0]]), (2, 3)))
    np.testing.assert_array_equal(ones.numpy(), np.ones((4, 2)))
    assert a.tolist() == [0, 0, 0] and b.tolist() == [1, 1, 1]


def test_one_new_value_for_two_states_and_twice_among_the_results():
    x = weft.tensor(numbers(4, 3))
    (a, b), (p, q) = weft.loop(
        lambda s, x: ((s[0] + s[1] + x,) * 2, (s[0] + s[1] + x, (s[0] + s[1] + x).reshape(3, 1))),
        (weft.zeros(3), weft.zeros(3)), x,
    )  # fmt: skip
    expected, state = [], np.zeros(3, np.float32)
    for row in x.numpy():
        state = state + state + row
        expected.append(state)
    np.testing.assert_array_equal(p.numpy(), np.stack(expected))
    np.testing.assert_array_equal(q.numpy()[..., 0], np.stack(expected))
    np.testing.assert_array_equal(a.numpy(), expected[-1])
    np.testing.assert_array_equal(b.numpy(), expected[-1])


def test_parts_of_a_concatenation_as_states():
    x = weft.tensor(numbers(5, 2))

    def step(state, x):
        a, b = state
        both = weft.cat([a + x, b * x])
        return (a + x, b * x), both

    (a, b), both = weft.loop(step, (weft.zeros(2), weft.ones(2)), x)
    np.testing.assert_allclose(both.numpy()[:, :2], np.cumsum(x.numpy(), 0), rtol=1e-6)
    np.testing.assert_allclose(both.numpy()[:, 2:], np.cumprod(x.numpy(), 0), rtol=1e-5)
    np.testing.assert_array_equal(both.numpy()[-1], np.concatenate([a.numpy(), b.numpy()]))


def test_length_zero():
    init = weft.tensor([1.0, 2.0])
    state, ys = weft.loop(lambda s, x: (s + x, (s * 2, None)), init, weft.zeros(0, 2))
    assert state.tolist() == [1.0, 2.0] and ys[0].shape == (0, 2) and ys[1] is None


def test_zero_sized_states_and_inputs():
    (empty, total), ys = weft.loop(
        lambda s, x: ((s[0] + x, s[1] + 1), s[0]), (weft.zeros(0, 3), weft.zeros(())), weft.zeros(4, 0, 3)
    )
    assert empty.shape == (0, 3) and ys.shape == (4, 0, 3) and total.item() == 4


# ---- gradients ------------------------------------------------------------------------------------------------------


def power(x, w):
    """x, after each of three iterations: sin(x * w) + x."""
    return weft.loop(lambda s, _: ((s * w).sin() + s, s), x, length=3)


def unrolled(x, w, sin):
    seen = []
    for _ in range(3):
        seen.append(x)
        x = sin(x * w) + x
    return x, seen


def test_second_derivatives():
    x, w = numbers(4), numbers(4, seed=1)
    their_x, their_w = (torch.tensor(v, requires_grad=True) for v in (x, w))
    last, seen = unrolled(their_x, their_w, torch.sin)
    first = torch.autograd.grad(last.sum() + (seen[1] ** 2).sum(), their_w, create_graph=True)[0]
    expected = torch.autograd.grad((first**2).sum(), (their_x, their_w))

    def value(x, w):
        last, seen = power(x, w)
        return last.sum() + (seen[1] ** 2).sum()

    def squared(x, w):
        return (weft.grad(value, 1)(x, w) ** 2).sum()

    ours = weft.grad(squared, (0, 1))(weft.tensor(x), weft.tensor(w))
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def test_loops_in_loops():
    """Powers of matrices: the inner loop multiplies, the outer one counts how many."""
    a = numbers(3, 3)

    def inner(m, _):
        return m @ weights, m.sum()

    def outer(total, scale):
        m, sums = weft.loop(inner, weft.eye(3) * scale, length=3)
        return total + m, sums.sum()

    weights = weft.tensor(a, requires_grad=True)
    scales = weft.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    total, sums = weft.loop(outer, weft.zeros(3, 3), scales)
    ((total * total).sum() + (sums * sums).sum()).backward()
    their_w, their_s = torch.tensor(a, requires_grad=True), torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    all_sums, expected = [], torch.zeros(3, 3)
    for k in range(4):
        m, one = torch.eye(3) * their_s[k], 0.0
        for _ in range(3):
            one = one + m.sum()
            m = m @ their_w
        expected = expected + m
        all_sums.append(one)
    ((expected * expected).sum() + (torch.stack(all_sums) ** 2).sum()).backward()
    np.testing.assert_allclose(total.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums.numpy(), [one.item() for one in all_sums], rtol=1e-5)
    np.testing.assert_allclose(weights.grad.numpy(), their_w.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scales.grad.numpy(), their_s.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_constants_of_every_kind_get_gradients():
    """Weights by product, bias by broadcasting, a table by index, a gain by element, and one that is sliced."""
    shapes = {"w": (4, 4), "bias": (4,), "table": (5, 4), "gain": (3, 4), "both": (2, 3, 4)}
    values = {name: numbers(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}
    index = np.array([[0, 2, 2], [4, 0, 1]])

    def step(p, h, i, tanh):
        h = tanh(h @ p["w"] + p["bias"] + p["table"][i])
        return h * p["gain"] + p["both"][0] - p["both"][1] * h

    ours = {name: weft.tensor(value, requires_grad=True) for name, value in values.items()}
    theirs = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    last, _ = weft.loop(lambda h, i: (step(ours, h, i, weft.tanh), None), weft.zeros(3, 4), weft.tensor(index))
    (last * last).sum().backward()
    h = torch.zeros(3, 4)
    for i in index:
        h = step(theirs, h, torch.tensor(i), torch.tanh)
    (h * h).sum().backward()
    for name in shapes:
        np.testing.assert_allclose(ours[name].grad.numpy(), theirs[name].grad.numpy(), rtol=1e-4, atol=1e-5)


def test_gradients_stop_where_they_are_reported():
    x = weft.tensor(numbers(3, 2), requires_grad=True)
    w = weft.tensor(numbers(2, seed=1), requires_grad=True)
    last, _ = weft.loop(lambda s, x: (s + x.detach() * w, None), weft.zeros(2), x)
    assert last.requires_grad
    last.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), x.detach().numpy().sum(0), rtol=1e-5, atol=1e-6)
    with weft.no_grad():
        assert not weft.loop(lambda s, x: (s + x * w, None), weft.zeros(2), x)[0].requires_grad
    assert not weft.loop(lambda s, x: (s + x, None), weft.zeros(2), x.detach())[0].requires_grad


def test_checkpoints_around_and_inside():
    w = weft.tensor(numbers(3, 3), requires_grad=True)
    x = weft.tensor(numbers(4, 2, 3, seed=1))

    def step(h, x):
        return (h @ w + x).tanh(), h.exp()

    def value(inside, around):
        def run(x):
            iteration = (lambda h, x: weft.checkpoint(step, h, x)) if inside else step
            last, seen = weft.loop(iteration, weft.zeros(2, 3), x)
            return last.sum() + seen.square().sum()

        w.grad = None
        loss = weft.checkpoint(run, x) if around else run(x)
        loss.backward()
        return loss.item(), w.grad.numpy()

    plain = value(False, False)
    for inside, around in ((True, False), (False, True), (True, True)):
        loss, grad = value(inside, around)
        np.testing.assert_allclose(loss, plain[0], rtol=1e-6)
        np.testing.assert_allclose(grad, plain[1], rtol=1e-5, atol=1e-6)


class Clipped(weft.autograd.Function):
    """x, whose gradient is clipped and scaled by what was saved."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        (scale,) = ctx.saved_tensors
        return g.clamp(-0.5, 0.5) * scale, None


def test_gradients_that_users_write_inside():
    x, scales = numbers(3, 4), np.array([1.0, 2.0, 3.0], np.float32)
    for how in (lambda function: function, weft.compile):
        leaf = weft.tensor(x, requires_grad=True)

        def run(scales, leaf=leaf):
            def step(s, now):
                x, scale = now
                return Clipped.apply(s + x, scale), None

            last, _ = weft.loop(step, weft.zeros(4), (leaf, scales))
            (last * 4.0).sum().backward()
            return last

        how(run)(weft.tensor(scales))
        g, expected = np.full(4, 4.0), []
        for scale in scales[::-1]:
            g = np.clip(g, -0.5, 0.5) * scale
            expected.append(g)
        np.testing.assert_allclose(leaf.grad.numpy(), np.stack(expected[::-1]), rtol=1e-6)


def test_any_operation_inside():
    """Kernels of every form in a body, against a Python loop over the same operations."""
    q = weft.tensor(numbers(3, 2, 4, 8), requires_grad=True)
    w = weft.tensor(numbers(4, 4, 3, seed=1), requires_grad=True)
    index = weft.tensor(np.array([2, 0, 1, 1]))

    def step(s, x):
        y = F.scaled_dot_product_attention(s, x, x, is_causal=True)
        y = y + F.conv1d(y, w, padding=1)
        y = y.cumsum(-1) * 0.1 + y.sort(-1).values + F.softmax(y, -1)[:, index]
        return (y - y.mean((0, 2), keepdim=True)).tanh(), y.amax(-1)

    results = []
    for loop in (weft.loop, python_loop):
        q.grad = w.grad = None
        last, ys = loop(step, weft.ones(2, 4, 8), q)
        ((last * last).sum() + ys.sum()).backward()
        results.append([last.numpy(), ys.numpy(), q.grad.numpy(), w.grad.numpy()])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def python_loop(step, state, xs):
    ys = []
    for x in xs:
        state, y = step(state, x)
        ys.append(y)
    return state, weft.stack(ys)


def test_16_bit_floats():
    x = weft.tensor(numbers(5, 4)).to(weft.bfloat16)
    results = []
    for loop in (weft.loop, python_loop):
        w = weft.tensor(numbers(4, 4, seed=1)).to(weft.bfloat16).requires_grad_()
        last, ys = loop(lambda s, x, w=w: ((s @ w + x).tanh(), s * x), weft.ones(2, 4, dtype=weft.bfloat16), x)
        (last.sum() + ys.sum()).backward()
        results.append([value.float().numpy() for value in (last, ys, w.grad)])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    np.testing.assert_allclose(results[0][2], results[1][2], rtol=0.05, atol=0.05)


# ---- random numbers -------------------------------------------------------------------------------------------------


def test_draws_differ_between_iterations_and_are_the_same_compiled():
    def both():
        _, (a, b) = weft.loop(lambda s, _: (s, (weft.rand(4), weft.randn(4))), weft.zeros(1), length=5)
        return a, b, weft.rand(4)

    weft.manual_seed(3)
    eager = [value.numpy() for value in both()]
    assert len(np.unique(eager[0])) == 20 and len(np.unique(eager[1])) == 20
    weft.manual_seed(3)
    compiled = weft.compile(both)
    for a, b in zip(eager, compiled(), strict=True):
        np.testing.assert_array_equal(a, b.numpy())
    assert not np.array_equal(compiled()[0].numpy(), eager[0])


def test_dropout_inside_is_the_same_going_back():
    x = weft.ones(6, 50, requires_grad=True)
    _, ys = weft.loop(lambda s, x: (s, F.dropout(x, 0.5) * x), weft.zeros(1), x)
    ys.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * ys.numpy())
    assert 0.3 < (ys.numpy() == 0).mean() < 0.7
