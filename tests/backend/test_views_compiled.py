"""Views in compiled functions."""

import numpy as np
import pytest
import torch

import weft
from tests.backend.test_views import both, leaf


def test_views_made_outside_and_written_inside():
    a = weft.zeros(2, 3)
    row, column, other = a[0], a[:, 1], a.T

    @weft.compile
    def step(x):
        row.add_(x)
        column.mul_(2.0)
        made = a[1]
        made += row
        return other.sum(), row + 0

    model = np.zeros((2, 3))
    for iteration in range(5):
        model[0] += iteration
        model[:, 1] *= 2
        model[1] += model[0]
        total, found = step(weft.full((3,), float(iteration)))
        assert total.item() == model.sum() and found.tolist() == model[0].tolist()
        if iteration % 2:
            assert row.tolist() == model[0].tolist() and other.tolist() == model.T.tolist()
        if iteration == 2:  # from outside, through the base and through a view
            a += 1
            column -= 3
            model += 1
            model[:, 1] -= 3
    assert a.tolist() == model.tolist()
    assert len(step.retraces) == 0


def test_a_view_as_an_argument_is_never_stale():
    a = weft.zeros(4)
    view = a[1:3]
    step = weft.compile(lambda x: x * 2.0)
    for iteration in range(4):
        a += 1
        assert step(view).tolist() == [2.0 * (iteration + 1)] * 2


def test_a_retained_view_of_a_captured_tensor_makes_no_copy_of_it():
    a = weft.zeros(1000)
    step = weft.compile(lambda: a.add_(1.0).sum())
    step()
    view = a[:2]
    place = a._buffer
    for iteration in range(2, 5):
        assert view.tolist() == [iteration - 1.0] * 2
        step()
        assert view._node.op == "input"  # nothing of the memory that was rewritten is held
    assert a._buffer is place and view.tolist() == [4.0] * 2


def test_gradients_of_views_in_compiled_functions():
    w = leaf(1.0, 2.0, 3.0)
    tail, grads = w[1:], []
    optimizer = weft.optim.SGD([w], lr=0.5)

    @weft.compile
    def step():
        optimizer.zero_grad()
        y = w * 1.0
        y[:1] += tail[:1]
        loss = (y * y).sum() + (tail * 2).sum()
        loss.backward()
        optimizer.step()
        return loss

    theirs = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    their_optimizer = torch.optim.SGD([theirs], lr=0.5)
    for _ in range(4):
        their_optimizer.zero_grad()
        y = theirs * 1.0
        their_tail = theirs[1:]
        y[:1] += their_tail[:1]
        loss = (y * y).sum() + (their_tail * 2).sum()
        loss.backward()
        their_optimizer.step()
        assert step().item() == pytest.approx(loss.item())
        grads.append(w.grad[1:])
        np.testing.assert_allclose(tail.tolist(), theirs[1:].tolist(), rtol=1e-6)
        np.testing.assert_allclose(grads[0].tolist(), theirs.grad[1:].tolist(), rtol=1e-6)


def test_views_that_are_returned_are_values():
    a = weft.zeros(3)

    @weft.compile
    def step():
        a.add_(1.0)
        made = a * 2.0
        return a[1:], made.view(3, 1), made

    first = step()
    first[0].fill_(50.0)
    first[1][0] = 9.0
    assert (a.tolist(), first[2].tolist()) == ([1.0] * 3, [2.0] * 3)
    second = step()
    assert (second[0].tolist(), first[0].tolist()) == ([2.0, 2.0], [50.0, 50.0])


def test_results_that_were_written_are_not_handed_out_again():
    step = weft.compile(lambda x: x * 2.0)
    x = weft.ones(3)
    for change in (lambda r: r.fill_(0.0), lambda r: r[:1].fill_(5.0), lambda r: r.requires_grad_()):
        result = step(x)
        change(result)
        result.numpy()
        del result
        assert step(x).tolist() == [2.0] * 3 and not step(x).requires_grad


def test_views_in_loops():
    table = weft.arange(6).reshape(2, 3).float()
    row = table[1]
    table += 1

    def iteration(state, x):
        state = state + 0
        state[:2] += x
        part = state[1:]
        part *= row[:2]
        return state, state.sum()

    last, sums = weft.loop(iteration, weft.ones(3), weft.tensor([1.0, 2.0]))
    state, expected = np.ones(3), []
    for x in (1.0, 2.0):
        state[:2] += x
        state[1:] *= [4.0, 5.0]
        expected.append(state.sum())
    assert (last.tolist(), sums.tolist()) == (state.tolist(), expected)
    with pytest.raises(weft.GraphError, match="an assignment to a tensor from outside"):
        weft.loop(lambda s, x: (s, row.add_(1.0)), weft.ones(3), weft.ones(2))


def test_snapshots_do_not_change():
    a = weft.arange(1000).float()
    array, copied = a[2:].numpy(), weft.asarray(a, copy=True)
    shared, new = weft.asarray(a), weft.tensor(a)
    a[5] = -1
    assert array[3] == 5.0 and copied.tolist()[5] == new.tolist()[5] == 5.0 and shared.tolist()[5] == -1.0


def test_gradients_and_statistics_written_in_place_are_seen():
    w = leaf(1.0, 2.0)
    (w * 3).sum().backward()
    half = w.grad[1:]
    (w * 3).sum().backward()
    assert half.tolist() == [6.0]
    weft.optim.clip_grad_value_([w], 1.0)
    assert half.tolist() == [1.0]
    half.zero_()
    assert w.grad.tolist() == [1.0, 0.0]


def test_a_view_that_was_not_read_since_its_base_got_a_history():
    """Inside weft.compile it is known to require grad, and its own node stays one from outside."""
    x, base = leaf(1.0, 2.0), weft.zeros(3)
    tail = base[1:]
    base[:2] = x * 3

    @weft.compile
    def step(scale: float):
        assert tail.requires_grad
        return (tail * scale).sum()

    assert step(2.0).item() == 12.0
    assert tail.tolist() == [6.0, 0.0]
    (tail * 5).sum().backward()
    assert x.grad.tolist() == [0.0, 15.0]


def test_a_captured_view_that_becomes_a_leaf():
    base = weft.ones(4)
    part = base[1:3]

    @weft.compile
    def step():
        loss = (part * 3.0).sum()
        if part.requires_grad:
            loss.backward()
        return loss

    assert step().item() == 6.0 and part.grad is None
    part.requires_grad_()
    assert step().item() == 6.0 and part.grad.tolist() == [3.0, 3.0]
    assert len(step.retraces) == 1


def test_augmented_bits():
    theirs, ours = both("int64")
    for a in (theirs, ours):
        row, column = a[1], a[:, 2]
        row ^= 5
        column <<= 2
        row >>= 1
    assert ours.tolist() == theirs.tolist()
