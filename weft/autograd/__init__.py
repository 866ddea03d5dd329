"""Gradients for users: `backward`, `grad`, `value_and_grad` and the switches of gradient recording.

`weft.grad` computes gradients of graphs; this package finds the leaves, calls hooks, and adds results to `.grad`. It
knows neither layers nor how the graphs are compiled.
"""

from weft.autograd import methods as _methods  # noqa: F401  # adds them to `Tensor`
from weft.autograd.backpropagation import backward
from weft.autograd.function import Function
from weft.autograd.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from weft.autograd.transforms import grad, value_and_grad

__all__ = [
    "Function",
    "backward",
    "enable_grad",
    "grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_grad_enabled",
    "value_and_grad",
]
