"""`weft.compile`: gradients that stay behind, optimizers, and random numbers."""

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F
from tests.backend.compiling import full, numbers, ones, parameter

pytestmark = pytest.mark.usefixtures("on_each_device")


# ---- gradients ------------------------------------------------------------------------------------------------------


def loss_of(w, x):
    return ((w * x).tanh() ** 2).sum()


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_a_gradient_that_stays_behind(place):
    w, theirs = parameter(5), torch.tensor(numbers(5), requires_grad=True)

    @weft.compile
    def step(x):
        if place == "inside":
            w.grad = None
        loss = loss_of(w, x)
        loss.backward()
        return loss

    traces = weft.counters()["traces"]
    for iteration in range(4):
        x = numbers(5, seed=iteration + 1)
        if place == "outside":
            w.grad = None
        theirs.grad = None
        loss_of(theirs, torch.tensor(x)).backward()
        step(weft.tensor(x))
        np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert weft.counters()["traces"] - traces <= 2


@pytest.mark.parametrize("read", [True, False], ids=["read between", "not read"])
def test_gradients_accumulate_over_compiled_calls(read):
    w, theirs = parameter(5), torch.tensor(numbers(5), requires_grad=True)

    @weft.compile
    def accumulate(x):
        loss = loss_of(w, x)
        loss.backward()
        return loss

    traces = weft.counters()["traces"]
    for _round in range(3):
        w.grad = theirs.grad = None
        for iteration in range(4):
            x = numbers(5, seed=iteration + 1)
            loss_of(theirs, torch.tensor(x)).backward()
            accumulate(weft.tensor(x))
            if read or iteration == 3:
                np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert weft.counters()["traces"] - traces == 2  # with a gradient and without


def test_a_gradient_made_eagerly_is_added_to():
    w, theirs = parameter(5), torch.tensor(numbers(5), requires_grad=True)

    @weft.compile
    def accumulate(x):
        loss_of(w, x).backward()

    for iteration in range(4):
        x = numbers(5, seed=iteration + 1)
        loss_of(theirs, torch.tensor(x)).backward()
        if iteration % 2:
            accumulate(weft.tensor(x))
        else:
            loss_of(w, weft.tensor(x)).backward()
        np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_zeroing_in_place_keeps_the_gradient_tensor():
    w = parameter(3)

    @weft.compile
    def step(x):
        w.grad.zero_()
        (w * x).sum().backward()

    w.grad = ones(3)
    for iteration in range(3):
        step(full((3,), float(iteration)))
        assert w.grad.tolist() == [iteration] * 3


def test_a_gradient_retained_from_an_earlier_replay_keeps_its_value():
    w = parameter(2)

    @weft.compile
    def step(x):
        w.grad = None
        (w * x).sum().backward()

    step(ones(2))
    kept = w.grad.clone()
    step(full((2,), 2.0))
    assert kept.tolist() == [1.0, 1.0]
    assert w.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "change", [lambda w: (w * 5.0).sum().backward(), lambda w: w.grad.zero_()], ids=["added to", "zeroed"]
)
def test_a_kept_gradient_changed_eagerly(change):
    w = parameter(3)

    @weft.compile
    def step(x):
        w.grad = None
        (w * x).sum().backward()

    for iteration in range(3):
        step(full((3,), float(iteration)))
        assert w.grad.tolist() == [iteration] * 3
        change(w)
        assert w.grad.tolist() != [iteration] * 3 or iteration == 0


def test_a_gradient_replaced_by_another_tensor():
    w = weft.zeros(2, requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0)
    update = weft.compile(optimizer.step)
    expected, traces = 0.0, weft.counters()["traces"]
    for value in (1.0, 5.0, 2.0, 3.0):
        w.grad = given = full((2,), value)
        update()
        expected -= value
        assert w.tolist() == [expected] * 2
        assert given.tolist() == w.grad.tolist() == [value] * 2
    assert weft.counters()["traces"] - traces <= 2


