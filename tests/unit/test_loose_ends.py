"""Corners where gradients and errors are easily wrong: zeros of a product, labels out of range, ends of a loss, NaN."""

import numpy as np
import pytest
import torch

import weft
from weft.nn import functional as F

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True, params=["reference", "cpu"])
def on_device(request):
    with weft.device(request.param):
        yield request.param


def second(frame, function, values):
    """Gradient of a weighted gradient, in Weft or torch."""
    if frame is torch:
        x = torch.tensor(values, requires_grad=True)
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        weights = torch.arange(1.0, first.numel() + 1).reshape(first.shape)
        (again,) = torch.autograd.grad((first * weights).sum(), x)
        return first.detach().numpy(), again.numpy()
    x = weft.tensor(values)
    weights = weft.arange(1.0, x.numel() + 1).reshape(x.shape)
    first = weft.grad(function)
    return first(x).numpy(), weft.grad(lambda y: (first(y) * weights).sum())(x).numpy()


@pytest.mark.parametrize(
    ("values", "dim"),
    [
        ([[2.0, 3.0, -1.5], [0.0, 3.0, 4.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]], 1),
        ([[2.0, 0.0, -1.5, 1.0, 0.5], [0.0, 0.0, 4.0, 1.0, 0.5]], 1),
        ([[2.0, 0.0], [3.0, 0.0], [-1.0, 0.5]], 0),
        ([[1.5, 2.0], [0.0, 3.0]], None),
        ([[2.0]], 1),
    ],
)
def test_second_derivatives_of_a_product_at_zeros(values, dim):
    def function(x):
        return (x.prod() if dim is None else x.prod(dim)).sum()

    for ours, theirs in zip(second(weft, function, values), second(torch, function, values), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


LABELS = {
    "cross_entropy": lambda x, y, **options: F.cross_entropy(x, y, **options),
    "nll_loss": lambda x, y, **options: F.nll_loss(x, y, **options),
    "smoothed": lambda x, y, **options: F.cross_entropy(x, y, label_smoothing=0.1, **options),
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("labels", [[0, 3, 1], [-1, 0, 1], [2, 1, 100]])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_labels_out_of_range_raise_at_the_users_line(name, labels, reduction):
    x = weft.zeros(3, 3, requires_grad=True)
    loss = LABELS[name](x, weft.tensor(labels), reduction=reduction)
    with pytest.raises(weft.IndexRangeError, match=r"test_loose_ends\.py"):
        loss.numpy()


@pytest.mark.parametrize("name", LABELS)
def test_ignored_labels_may_be_any(name):
    x = weft.tensor(np.random.default_rng(0).normal(size=(4, 3)).astype("float32"), requires_grad=True)
    theirs = torch.tensor(x.numpy(), requires_grad=True)
    options = {"label_smoothing": 0.1} if name == "smoothed" else {}
    torch_loss = torch.nn.functional.nll_loss if name == "nll_loss" else torch.nn.functional.cross_entropy
    for ignore in (-100, 7, 1):
        labels = [0, ignore, 2, ignore]
        ours = LABELS[name](x, weft.tensor(labels), ignore_index=ignore)
        expected = torch_loss(theirs, torch.tensor(labels), ignore_index=ignore, **options)
        np.testing.assert_allclose(ours.item(), expected.item(), rtol=1e-5)
        ours.backward()
        expected.backward()
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_labels_out_of_range_raise_in_compiled_functions(on_device):
    if on_device == "reference":
        pytest.skip("interprets graphs, not plans")
    w = weft.zeros(4, 3, requires_grad=True)

    @weft.compile
    def step(x, y):
        w.grad = None
        loss = F.cross_entropy(x @ w, y)
        loss.backward()
        return loss

    good, bad = weft.tensor([0, 2]), weft.tensor([0, 3])
    assert np.isfinite(step(weft.ones(2, 4), good).item())
    with pytest.raises(
        weft.IndexRangeError, match=r"cross_entropy at .*test_loose_ends.py:\d+: given the label 3 at position 1"
    ):
        step(weft.ones(2, 4), bad)
    assert np.isfinite(step(weft.ones(2, 4), good).item())
    constant = weft.compile(lambda x: F.cross_entropy(x, weft.full((2,), 5)))
    with pytest.raises(weft.IndexRangeError, match=r"test_loose_ends\.py"):
        constant(weft.ones(2, 3))


def both_gradients(function, *values):
    """The gradients of sum(function) in each argument, ours and torch's."""
    ours = [weft.tensor(value, requires_grad=True) for value in values]
    theirs = [torch.tensor(value, requires_grad=True) for value in values]
    one, two = function(F, *ours), function(torch.nn.functional, *theirs)
    np.testing.assert_allclose(one.detach().numpy(), two.detach().numpy(), rtol=1e-6)
    one.sum().backward()
    two.sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5)


P = [0.0, 0.0, 1.0, 1.0, 0.25, 1e-20, 1e-7]
Y = [0.0, 1.0, 0.0, 1.0, 0.5, 1.0, 0.25]


def test_slopes_of_binary_cross_entropy_at_the_ends():
    both_gradients(lambda f, p, y: f.binary_cross_entropy(p, y, reduction="none"), P, Y)
    both_gradients(lambda f, p: f.binary_cross_entropy(p, (p * 0 + 0.5).detach()), [0.1, 0.9])


def test_second_derivatives_of_binary_cross_entropy():
    def function(x):
        functional = torch.nn.functional if isinstance(x, torch.Tensor) else F
        return functional.binary_cross_entropy(x, (x * 0 + 0.75).detach(), reduction="sum")

    for ours, theirs in zip(
        second(weft, function, [0.1, 0.5, 0.8]), second(torch, function, [0.1, 0.5, 0.8]), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (None, 1.0), (-1.0, None), (2.0, -2.0)])
def test_clamp_at_nan_and_at_its_bounds(bounds):
    low, high = bounds
    both_gradients(lambda f, x: x.clamp(min=low, max=high), [NAN, -1.0, 1.0, 0.5, -3.0, 3.0, INF, -INF])


def test_clamp_between_tensors():
    both_gradients(
        lambda f, x, low, high: x.clamp(low, high),
        [NAN, -1.0, 1.0, 0.5, -3.0, 3.0, 0.0],
        [-1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 2.0],
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -2.0],
    )


def test_gradients_pass_between_devices():
    here = str(weft.default_device())
    there = "cpu" if here == "reference" else "reference"
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).to(there)
    assert str(y.device) == there and y.requires_grad and not y.is_leaf
    z = (y * 3).to(here)
    (z * x).sum().backward()
    assert x.grad.tolist() == [9.0, 36.0]
    assert str(x.grad.device) == here
    with weft.no_grad():
        assert not x.to(there).requires_grad
    assert not x.detach().to(there).requires_grad


def test_second_derivatives_between_devices():
    there = "cpu" if str(weft.default_device()) == "reference" else "reference"
    here = str(weft.default_device())

    def cube(x):
        return (x.to(there) ** 3).sum().to(here)

    x = weft.tensor([2.0, 3.0])
    assert weft.grad(lambda y: weft.grad(cube)(y).sum())(x).tolist() == [12.0, 18.0]
