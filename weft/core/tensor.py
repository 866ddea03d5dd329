"""Tensor: what the user holds. It wraps operations on nodes and computes nothing itself.

Methods that are operations come from the table of operations, and some are registered by modules above
(`weft.core.methods`); the class body has the others.
In-place operations and `x[i] = v` rebind the tensor to a new node; its views, and the tensor that it is a view of, see
the change (`weft.core.views`), nothing else does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, TypeAlias, cast, overload

import numpy as np

from weft.base.dtypes import (
    DType,
    DTypeLike,
    as_dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    is_dtype_name,
    uint8,
)
from weft.base.errors import DTypeError, GraphError, NoAxesError, ShapeError, problem
from weft.base.state import STATE, VERSION
from weft.core.attributes import TensorAttributes
from weft.core.cell import TensorCell
from weft.core.host_arrays import from_host
from weft.core.methods import TensorMethods
from weft.core.realize import realize
from weft.core.views import base_of, keep_view, link, writable_base, write_through
from weft.graph import build
from weft.graph.node import Node, leaf, placeholder
from weft.plan.device import Buffer, Device, missing_dtype

Bool: TypeAlias = bool  # which methods of `Tensor` are called, too
Int: TypeAlias = int
MAX_DEPTH = 256  # longest chain of operations that is kept without computing it


def wrap_results(result: Any, tensors: list[Tensor], weak: bool = False) -> Any:
    """Tensors for the nodes that an operation on `tensors` gave; `weak` where all of them adapt to other dtypes."""
    if isinstance(result, Node):
        requires_grad = False
        if result.dtype.kind == "f":
            for tensor in tensors:
                if tensor._requires_grad:
                    requires_grad = True
                    break
        if requires_grad and not STATE.grad_enabled:
            result, requires_grad = build.stop_gradient(result), False
        if requires_grad and result.shown:
            result = _distinct(result, tensors)
        tensor = wrap(result, requires_grad)
        tensor.weak = weak and not result.shape
        return tensor
    parts = [wrap_results(part, tensors, weak) for part in result]
    return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)


def _distinct(node: Node, tensors: list[Tensor]) -> Node:
    """A node for a result that requires grad, where another tensor has `node`. What equals an operand (`clone`) has a
    gradient of its own. The same operation on the same operands is one value with one gradient, unless that has hooks,
    which are for the other tensor."""
    for tensor in tensors:
        if tensor.node is node:
            return build.variable(node)
    return build.repeat(node) if hasattr(node, "_hooks") else node


def wrap(node: Node, requires_grad: bool = False) -> Tensor:
    """A tensor for the result of an operation. A chain that grew too long is computed now."""
    tensor = Tensor(node, requires_grad, is_leaf=not requires_grad)
    if node.depth > MAX_DEPTH and STATE.trace is None and node.buffer is None:
        realize([tensor])
    return tensor


class Tensor(TensorCell, TensorAttributes, TensorMethods):
    """A value of some shape, dtype and device, computed when read. Made by `weft.tensor`, `weft.zeros`, ... and by
    operations, not by calling the class.

    >>> x = weft.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Operators between arrays and tensors give tensors; no other function of NumPy takes a tensor."""
        from weft.core.interop import numpy_operator

        return numpy_operator(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Outside of compiled functions, functions of NumPy get arrays with the values."""
        from weft.core.interop import numpy_function

        return numpy_function(function, args, kwargs)

    @staticmethod
    def _trace_input(
        shape: tuple[int, ...], dtype: DType, device: Device, requires_grad: bool, weak: bool = False
    ) -> Tensor:
        """What an argument is while a function is traced: a placeholder of the same form."""
        tensor = Tensor(placeholder(shape, dtype, device), requires_grad)
        tensor.weak = weak
        return tensor

    def __copy__(self) -> Tensor:
        from weft.core.copying import shallow_copy

        return shallow_copy(self)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        from weft.core.copying import deep_copy

        return deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        from weft.core.copying import reduce_tensor

        return reduce_tensor(self, protocol)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise problem(NoAxesError, "iter", "a scalar tensor", "at least one axis", "use x.item()")
        return iter(self.unbind(0))

    # ---- gradients ---------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad_now()

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for gradients in this leaf, or no longer. Results computed before do not change."""
        if requires_grad == self.requires_grad:
            return self
        if not self.is_leaf:
            raise problem(GraphError, "requires_grad_", "the result of an operation", "a leaf", "use x.detach()")
        if requires_grad and self.dtype.kind != "f":
            raise problem(
                DTypeError, "requires_grad_", f"a {self.dtype.name} tensor", "a float tensor", "use x.float()"
            )
        base_of(self)  # a view that nothing else shares stands alone from now on
        if self._view is not None:
            self._view.leaf = weakref.ref(self) if requires_grad else None
        if STATE.trace is None:
            self._present()
        self._requires_grad = requires_grad
        if self._buffer is not None or self._view is not None:
            VERSION.bump()
        if STATE.trace is None and self._node is not None:
            # a node of its own, so that what was computed from the old one stays apart
            old = self._node
            if self._buffer is not None and old.buffer is self._buffer and self._buffer.slab.pinned:
                self._node = None  # the next reader makes one
                return self
            self._show(
                leaf(old.buffer, old.shape, old.dtype, old.device)
                if old.buffer
                else build.variable(build.stop_gradient(old))
            )
        return self

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward()` has added up, or None."""
        if STATE.trace is not None:
            STATE.trace.touch_grad(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if STATE.trace is not None:
            STATE.trace.touch_grad(self, written=True)
        if value is not None and (value.shape != self.shape or value.dtype is not self.dtype):
            given, expected = f"{value.dtype.name}{list(value.shape)}", f"{self.dtype.name}{list(self.shape)}"
            raise problem(ShapeError, "grad", given, expected)
        if value is not self._grad:
            VERSION.bump()  # whether there is a gradient may guard a plan that never read the tensor itself
        self._grad = value

    def detach(self) -> Tensor:
        """A view of the whole tensor through which no gradient flows."""
        node = self.node
        tensor = wrap(build.stop_gradient(node))
        tensor.weak = self.weak
        link(tensor, self, node, build.stop_gradient, (), {}).is_detached = True
        return tensor

    # ---- other dtypes and devices ------------------------------------------------------------------------------

    @overload
    def to(self, dtype: DTypeLike, non_blocking: Bool = False, copy: Bool = False) -> Tensor: ...

    @overload
    def to(self, other: Tensor, non_blocking: Bool = False, copy: Bool = False) -> Tensor: ...

    @overload
    def to(
        self,
        device: str | Device | Int | None = None,
        dtype: DTypeLike | None = None,
        non_blocking: Bool = False,
        copy: Bool = False,
    ) -> Tensor: ...

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """In another dtype, on another device, or both: `to(dtype)`, `to(device)`, `to(device, dtype)`, or as another
        tensor is: `to(other)`. A dtype may be given as NumPy's or by its name.

        The tensor itself, where it is as requested and `copy` is not True. `non_blocking` changes nothing: work is
        queued anyway, and a value waits for it when it is read.

        >>> weft.ones(2).to("cpu", weft.int8)
        tensor([1, 1], dtype=weft.int8)
        """
        dtype, device, copy = destination(args, kwargs)
        if dtype is not None and dtype not in self.device.dtypes:
            if device is None:
                raise missing_dtype("to", dtype, self.device)
            return self._move_to(device).to(dtype)
        result = self if dtype is None or dtype is self.dtype else self.cast(dtype)
        result = result if device is None else result._move_to(device)
        return result.clone() if copy and result is self else result

    def _move_to(self, device: str | Device) -> Tensor:
        from weft.core.device import get

        target = get(device)
        if target is self.device:
            return self
        if STATE.trace is not None:
            given = f"a move from {self.device} to {target} inside {STATE.trace.where}"
            raise problem(
                GraphError, "to", given, "one device in a compiled function", "move arguments before the call"
            )
        if not (self._requires_grad and STATE.grad_enabled):
            return Tensor(self._copy_to(target))
        return self._move_with_history(target)

    def _copy_to(self, target: Device) -> Node:
        """The value on another device: from GPU to GPU of one kind directly, else through the host."""
        if self.dtype not in target.dtypes:
            raise missing_dtype("to", self.dtype, target)
        if target.kind != self.device.kind:
            return from_host(self.numpy(), target, "to")
        from weft.compiler.cells import steady_copy
        from weft.plan.protocols import PeerCopies

        node = self.node
        realize([self])
        slab = cast(PeerCopies, target.backend).receive(steady_copy(node))
        return leaf(Buffer(slab, 0, node.nbytes), node.shape, node.dtype, target)

    def cpu(self) -> Tensor:
        """On the CPU."""
        return self._move_to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Tensor:
        """On an NVIDIA GPU: the first, or the one of that number or name."""
        return self._move_to("cuda" if device is None else device)

    def half(self) -> Tensor:
        """As float16."""
        return self.to(float16)

    def bfloat16(self) -> Tensor:
        """As bfloat16."""
        return self.to(bfloat16)

    def float(self) -> Tensor:
        """As float32."""
        return self.to(float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(float64)

    def char(self) -> Tensor:
        """As int8."""
        return self.to(int8)

    def byte(self) -> Tensor:
        """As uint8."""
        return self.to(uint8)

    def short(self) -> Tensor:
        """As int16."""
        return self.to(int16)

    def int(self) -> Tensor:
        """As int32."""
        return self.to(int32)

    def long(self) -> Tensor:
        """As int64."""
        return self.to(int64)

    def bool(self) -> Tensor:
        """As bool: whether each element is not zero."""
        return self.to(bool_)

    def type_as(self, other: Tensor) -> Tensor:
        """In the dtype of `other`."""
        return self.to(other.dtype)

    # ---- assignment: in-place operations rebind the cell -------------------------------------------------------

    def _replace(self, who: str, value: Tensor) -> Tensor:
        """Rebind to the result of an in-place operation, after the checks that PyTorch makes too."""
        base = writable_base(self, who, value)
        if value._form_now()[0] != self._form_now()[0]:
            raise problem(ShapeError, who, f"a result of shape {value.shape}", f"that of the tensor, {self.shape}")
        if value.dtype.category > self.dtype.category:
            given = f"a result of {value.dtype.name} for a {self.dtype.name} tensor"
            raise problem(DTypeError, who, given, "a dtype that fits", "cast the operand first")
        node = build.cast(value.node, self.dtype)
        if base is not None:
            base._assign_window(lambda: write_through(self, base, node, value._requires_grad))
            whole = base._node
            if STATE.trace is None and whole is not None and whole.buffer is None and whole.depth > MAX_DEPTH:
                realize([base])
            return self
        if self._requires_grad and not STATE.grad_enabled:
            node = build.stop_gradient(node) if self.is_leaf else build.surrogate(node, self.node)
        elif not self._requires_grad or not self.is_leaf:
            self._requires_grad, self.is_leaf = value._requires_grad, not value._requires_grad
        self._assign(node)
        self._consumed, self._owned = False, None
        return self

    def contiguous(self) -> Tensor:
        """The tensor itself; of a view whose elements do not lie in order in the memory of its base, a copy."""
        if self._view is None or (self._requires_grad and self.is_leaf):
            return self
        node = self.node
        tensor = wrap_results(node, [self], self.weak)
        link(tensor, self, node, keep_view, (), {}).may_copy = True
        return tensor

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self.eq(other) if isinstance(other, _COMPARABLE) else NotImplemented  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Any:
        return self.ne(other) if isinstance(other, _COMPARABLE) else NotImplemented  # type: ignore[arg-type]


def destination(args: tuple, kwargs: dict[str, Any]) -> tuple[DType | None, Any, Any]:
    """The dtype, the device and `copy` that the arguments of `Tensor.to` say."""
    dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
    target, rest = (args[0], list(args[1:])) if args else (kwargs.pop("other", None), [])
    if isinstance(target, Tensor):
        dtype, device = target.dtype, target.device
    elif isinstance(target, (Device, int)) or (isinstance(target, str) and not is_dtype_name(target)):
        device = target
        dtype = rest.pop(0) if rest and not isinstance(rest[0], bool) else dtype
    elif target is not None:
        dtype = target
    elif rest and not isinstance(rest[0], bool):
        dtype = rest.pop(0)
    flags = dict(zip(("non_blocking", "copy"), rest, strict=False))
    copy = kwargs.pop("copy", flags.get("copy", False))
    kwargs.pop("non_blocking", None)
    kwargs.pop("memory_format", None)  # there is one order of elements only
    if kwargs or len(rest) > 2:
        given = ", ".join(kwargs) or f"{len(args)} arguments"
        raise problem(DTypeError, "to", given, "device, dtype, non_blocking and copy, or another tensor")
    return (None if dtype is None else as_dtype("to", dtype)), device, copy


_COMPARABLE = (Tensor, int, float, bool, np.generic, np.ndarray)
