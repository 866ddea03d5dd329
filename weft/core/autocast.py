"""16-bit floats where they are faster and float32 where precision needs it, without a change to the network.

`autocast` only sets the thread's state (`state.STATE.autocast`); `ops.policy` has the table by operation and casts the
operands where a registered operation is called. A compiled function has the state among its guards, so a call under
another one is traced again. Parameters stay in float32: what reads them reads a cast, and gradients come back through
it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from weft.backends.registry import FASTEST, MODULES
from weft.base.dtypes import DType, DTypeLike, as_dtype, bfloat16, float16
from weft.base.errors import DeviceError, DTypeError, GraphError, problem
from weft.base.state import STATE
from weft.core.boundary import entry, entry_point
from weft.ops.policy import AutocastState

KINDS = tuple(MODULES)


def default_autocast_dtype(kind: str) -> DType:
    """float16 on GPUs and bfloat16 elsewhere, as in PyTorch."""
    return float16 if kind in FASTEST else bfloat16


class autocast:
    """Inside, matrix products, convolutions and attention compute in 16-bit floats, and operations that need more in
    float32; docs/precision.md has the table. A context manager and a decorator, for this thread.

    `device_type` names the kind of device ("cpu", "cuda") whose operands are cast, None all of them. `dtype` is float16
    or bfloat16, unless given float16 on GPUs and bfloat16 on the CPU. `autocast(..., enabled=False)` switches it off
    for a part. `cache_enabled` is accepted and changes nothing: equal casts are one anyway.

    >>> x, w = weft.ones(2, 3), weft.ones(3, 3, requires_grad=True)
    >>> with weft.autocast("cpu", dtype=weft.bfloat16):
    ...     y = x @ w
    ...     loss = y.sum()
    >>> y.dtype, loss.dtype
    (weft.bfloat16, weft.float32)
    >>> loss.backward()
    >>> w.grad.dtype
    weft.float32
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: DTypeLike | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ):
        if device_type is not None and (not isinstance(device_type, str) or device_type not in KINDS):
            given = f"device_type {device_type!r}"
            kind = str(device_type).partition(":")[0]
            fix = "leave it out: it then casts on every device"
            if kind in KINDS:
                fix = f"write the kind without a number: {kind!r}"
            raise problem(DeviceError, "autocast", given, f"None or one of {sorted(KINDS)}", fix)
        self.device_type, self._enabled = device_type, bool(enabled)
        self._dtype = None if dtype is None else as_dtype("autocast", dtype)
        if self._dtype is not None and not self._dtype.is_16_bit and self._enabled:
            given = f"dtype {self._dtype.name}"
            raise problem(DTypeError, "autocast", given, "float16 or bfloat16", "use enabled=False for float32")
        self._outer: list[Any] = []

    def _dtypes(self) -> dict[str, DType | None]:
        """What it switches on or off, by kind of device."""
        if not self._enabled:
            return {self.device_type or "": None}
        if self.device_type is not None:
            return {self.device_type: self._dtype or default_autocast_dtype(self.device_type)}
        if self._dtype is not None:
            return {"": self._dtype}
        return {"": default_autocast_dtype("cpu"), **{kind: default_autocast_dtype(kind) for kind in FASTEST}}

    def __enter__(self) -> autocast:
        outer = STATE.autocast
        self._outer.append(outer)
        known = {} if outer is None or self.device_type is None else outer.dtypes
        STATE.autocast = AutocastState.of({**known, **self._dtypes()})
        return self

    def __exit__(self, *error: object) -> None:
        STATE.autocast = self._outer.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose calls run under this autocast."""
        if not callable(function):
            raise problem(GraphError, "autocast", f"a {type(function).__name__}", "a function to decorate")
        if inspect.isgeneratorfunction(function):
            given = f"the generator {getattr(function, '__qualname__', function)!s}"
            fix = "write `with weft.autocast(...)` inside it, between two `yield`s"
            raise problem(GraphError, "autocast", given, "a function that returns", fix)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with autocast(self.device_type, self._dtype, self._enabled):
                return function(*args, **kwargs)

        return entry(call)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether this thread's operations on such a device are autocast; on any device unless one is named.

    >>> with weft.autocast("cpu"):
    ...     weft.is_autocast_enabled("cpu"), weft.is_autocast_enabled("cuda")
    (True, False)
    """
    if device_type is None:
        return STATE.autocast is not None
    return _dtype_now(device_type) is not None


def get_autocast_dtype(device_type: str) -> DType:
    """What operands on such a device are cast to now; where autocast is off, what they would be.

    >>> weft.get_autocast_dtype("cpu")
    weft.bfloat16
    """
    return _dtype_now(device_type) or default_autocast_dtype(device_type)


@entry_point
def is_autocast_available(device_type: str) -> bool:
    """Whether autocast knows this kind of device.

    >>> weft.amp.is_autocast_available("cpu")
    True
    """
    return device_type in KINDS


def _dtype_now(kind: str) -> DType | None:
    state = STATE.autocast
    return None if state is None else state.dtypes.get(kind, state.dtypes.get(""))
