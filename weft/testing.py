"""Checks that users and our own tests share: gradients against finite differences, kernels against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd import value_and_grad
from weft.base.dtypes import float64
from weft.base.errors import DTypeError, problem
from weft.base.tree import flatten, unflatten
from weft.core.creation import tensor
from weft.core.device import get
from weft.core.tensor import Tensor

if TYPE_CHECKING:
    from weft.jit.verification import Checked
    from weft.plan.device import Device


def gradcheck(
    fn: Callable[..., Any], inputs: Sequence[Any], eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3
) -> bool:
    """Compare the gradients of `fn(*inputs)` with central differences in float64; raise AssertionError on a difference.

    `inputs` are float64 tensors, or nested tuples, lists and dicts of tensors; integer tensors are held fixed. `fn`
    returns a tensor or a nesting of tensors; its float results are weighted with fixed numbers and summed.

    >>> with weft.device("reference"):
    ...     weft.testing.gradcheck(lambda x: x.exp(), [weft.tensor([0.1, 0.2], dtype=weft.float64)])
    True
    """
    leaves, structure = flatten(list(inputs))
    moving = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dtype.kind == "f"]
    if not moving or any(leaves[place].dtype is not float64 for place in moving):
        raise problem(DTypeError, "gradcheck", "inputs that are not float64", "float64 tensors", "use x.double()")

    def weighted_sum(values: list[Tensor]) -> Tensor:
        full = list(leaves)
        for place, value in zip(moving, values, strict=True):
            full[place] = value
        outputs = [out for out in flatten(fn(*unflatten(structure, full)))[0] if out.dtype.kind == "f"]
        total = tensor(0.0, dtype=float64, device=values[0].device)
        for number, out in enumerate(outputs):
            weights = np.cos(1.0 + number + np.arange(out.numel())).reshape(out.shape)
            total = total + (out * tensor(weights, dtype=float64, device=out.device)).sum()
        return total

    start = [leaves[place].detach() for place in moving]
    _, slopes = value_and_grad(weighted_sum)(start)
    for number, (point, slope) in enumerate(zip(start, slopes, strict=True)):
        expected = _differences(weighted_sum, start, number, point.numpy(), eps)
        np.testing.assert_allclose(slope.numpy(), expected, rtol=rtol, atol=atol, err_msg=f"gradient of input {number}")
    return True


def verify(function: Callable, *args: Any, device: str | Device | None = None, **kwargs: Any) -> list[Checked]:
    """Run `function(*args)`, compiled, kernel by kernel against the reference; raise AssertionError on a difference.

    The message names the first kernel that differs, its worst element, and the operations that it computes. Nothing is
    changed: the function works on copies of its arguments and of the tensors that it captures. Floats may differ by
    rounding; everything else must be equal. Returns one entry for each step of the plan. `device` runs the kernels of
    another device than that of the tensors, on copies there.

    >>> x = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> [step.error < 1 for step in weft.testing.verify(lambda x: x.softmax(-1), x)]
    [True]
    """
    from weft.jit.verification import check  # loads the compiler

    return check(function, args, kwargs, None if device is None else get(device))


def _differences(
    fn: Callable[[list[Tensor]], Tensor], inputs: list[Tensor], number: int, point: np.ndarray, eps: float
) -> np.ndarray:
    """The central difference in every element of one input."""
    result = np.zeros(point.shape)
    for place in np.ndindex(*point.shape):
        sides = []
        for step in (eps, -eps):
            moved = point.copy()
            moved[place] += step
            replaced = [*inputs[:number], tensor(moved, device=inputs[number].device), *inputs[number + 1 :]]
            sides.append(fn(replaced).item())
        result[place] = (sides[0] - sides[1]) / (2 * eps)
    return result
