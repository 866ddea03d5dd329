"""The argument `activation=` of layers: nothing, the name of a function in `nn.functional`, or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import RangeError, problem
from weft.nn import functional as F
from weft.tensor import Tensor

Activation = None | str | Callable[[Tensor], Tensor]

NAMES = (
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish", "relu", "relu6",
    "selu", "sigmoid", "silu", "softplus", "softsign", "tanh", "tanhshrink",
)  # fmt: skip
_SAME = {"swish": "silu", "leakyrelu": "leaky_relu"}


def check_activation(who: str, activation: Activation) -> Any:
    """The activation as a layer keeps it: a module among its submodules, everything else as it was given."""
    if activation is None or callable(activation):
        return activation
    if isinstance(activation, str):
        name = _SAME.get(activation.lower(), activation.lower())
        if name in ("identity", "linear", "none"):
            return None
        if name in NAMES:
            return name
    raise problem(RangeError, who, f"activation={activation!r}", f"None, a function, or one of {', '.join(NAMES)}")


def activate(x: Tensor, activation: Activation) -> Tensor:
    """`activation` of x."""
    if activation is None:
        return x
    return getattr(F, activation)(x) if isinstance(activation, str) else activation(x)
