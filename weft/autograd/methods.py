"""The methods of `Tensor` that are about gradients flowing back: `backward`, `register_hook` and `retain_grad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.autograd import backpropagation, hooks
from weft.core.method_registry import tensor_method
from weft.core.tensor import Tensor


@tensor_method
def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of this tensor to `.grad` of every leaf that requires one, or of these `inputs` alone. See
    `weft.autograd.backward`."""
    backpropagation.backward(self, gradient, retain_graph, create_graph, inputs)


@tensor_method
def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
    """Call `hook(gradient)` whenever `backward()` or `grad` has the gradient of this tensor. What it returns,
    unless that is None, is the gradient from there on. The handle that is returned has `remove()`.

    >>> x = weft.ones(2, requires_grad=True)
    >>> handle = x.register_hook(lambda g: g * 10)
    >>> (x * 3).sum().backward()
    >>> x.grad
    tensor([30., 30.])
    """
    return hooks.register_hook(self, hook)


@tensor_method
def retain_grad(self: Tensor) -> None:
    """Let `backward()` set `.grad` of this tensor, though it is the result of an operation."""
    hooks.retain_grad(self)
