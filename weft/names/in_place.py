"""The activations of `torch.nn.functional` that write to their input: `relu_` and its like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from weft.core.signatures import Annotation
from weft.core.tensor import Tensor
from weft.functional import dropout  # noqa: F401  # enters `rrelu` into the table
from weft.names.namespaces import function_of
from weft.ops import activation  # noqa: F401  # enters the others
from weft.ops.registry import entries, operation

NAMES = ("celu", "elu", "hardtanh", "leaky_relu", "relu", "rrelu", "selu", "threshold")


def _writing(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The function whose first argument takes the result."""

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return input._replace(name + "_", function(input, *args, **kwargs))

    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name != "inplace"]
    call.__name__, call.__doc__ = name + "_", f"`{name}`, in place."
    call.__signature__ = inspect.Signature(parameters, return_annotation=Annotation("Tensor"))  # type: ignore[attr-defined]
    return call


_known = dict(entries("functional"))
for _name in NAMES:
    operation("functional", of_tensors=True)(_writing(_name, function_of(_known[_name])))
