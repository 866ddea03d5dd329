"""Windows: the primitives `unfold` and `fold`, and what pooling and its like cost in kernels and bytes."""

import itertools

import numpy as np
import pytest

import weft
from weft.graph import build
from weft.tensor import lift

unfold, fold = lift(build.unfold), lift(build.fold)

CASES = [
    (extent, size, step, dilation)
    for extent, size, step, dilation in itertools.product((7, 12), (1, 2, 3, 5), (1, 2, 3, 4), (1, 2, 3, 4))
    if dilation * (size - 1) < extent
]


def windows_of(array, axis, size, step, dilation):
    """The same by plain slicing: one slice for each place in a window."""
    count = (array.shape[axis] - dilation * (size - 1) - 1) // step + 1
    places = [np.arange(count) * step + k * dilation for k in range(size)]
    return np.stack([np.take(array, place, axis) for place in places], axis + 1)


@pytest.mark.backend
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("axis", [0, 1])
def test_windows_and_their_sums(device, axis):
    rng = np.random.default_rng(0)
    with weft.device(device):
        for extent, size, step, dilation in CASES:
            array = rng.integers(-9, 9, (extent, 5) if axis == 0 else (3, extent)).astype(np.float32)
            expected = windows_of(array, axis, size, step, dilation)
            x = weft.tensor(array, requires_grad=True)
            y = unfold(x, axis, size, step, dilation)
            np.testing.assert_array_equal(y.numpy(), expected)
            weights = rng.integers(-9, 9, expected.shape).astype(np.float32)
            positions = windows_of(np.arange(array.size).reshape(array.shape), axis, size, step, dilation)
            summed = np.zeros(array.size, np.float32)
            np.add.at(summed, positions.ravel(), weights.ravel())
            (y * weft.tensor(weights)).sum().backward()
            np.testing.assert_array_equal(x.grad.numpy(), summed.reshape(array.shape))
            w = weft.tensor(weights, requires_grad=True)
            z = fold(w, axis, extent, step, dilation)
            np.testing.assert_array_equal(z.numpy(), summed.reshape(array.shape))
            (z * weft.tensor(array)).sum().backward()
            np.testing.assert_array_equal(w.grad.numpy(), expected)


@pytest.mark.backend
def test_many_overlapping_windows_are_a_reduction():
    x = weft.ones(2, 40, 3, requires_grad=True)
    unfold(x, 1, 20).sum().backward()
    expected = np.convolve(np.ones(21), np.ones(20))
    np.testing.assert_array_equal(x.grad.numpy(), np.broadcast_to(expected[None, :, None], (2, 40, 3)))


@pytest.mark.unit
def test_windows_differentiate_twice():
    x = weft.tensor(np.linspace(-1.0, 1.0, 12).reshape(3, 4), requires_grad=True)
    assert weft.testing.gradcheck(lambda x: unfold(x, 1, 2, 1, 2).exp(), [x])

    def slope(x):
        return weft.grad(lambda x: (unfold(x, 0, 2) ** 3).sum())(x)

    assert weft.testing.gradcheck(slope, [x])