@pytest.mark.parametrize("clear", [True, False], ids=["cleared inside", "accumulated"])
def test_a_gradient_replaced_between_replays(clear):
    w = parameter(3)

    @weft.compile
    def step(x):
        if clear:
            w.grad = None
        (w * x).sum().backward()

    x = weft.tensor([2.0, 2.0, 2.0])
    for _ in range(3):
        step(x)
    for value in (9.0, 7.0):
        w.grad = full((3,), value)
        step(x)
        assert w.grad.tolist() == [2.0 if clear else value + 2.0] * 3


def test_a_gradient_that_appears_later():
    """The first plan saw only that there was none."""
    a, b = weft.zeros(2, requires_grad=True), weft.zeros(2, requires_grad=True)
    update = weft.compile(weft.optim.SGD([a, b], lr=1.0).step)
    b.grad = ones(2)
    for _ in range(3):
        update()
    a.grad = ones(2)
    update()
    assert (a.tolist(), b.tolist()) == ([-1.0, -1.0], [-4.0, -4.0])


def test_gradients_of_one_function_updated_by_another():
    """Two batch sizes are two plans, each of which leaves gradients behind; the update must see the last ones."""
    w = weft.zeros(3, requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0)
    update = weft.compile(optimizer.step)

    @weft.compile
    def backward(x):
        optimizer.zero_grad()
        (w * x).sum().backward()

    expected = 0.0
    for rows in (4, 4, 2, 4, 2, 2):
        backward(ones(rows, 3))
        update()
        expected -= rows
        assert w.tolist() == [expected] * 3


def test_clearing_inside_leaves_none_behind():
    w = parameter(2)

    @weft.compile
    def step(x):
        loss = (w * x).sum()
        loss.backward()
        w.grad = None
        return loss

    for _ in range(3):
        step(ones(2))
        assert w.grad is None


