"""Eager values that a tensor retains are computed once, with whatever is realized first."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.backend.compiling import numbers
from weft.graph.node import toposort

pytestmark = pytest.mark.smoke


def computed(tensor: weft.Tensor) -> bool:
    """Whether the value of a tensor, or of what it shows, lies in memory."""
    node = tensor.node
    while node.buffer is None and node.op in ("reshape", "permute", "expand", "slice"):
        node = node.srcs[0]
    return node.buffer is not None


def layers(x: weft.Tensor, *weights: weft.Tensor) -> weft.Tensor:
    for weight in weights:
        x = (x @ weight).relu()
    return x


def test_what_a_tensor_holds_is_there_after_the_first_reader():
    x, v, w = (numbers(12, 12, seed=k) for k in range(3))
    y = layers(weft.tensor(x), weft.tensor(v), weft.tensor(w))
    total = y.sum()
    expected = np.maximum(np.maximum(x @ v, 0) @ w, 0)
    np.testing.assert_allclose(total.item(), expected.sum(), rtol=1e-5)
    assert computed(y)
    np.testing.assert_allclose(y.mean().item(), expected.mean(), rtol=1e-5)
    np.testing.assert_array_equal(y.argmax(1).numpy(), y.numpy().argmax(1))


def test_a_value_that_was_made_a_leaf_is_there_too():
    w = (weft.tensor(numbers(12, 12)) @ weft.tensor(numbers(12, 12, seed=1))).exp().requires_grad_()
    w.sum().item()
    assert computed(w)


def test_what_another_value_waits_for_is_there_too():
    """Retained by nothing but a result that was not computed yet."""
    x, w = weft.tensor(numbers(12, 12)), weft.tensor(numbers(12, 12, seed=1))
    y = x @ w
    rows, columns = y.sum(0), y.sum(1)
    product = y.node
    del y
    rows.numpy()
    assert product.buffer is not None
    np.testing.assert_allclose(columns.numpy(), (x.numpy() @ w.numpy()).sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("view", [lambda y: y.T, lambda y: y.reshape(4, 36), lambda y: y[2:5], lambda y: y.T[1:3]])
def test_below_a_view_the_value_itself_is_stored(view):
    y = view(weft.tensor(numbers(12, 12)) @ weft.tensor(numbers(12, 12, seed=1)))
    y.sum().item()
    assert computed(y)


def test_a_few_operations_are_computed_again():
    """They cost less than memory does."""
    x = weft.tensor(numbers(12, 12))
    y = x * 2.0 + 1.0
    y.sum().item()
    assert not computed(y)


def test_a_loop_that_reads_in_each_iteration_makes_few_plans():
    """Its state is stored every few iterations: else each iteration would be a longer program than the last."""
    x = weft.tensor(numbers(12, 12))
    expected = x.numpy().astype(float)
    before = weft.counters()["plans_reused"]
    for _ in range(40):
        x = x * 0.9 + 0.1
        expected = expected * 0.9 + 0.1
        np.testing.assert_allclose(x.sum().item(), expected.sum(), rtol=1e-5)
    assert weft.counters()["plans_reused"] - before >= 32


def test_a_training_loop_by_hand_is_one_plan():
    """The loss is read when the parameter, which the next iteration needs, was assigned but not computed."""
    w = weft.tensor(numbers(8, 1), requires_grad=True)
    x, y = weft.tensor(numbers(16, 8, seed=1)), weft.tensor(numbers(16, 1, seed=2))
    found, launches = w.numpy().astype(float), []
    for _ in range(12):
        before = weft.counters()
        loss = ((x @ w - y) ** 2).mean()
        loss.backward()
        with weft.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        away = x.numpy() @ found - y.numpy()
        np.testing.assert_allclose(loss.item(), (away**2).mean(), rtol=1e-4)
        found -= 0.1 * 2 / 16 * x.numpy().T @ away
        after = weft.counters()
        launches.append((after["launches"] - before["launches"], after["plans_built"] - before["plans_built"]))
    assert len(set(launches[3:])) == 1 and launches[-1][1] == 0, launches


def test_what_is_not_retained_is_not_stored():
    x, w = weft.tensor(numbers(12, 12)), weft.tensor(numbers(12, 12, seed=1))
    first = (x @ w).relu()
    second = (first @ w).relu()
    inside = weakref.ref(first.node)
    del first
    second.sum().item()
    assert computed(second) and inside().buffer is None


def test_what_lies_inside_an_operation_is_computed_again():
    """A gradient that waits holds the exponentials of a softmax, too; each of them is as large as all scores."""
    x, w = (weft.tensor(numbers(12, 12, seed=k), requires_grad=True) for k in range(2))
    scores = x @ w
    loss = F.cross_entropy(scores, weft.tensor(np.arange(12)))
    inside = [weakref.ref(node) for node in toposort([loss.node]) if node.op in ("sub", "exp_rounded")]
    loss.backward()
    loss.item()
    alive = [node for ref in inside if (node := ref()) is not None and node.shape == (12, 12)]
    assert len(alive) >= 2 and computed(scores)
    assert not [node for node in alive if node.buffer is not None]
    product = x.numpy() @ w.numpy()
    weights = np.exp(product) / np.exp(product).sum(1, keepdims=True) - np.eye(12)
    np.testing.assert_allclose(x.grad.numpy(), weights @ w.numpy().T / 12, rtol=1e-4, atol=1e-6)


def test_a_loss_that_was_read_and_used_up_holds_nothing():
    x, w = (weft.tensor(numbers(12, 12, seed=k), requires_grad=True) for k in range(2))
    loss = (x @ w).relu().square().sum()
    inside = weakref.ref(loss.node.srcs[0])
    value = loss.item()
    loss.backward()
    x.grad.numpy(), w.grad.numpy()
    assert inside() is None and loss.item() == value


def test_only_tensors_of_users_count_as_holders():
    """Cells that were assigned and not read yet are looked for among the nodes on the way."""
    elsewhere = weft.zeros(3)
    elsewhere += 1.0
    test_what_is_not_retained_is_not_stored()
    assert elsewhere.sum().item() == 3


def test_gradients_are_those_of_values_that_were_read_before():
    values = numbers(6, 12), numbers(12, 12, seed=1)

    def gradients(read: bool) -> list[bytes]:
        x, w = (weft.tensor(array, requires_grad=True) for array in values)
        y = F.softmax(x @ w, -1)
        loss = (y * y).sum()
        if read:
            loss.item()
            assert computed(y)
        loss.backward()
        return [tensor.grad.numpy().tobytes() for tensor in (x, w)]

    assert gradients(True) == gradients(False)


def test_what_a_checkpoint_covers_is_forgotten():
    x, w = weft.tensor(numbers(6, 12), requires_grad=True), weft.tensor(numbers(12, 12, seed=1), requires_grad=True)
    kept = []

    def block(x):
        kept.append(x @ w)
        return kept[-1].relu()

    weft.checkpoint(block, x).sum().item()
    assert not computed(kept[0])
