"""Activations by name: what the argument `activation` of layers and configurations means."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from weft.base.errors import DTypeError, RangeError, problem
from weft.core.tensor import Tensor
from weft.nn.contents import CONTENTS
from weft.nn.module import Module
from weft.nn.registry import layer


@layer("L001", aliases=("ActivationLayer",), oracle="the layer of that name in torch.nn")
class Activation(Module):
    """y = f(x), f given by name: that of any activation layer, with its arguments.

    Names are those of the classes in any spelling ('relu', 'leaky_relu', 'LogSoftmax'), 'swish' and 'linear'.

    >>> weft.nn.Activation("leaky_relu", negative_slope=0.5)(weft.tensor([-1.0, 2.0]))
    tensor([-0.5000,  2.0000])
    """

    def __init__(self, name: str, **arguments: Any):
        super().__init__()
        self.name = name
        self.function: Any = make_activation(name, **arguments)

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input)


# Classes of other files that are activations, too, and names for classes that have another name.
_ELSEWHERE = {
    "basic.softmax": ("Softmax", "Softmax2d", "LogSoftmax", "Softmin", "Sparsemax", "Entmax15", "GumbelSoftmax"),
    "basic.utility": ("Identity",),
}


_OTHER_NAMES = {"swish": "silu", "linear": "identity", "none": "identity"}


_FILES = {"basic.activation": CONTENTS["basic.activation"], **_ELSEWHERE}


_NAMES = {
    name.lower(): (file, name) for file, names in _FILES.items() for name in names if name.lower() not in _OTHER_NAMES
}


ACTIVATION_NAMES = (*_NAMES, *_OTHER_NAMES)  # without underscores, in lower case


def make_activation(activation: Any, **arguments: Any) -> Callable[..., Any] | None:
    """What the argument `activation` of a layer means: None for none, a new module for a name, a function as it is.

    >>> from weft.nn.basic.named_activation import make_activation
    >>> make_activation("gelu", approximate="tanh")
    GELU(approximate='tanh')
    """
    if activation is None:
        return None
    if callable(activation):
        return activation
    if not isinstance(activation, str):
        given = f"an activation of type {type(activation).__name__}"
        raise problem(DTypeError, "Activation", given, "a name, a function or None")
    wanted = activation.replace("_", "").lower()
    found = _NAMES.get(_OTHER_NAMES.get(wanted, wanted))
    if found is None:
        raise problem(RangeError, "Activation", f"the name {activation!r}", f"one of {', '.join(sorted(_NAMES))}")
    file, name = found
    return getattr(importlib.import_module(f"weft.nn.{file}"), name)(**arguments)