def test_eager_and_compiled_steps_alternate():
    """The same parameters and optimizer, one step compiled, the next not."""
    w, b = parameter(4, 3), parameter(4, seed=1)
    theirs = [torch.tensor(t.numpy(), requires_grad=True) for t in (w, b)]
    optimizer, torch_optimizer = weft.optim.Adam([w, b], lr=0.1), torch.optim.Adam(theirs, lr=0.1)

    def eager(x):
        optimizer.zero_grad()
        loss = F.linear(x, w, b).tanh().sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = weft.compile(eager)
    for iteration in range(8):
        x = numbers(5, 3, seed=iteration)
        ours = (compiled if iteration % 3 else eager)(weft.tensor(x))
        torch_optimizer.zero_grad()
        loss = torch.nn.functional.linear(torch.tensor(x), *theirs).tanh().sum()
        loss.backward()
        torch_optimizer.step()
        np.testing.assert_allclose(ours.item(), loss.item(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(w.numpy(), theirs[0].detach().numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_of_functions_inside():
    cube = weft.compile(weft.grad(weft.grad(lambda x: x**3)))
    for value in (2.0, 3.0):
        np.testing.assert_allclose(cube(weft.tensor(value)).item(), 6 * value, rtol=1e-6)


def test_the_learning_rate_changes_without_a_retrace():
    w = weft.zeros(2, requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0)

    @weft.compile
    def step(x):
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()

    x = ones(2)
    step(x)
    assert w.tolist() == [-1.0, -1.0]
    traces, expected = weft.counters()["traces"], -1.0
    for rate in (0.5, 0.25, 2.0):
        optimizer.param_groups[0]["lr"] = rate
        step(x)
        expected -= rate
        assert w.tolist() == [expected] * 2
        step(x)
        expected -= rate
        assert w.tolist() == [expected] * 2
    assert weft.counters()["traces"] == traces


def test_hyper_parameters_that_change_the_formula_retrace():
    """Weight decay set from zero adds a term; it must not be left out."""
    w = ones(2, requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0)

    @weft.compile
    def step(x):
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()

    step(weft.zeros(2))
    assert w.tolist() == [1.0, 1.0]
    optimizer.param_groups[0]["weight_decay"] = 0.5
    step(weft.zeros(2))
    assert w.tolist() == [0.5, 0.5]
    optimizer.param_groups[0]["weight_decay"] = 0.0
    step(weft.zeros(2))
    assert w.tolist() == [0.5, 0.5]


# ---- random numbers -------------------------------------------------------------------------------------------------


def noise(x):
    return x + weft.rand(3, 5), weft.randn(7), F.dropout(x, 0.5), weft.randint(10, (4,))


def test_compiled_and_eager_draws_are_the_same_bits():
    x = ones(3, 5)
    weft.manual_seed(3)
    eager = [[part.numpy() for part in noise(x)] for _ in range(3)]
    weft.manual_seed(3)
    step = weft.compile(noise)
    for expected in eager:
        for part, other in zip(step(x), expected, strict=True):
            np.testing.assert_array_equal(part.numpy(), other)


def test_each_replay_draws_anew_and_eager_draws_continue_the_stream():
    step = weft.compile(lambda x: x + weft.rand(6))
    x = weft.zeros(6)
    weft.manual_seed(4)
    expected = [weft.rand(6).tolist() for _ in range(8)]
    weft.manual_seed(4)
    drawn = [(step(x) if iteration % 3 else weft.rand(6)).tolist() for iteration in range(8)]
    assert drawn == expected
    assert len(set(map(tuple, drawn))) == 8


def test_two_compiled_functions_share_one_stream():
    one, two = weft.compile(lambda x: x + weft.rand(4)), weft.compile(lambda x: x + weft.rand(4) + weft.rand(4))
    x = weft.zeros(4)
    weft.manual_seed(5)
    singles = [weft.rand(4).numpy() for _ in range(9)]
    weft.manual_seed(5)
    for iteration in range(3):
        a, b, c = singles[3 * iteration : 3 * iteration + 3]
        np.testing.assert_array_equal(one(x).numpy(), a)
        np.testing.assert_array_equal(two(x).numpy(), b + c)


def test_seeding_between_replays_and_resuming():
    step = weft.compile(lambda x: x + weft.rand(4))
    x = weft.zeros(4)
    weft.manual_seed(6)
    first = step(x).tolist()
    state = weft.default_generator.get_state()
    second, third = step(x).tolist(), step(x).tolist()
    weft.default_generator.set_state(state)
    assert [step(x).tolist(), step(x).tolist()] == [second, third]
    weft.manual_seed(6)
    assert step(x).tolist() == first
    weft.manual_seed(7)
    assert step(x).tolist() != first


def test_generators_are_apart():
    one, two = weft.Generator(1), weft.Generator(2)
    step = weft.compile(lambda x: (x + weft.rand(3, generator=one), x + weft.rand(3, generator=two)))
    x = weft.zeros(3)
    expected = [[weft.rand(3, generator=g).tolist() for _ in range(3)] for g in (one, two)]
    one.manual_seed(1), two.manual_seed(2)
    drawn = [[part.tolist() for part in step(x)] for _ in range(3)]
    assert [list(pair) for pair in zip(*drawn, strict=True)] == expected


def test_a_dropout_mask_is_one_in_forward_and_backward():
    w = ones(40, 30, requires_grad=True)

    @weft.compile
    def step():
        w.grad = None
        y = F.dropout(w, 0.3)
        y.sum().backward()
        return y

    masks = []
    for _ in range(3):
        y = step().numpy()
        assert 0.15 < (y == 0).mean() < 0.45
        np.testing.assert_array_equal(w.grad.numpy(), y)
        masks.append(y)
    assert (masks[0] != masks[1]).any() and (masks[1] != masks[2]).any()
