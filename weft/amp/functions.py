"""How a `Function` of the user's meets autocast: PyTorch's `custom_fwd` and `custom_bwd`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from weft.base.dtypes import DTypeLike, as_dtype, float64
from weft.base.errors import GraphError, problem
from weft.base.state import STATE
from weft.base.tree import flatten, unflatten
from weft.core.autocast import _dtype_now
from weft.core.autocast import autocast as _autocast
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor


@entry_point
def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str | None = None, cast_inputs: DTypeLike | None = None
) -> Any:
    """For `forward` of a `Function`: its `backward`, under `custom_bwd`, runs in the same state of autocast. With
    `cast_inputs`, float arguments on such a device are cast to that dtype and autocast is off inside.

    >>> class Double(weft.autograd.Function):
    ...     @staticmethod
    ...     @weft.amp.custom_fwd(device_type="cpu", cast_inputs=weft.float32)
    ...     def forward(ctx, x):
    ...         return x * 2
    ...
    ...     @staticmethod
    ...     @weft.amp.custom_bwd(device_type="cpu")
    ...     def backward(ctx, g):
    ...         return g * 2
    >>> with weft.autocast("cpu"):
    ...     Double.apply(weft.ones(1, dtype=weft.bfloat16)).dtype
    weft.float32
    """
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    dtype = None if cast_inputs is None else as_dtype("custom_fwd", cast_inputs)

    @functools.wraps(fwd)
    def call(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._autocast = STATE.autocast
        if dtype is None or STATE.autocast is None:
            return fwd(ctx, *args, **kwargs)
        leaves, structure = flatten((args, kwargs))

        def cast(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.dtype.kind != "f" or leaf.dtype is float64:
                return leaf
            is_meant = device_type in (None, leaf.device.kind) and _dtype_now(leaf.device.kind) is not None
            return leaf.to(dtype) if is_meant else leaf

        args, kwargs = unflatten(structure, list(map(cast, leaves)))
        ctx._autocast = None
        with _autocast(device_type, enabled=False):
            return fwd(ctx, *args, **kwargs)

    return call


@entry_point
def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str | None = None) -> Any:
    """For `backward` of a `Function` whose `forward` has `custom_fwd`: it runs in the state of autocast of that."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def call(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(ctx, "_autocast"):
            given, expected = "a backward whose forward has no custom_fwd", "both decorators"
            raise problem(GraphError, "custom_bwd", given, expected, "put custom_fwd on forward")
        outer, STATE.autocast = STATE.autocast, ctx._autocast
        try:
            return bwd(ctx, *args, **kwargs)
        finally:
            STATE.autocast = outer

    return call
