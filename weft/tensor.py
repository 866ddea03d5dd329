"""Tensor: what the user holds. It wraps operations on nodes and computes nothing itself.

`lift` turns an operation on nodes into one on tensors; the class body below is the table of methods made with it.
In-place operations and `x[i] = v` rebind the tensor to a new node; its views, and the tensor that it is a view of, see
the change (`weft.views`), nothing else does.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.base import Buffer, Device
from weft.cell import TensorCell, evaluate
from weft.cell import take_consumed as take_consumed
from weft.dtypes import (
    ALL,
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
from weft.dtypes import from_numpy as dtype_from_numpy
from weft.errors import DTypeError, GraphError, ShapeError, WeftError, hide_frames, problem
from weft.graph import build
from weft.graph.node import Node, leaf, placeholder
from weft.ops import (
    activation,
    arrange,
    elementwise,
    indexing,
    linalg,
    movement,
    products,
    reduce,
    scans,
    sorting,
    windows,
)
from weft.ops import scatter as scatter_ops
from weft.ops.common import weak_dtype
from weft.state import STATE, VERSION
from weft.views import WRITE_INSTEAD, base_of, link, same, writable_base, write_through

MOVEMENTS = frozenset({"reshape", "permute", "expand", "slice", "flip"})
MAX_DEPTH = 256  # longest chain of operations that is kept without computing it


# PyTorch's names of operands, where operations have short ones: `weft.add(input=x, other=y)`.
OPERANDS = {
    "input": ("x", "a", "values"), "other": ("b",), "exponent": ("b",), "mat2": ("b",), "vec": ("b",), "vec2": ("b",),
    "tensor": ("b", "x"), "tensor1": ("a",), "tensor2": ("b",), "shape": ("size",),
}  # fmt: skip


def lift(op: Callable[..., Any], view: str = "") -> Callable[..., Any]:
    """The operation on tensors that `op` is on nodes.

    `view` marks those whose result is a view of their first operand: 'basic' for movement that writes go through,
    'reshape' for the same where PyTorch may have to copy, else a key of `WRITE_INSTEAD`.
    """

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if not kwargs.keys().isdisjoint(OPERANDS):
                kwargs = {_own_name(op, key): value for key, value in kwargs.items()}
            if kwargs and kwargs.get("dtype") is not None:
                kwargs = {**kwargs, "dtype": as_dtype(op.__name__, kwargs["dtype"])}
            tensors: list[Tensor] = []
            nodes = [_unwrap(arg, tensors) for arg in args]
            named = {key: _unwrap(value, tensors) for key, value in kwargs.items()} if kwargs else kwargs
            weak = False
            for tensor in tensors:
                weak = weak or tensor.weak
            if weak and (strong := [tensor for tensor in tensors if not tensor.weak]):
                weak = False
                nodes = [_unwrap(arg, [], strong[0].dtype) for arg in args]
                named = {key: _unwrap(value, [], strong[0].dtype) for key, value in kwargs.items()}
            try:
                result = op(*nodes, **named)
            except (AttributeError, TypeError) as error:
                _explain(op, nodes, named, error)
                raise
            wrapped = _wrap(result, tensors, weak)
            if view:
                _link(wrapped, tensors[0], view, op, nodes, named)
            return wrapped
        except WeftError as error:
            hide_frames(error)
            raise

    call.is_entry = True  # type: ignore[attr-defined]  # errors of ours end at its caller: see `weft.boundary`
    return call


def _link(
    wrapped: Any, source: Tensor, kind: str, op: Callable[..., Any], nodes: list[Any], named: Mapping[str, Any]
) -> None:
    """Make the results of a movement views of its source."""
    if nodes:
        node, rest = nodes[0], tuple(nodes[1:])
    else:
        first = next(key for key, value in named.items() if isinstance(value, Node))
        node, rest, named = named[first], (), {key: value for key, value in named.items() if key != first}
    if op is indexing.index and _picks(rest[0]):
        return
    if node.op in MOVEMENTS and hasattr(node, "_hooks"):
        _derive_from(node, wrapped, op, rest, named)
    if type(wrapped) is not Tensor:
        for position, result in enumerate(wrapped):
            link(result, source, node, op, rest, named).position = position
        return
    view = link(wrapped, source, node, op, rest, named)
    if kind == "reshape":
        view.may_copy = view.parent is not None
    elif kind in WRITE_INSTEAD and not (kind == "expand" and wrapped.numel() == node.size):
        view.blocked = view.blocked or kind


def _derive_from(node: Node, wrapped: Any, op: Callable[..., Any], rest: tuple, named: Mapping[str, Any]) -> None:
    """Let movements of `node`, which has hooks, have it in their history: nodes that undo each other (a reshape and the
    one back) are merged when they are made. The compiler merges them later."""
    for position, view in enumerate([wrapped] if type(wrapped) is Tensor else list(wrapped)):
        found = view._node
        while found is not node and found.op in MOVEMENTS:
            found = found.srcs[0]
        if found is not node:
            moved = op(build.variable(node), *rest, **named)
            view._show(moved if type(wrapped) is Tensor else moved[position])


def _picks(key: Any) -> bool:
    """Whether an index expression has tensors with axes: its result is a copy, not a view."""
    return any(isinstance(item, Node) and item.shape for item in (key if type(key) is tuple else (key,)))


def _own_name(op: Callable[..., Any], key: str) -> str:
    """What `op` calls the parameter that PyTorch calls `key`."""
    known = op.__annotations__
    return key if key in known else next((name for name in OPERANDS.get(key, ()) if name in known), key)


def _explain(op: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], error: Exception) -> None:
    """Raise a better error where an operation stumbled over an argument that should have been a tensor."""
    if isinstance(error, WeftError):
        return
    given = {**dict(zip(op.__annotations__, args, strict=False)), **named}
    for name, value in given.items():
        wanted = op.__annotations__.get(name)
        kind = "tensor" if isinstance(value, Node) else type(value).__name__
        if wanted == "Node" and kind != "tensor":
            expected, mend = "a tensor", "convert it with weft.tensor" if value is not None else ""
        elif wanted == "Sequence[Node]" and kind == "tensor":
            expected, mend = "a list of tensors", "put it into a list"
        else:
            continue
        raise problem(DTypeError, op.__name__, f"{name} of type {kind}", expected, mend) from None


def _unwrap(arg: Any, tensors: list[Tensor], partner: DType | None = None) -> Any:
    """Nodes for tensors, also inside lists; Python numbers for NumPy's. `partner` is what a weak tensor adapts to."""
    if isinstance(arg, Tensor):
        tensors.append(arg)
        if partner is not None and arg.weak:
            return build.cast(arg.node, weak_dtype(arg.dtype.kind, partner))
        return arg.node
    kind = type(arg)
    if kind is tuple or kind is list:
        return kind(_unwrap(one, tensors, partner) for one in arg)
    if isinstance(arg, np.generic):
        return arg.item()
    if isinstance(arg, np.ndarray):
        return from_host(arg, tensors[0].device if tensors else None)
    return arg


def _wrap(result: Any, tensors: list[Tensor], weak: bool) -> Any:
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
    parts = [_wrap(part, tensors, weak) for part in result]
    return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)


def _distinct(node: Node, tensors: list[Tensor]) -> Node:
    """A node for a result that requires grad, where another tensor has `node`. What equals an operand (`clone`) has a
    gradient of its own. The same operation on the same operands is one value with one gradient, unless that has hooks,
    which are for the other tensor."""
    for tensor in tensors:
        if tensor.node is node:
            return build.variable(node)
    return build.repeat(node) if hasattr(node, "_hooks") else node


def wrap_result(result: Any, tensors: list[Tensor]) -> Any:
    """Tensors for the nodes that an operation on `tensors` gave."""
    return _wrap(result, tensors, False)


def wrap(node: Node, requires_grad: bool = False) -> Tensor:
    """A tensor for the result of an operation. A chain that grew too long is computed now."""
    tensor = Tensor(node, requires_grad, is_leaf=not requires_grad)
    if node.depth > MAX_DEPTH and STATE.trace is None and node.buffer is None:
        evaluate([tensor])
    return tensor


def _reading(name: str) -> Callable[..., Any]:
    """A method whose result has a shape that depends on values: see `weft.dynamic`."""

    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        from weft import dynamic

        return getattr(dynamic, name)(self, *args, **kwargs)

    call.__name__, call.__doc__ = name, f"See `weft.{name}`."
    return call


def from_host(array: np.ndarray, device: str | Device | None = None, who: str = "from_numpy") -> Node:
    """A leaf node with the bytes of a NumPy array."""
    from weft.device import get

    place = get(device)
    dtype = known_dtype(who, array.dtype)
    slab = place.backend.place(np.ascontiguousarray(array))
    return leaf(Buffer(slab, 0, array.nbytes), array.shape, dtype, place)


def known_dtype(who: str, dtype: np.dtype) -> DType:
    """The Weft dtype of a NumPy dtype, or an error."""
    known = dtype_from_numpy(dtype)
    if known is None:
        expected = "one of " + ", ".join(one.name for one in ALL)
        raise problem(DTypeError, who, f"an array of {dtype}", expected, "convert it with array.astype first")
    return known


class Tensor(TensorCell):
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
        from weft.interop import numpy_operator

        return numpy_operator(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Outside of compiled functions, functions of NumPy get arrays with the values."""
        from weft.interop import numpy_function

        return numpy_function(function, args, kwargs)

    @staticmethod
    def _stand_in(
        shape: tuple[int, ...], dtype: DType, device: Device, requires_grad: bool, weak: bool = False
    ) -> Tensor:
        """What an argument is while a function is traced: a placeholder of the same form."""
        tensor = Tensor(placeholder(shape, dtype, device), requires_grad)
        tensor.weak = weak
        return tensor

    def __copy__(self) -> Tensor:
        from weft.copying import shallow_copy

        return shallow_copy(self)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        from weft.copying import deep_copy

        return deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        from weft.copying import reduce_tensor

        return reduce_tensor(self, protocol)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind(0))

    # ---- gradients ---------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad_now()

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

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

    def backward(
        self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf that requires one. See `weft.autograd.backward`."""
        from weft.autograd import backward

        backward(self, gradient, retain_graph, create_graph)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Any:
        """Call `hook(gradient)` whenever `backward()` or `grad` has the gradient of this tensor. What it returns, unless
        that is None, is the gradient from there on. The handle that is returned has `remove()`.

        >>> x = weft.ones(2, requires_grad=True)
        >>> handle = x.register_hook(lambda g: g * 10)
        >>> (x * 3).sum().backward()
        >>> x.grad
        tensor([30., 30.])
        """
        from weft.hooks import register_hook

        return register_hook(self, hook)

    def retain_grad(self) -> None:
        """Let `backward()` set `.grad` of this tensor, though it is the result of an operation."""
        from weft.hooks import retain_grad

        retain_grad(self)

    def detach(self) -> Tensor:
        """A view of the whole tensor through which no gradient flows."""
        node = self.node
        tensor = wrap(build.stop_gradient(node))
        tensor.weak = self.weak
        link(tensor, self, node, build.stop_gradient, (), {}).is_detached = True
        return tensor

    # ---- other dtypes and devices ------------------------------------------------------------------------------

    def to(
        self, target: DTypeLike | Device | None = None, *, dtype: DTypeLike | None = None, device: Any = None
    ) -> Tensor:
        """In another dtype, on another device, or both. A dtype may be given as NumPy's or by its name."""
        if isinstance(target, Device) or (isinstance(target, str) and not is_dtype_name(target)):
            device = target
        elif target is not None:
            dtype = target
        dtype = None if dtype is None else as_dtype("to", dtype)
        result = self if dtype is None or dtype is self.dtype else self.cast(dtype)
        return result if device is None else result._moved(device)

    def _moved(self, device: str | Device) -> Tensor:
        from weft.device import get

        place = get(device)
        if place is self.device:
            return self
        if STATE.trace is not None:
            given = f"a move from {self.device} to {place} inside {STATE.trace.where}"
            raise problem(
                GraphError, "to", given, "one device in a compiled function", "move arguments before the call"
            )
        if not (self._requires_grad and STATE.grad_enabled):
            return Tensor(self._copied_to(place))
        from weft.function import moved

        return moved(self, place)

    def _copied_to(self, place: Device) -> Node:
        """The value on another device: from GPU to GPU of one kind directly, else through the host."""
        if place.kind != self.device.kind:
            return from_host(self.numpy(), place)
        from weft.compiler.cells import steady_copy

        node = self.node
        evaluate([self])
        slab = place.backend.receive(steady_copy(node))
        return leaf(Buffer(slab, 0, node.nbytes), node.shape, node.dtype, place)

    def cpu(self) -> Tensor:
        """On the CPU."""
        return self._moved("cpu")

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
        if value.shape != self.shape:
            raise problem(ShapeError, who, f"a result of shape {value.shape}", f"that of the tensor, {self.shape}")
        if value.dtype.category > self.dtype.category:
            given = f"a result of {value.dtype.name} for a {self.dtype.name} tensor"
            raise problem(DTypeError, who, given, "a dtype that fits", "cast the operand first")
        node = build.cast(value.node, self.dtype)
        if base is not None:
            base._assign_window(lambda: write_through(self, base, node, value._requires_grad))
            whole = base._node
            if STATE.trace is None and whole is not None and whole.buffer is None and whole.depth > MAX_DEPTH:
                evaluate([base])
            return self
        if self._requires_grad and not STATE.grad_enabled:
            node = build.stop_gradient(node) if self.is_leaf else build.surrogate(node, self.node)
        elif not self._requires_grad or not self.is_leaf:
            self._requires_grad, self.is_leaf = value._requires_grad, not value._requires_grad
        self._assign(node)
        self._consumed, self._owned = False, None
        return self

    def __getitem__(self, key: Any) -> Tensor:
        return _index(self, _plain_key(self, key, False))

    def __setitem__(self, key: Any, value: Any) -> None:
        if _is_item(self, key, value):
            return

        def assign() -> None:
            self._replace("x[index] = value", _set_index(self, _plain_key(self, key, True), value))

        if self._view is not None or key is Ellipsis or (type(key) is slice and key == slice(None)):
            assign()
        else:
            self._assign_window(assign)

    def copy_(self, source: Any) -> Tensor:
        """Take the value of `source`, broadcast and cast."""
        return self._replace("copy_", _set_index(self, Ellipsis, source))

    def fill_(self, value: Any) -> Tensor:
        """Take one number everywhere."""
        return self._replace("fill_", _set_index(self, Ellipsis, value))

    def zero_(self) -> Tensor:
        """Become zeros."""
        return self.fill_(0)

    def _in_place(name: str) -> Callable[..., Tensor]:  # type: ignore[misc]  # runs while the class is made
        def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return self._replace(name + "_", getattr(self, name)(*args, **kwargs))

        call.__name__, call.__doc__ = name + "_", f"`{name}`, in place."
        return call

    def _augmented(name: str) -> Callable[..., Tensor]:  # type: ignore[misc]
        def call(self: Tensor, other: Any) -> Tensor:
            return self._replace(name + "_", getattr(self, name)(other))

        return call

    add_, sub_, mul_, div_ = _in_place("add"), _in_place("sub"), _in_place("mul"), _in_place("div")
    pow_, clamp_, neg_, sqrt_ = _in_place("pow"), _in_place("clamp"), _in_place("neg"), _in_place("sqrt")
    addcmul_, addcdiv_, lerp_ = _in_place("addcmul"), _in_place("addcdiv"), _in_place("lerp")
    exp_, relu_, masked_fill_ = _in_place("exp"), _in_place("relu"), _in_place("masked_fill")
    index_put_, put_, masked_scatter_ = _in_place("index_put"), _in_place("put"), _in_place("masked_scatter")
    __iadd__, __isub__, __imul__ = _augmented("add"), _augmented("sub"), _augmented("mul")
    __itruediv__, __ifloordiv__, __imod__ = _augmented("div"), _augmented("floor_divide"), _augmented("remainder")
    __ipow__, __iand__, __ior__ = _augmented("pow"), _augmented("bitwise_and"), _augmented("bitwise_or")
    __ixor__, __ilshift__ = _augmented("bitwise_xor"), _augmented("bitwise_left_shift")
    __irshift__ = _augmented("bitwise_right_shift")

    # ---- operations, lifted from nodes -------------------------------------------------------------------------

    cast = lift(elementwise.cast)
    add = __add__ = __radd__ = lift(elementwise.add)
    sub = __sub__ = lift(elementwise.sub)
    __rsub__ = lift(elementwise.rsub)
    mul = __mul__ = __rmul__ = lift(elementwise.mul)
    div = __truediv__ = lift(elementwise.div)
    __rtruediv__ = lift(elementwise.rdiv)
    floor_divide = __floordiv__ = lift(elementwise.floor_divide)
    __rfloordiv__ = lift(elementwise.rfloor_divide)
    remainder = __mod__ = lift(elementwise.remainder)
    __rmod__ = lift(elementwise.rremainder)
    fmod = lift(elementwise.fmod)
    pow = __pow__ = lift(elementwise.pow)
    __rpow__ = lift(elementwise.rpow)
    maximum, minimum = lift(elementwise.maximum), lift(elementwise.minimum)
    addcmul, addcdiv, lerp = lift(elementwise.addcmul), lift(elementwise.addcdiv), lift(elementwise.lerp)

    lt = __lt__ = lift(elementwise.lt)
    le = __le__ = lift(elementwise.le)
    gt = __gt__ = lift(elementwise.gt)
    ge = __ge__ = lift(elementwise.ge)
    eq, ne = lift(elementwise.eq), lift(elementwise.ne)
    logical_and, logical_or = lift(elementwise.logical_and), lift(elementwise.logical_or)
    logical_xor, logical_not = lift(elementwise.logical_xor), lift(elementwise.logical_not)
    bitwise_and = __and__ = __rand__ = lift(elementwise.bitwise_and)
    bitwise_or = __or__ = __ror__ = lift(elementwise.bitwise_or)
    bitwise_xor = __xor__ = __rxor__ = lift(elementwise.bitwise_xor)
    bitwise_left_shift = __lshift__ = lift(elementwise.bitwise_left_shift)
    bitwise_right_shift = __rshift__ = lift(elementwise.bitwise_right_shift)
    bitwise_not = __invert__ = lift(elementwise.bitwise_not)
    isnan, isinf, isfinite = lift(elementwise.isnan), lift(elementwise.isinf), lift(elementwise.isfinite)
    masked_fill, clamp = lift(elementwise.masked_fill), lift(elementwise.clamp)

    neg = __neg__ = lift(elementwise.neg)
    abs = __abs__ = lift(elementwise.abs)
    sign, square, reciprocal = lift(elementwise.sign), lift(elementwise.square), lift(elementwise.reciprocal)
    exp, exp2, expm1 = lift(elementwise.exp), lift(elementwise.exp2), lift(elementwise.expm1)
    log, log2, log10, log1p = (
        lift(op) for op in (elementwise.log, elementwise.log2, elementwise.log10, elementwise.log1p)
    )
    sqrt, rsqrt, erf = lift(elementwise.sqrt), lift(elementwise.rsqrt), lift(elementwise.erf)
    sin, cos, tan, tanh = (lift(op) for op in (elementwise.sin, elementwise.cos, elementwise.tan, elementwise.tanh))
    floor, ceil, trunc, round = (
        lift(op) for op in (elementwise.floor, elementwise.ceil, elementwise.trunc, elementwise.round)
    )
    relu, sigmoid = lift(activation.relu), lift(activation.sigmoid)
    softmax, log_softmax = lift(activation.softmax), lift(activation.log_softmax)

    sum, mean, prod = lift(reduce.sum), lift(reduce.mean), lift(reduce.prod)
    var, std, logsumexp = lift(reduce.var), lift(reduce.std), lift(reduce.logsumexp)
    max, min, amax, amin = lift(reduce.max), lift(reduce.min), lift(reduce.amax), lift(reduce.amin)
    argmax, argmin = lift(reduce.argmax), lift(reduce.argmin)
    any, all, count_nonzero = lift(reduce.any), lift(reduce.all), lift(reduce.count_nonzero)

    cumsum, cumprod, logcumsumexp = lift(scans.cumsum), lift(scans.cumprod), lift(scans.logcumsumexp)
    cummax, cummin, diff = lift(scans.cummax), lift(scans.cummin), lift(scans.diff)
    sort, argsort, msort = lift(sorting.sort), lift(sorting.argsort), lift(sorting.msort)
    topk, kthvalue, median = lift(sorting.topk), lift(sorting.kthvalue), lift(sorting.median)
    histc = lift(sorting.histc)
    nonzero, argwhere, masked_select = _reading("nonzero"), _reading("argwhere"), _reading("masked_select")
    unique, unique_consecutive, bincount = _reading("unique"), _reading("unique_consecutive"), _reading("bincount")

    reshape, flatten = lift(movement.reshape, "reshape"), lift(movement.flatten, "reshape")
    view, unflatten = lift(movement.reshape, "basic"), lift(movement.unflatten, "basic")
    permute, transpose = lift(movement.permute, "basic"), lift(movement.transpose, "basic")
    t, movedim = lift(movement.t, "basic"), lift(movement.movedim, "basic")
    expand, broadcast_to = lift(movement.expand, "expand"), lift(movement.broadcast_to, "expand")
    squeeze, unsqueeze = lift(movement.squeeze, "basic"), lift(movement.unsqueeze, "basic")
    split, chunk, unbind = lift(movement.split, "basic"), lift(movement.chunk, "basic"), lift(movement.unbind, "basic")
    flip, roll, repeat, tile = (lift(op) for op in (movement.flip, movement.roll, movement.repeat, movement.tile))
    tril, triu = lift(movement.tril), lift(movement.triu)
    unfold = lift(windows.unfold_axis, "unfold")
    index_select, take, put = lift(indexing.index_select), lift(indexing.take), lift(indexing.put)
    index_put, masked_scatter = lift(indexing.index_put), lift(indexing.masked_scatter)
    gather, take_along_dim = lift(scatter_ops.gather), lift(scatter_ops.take_along_dim)
    scatter, scatter_add = lift(scatter_ops.scatter), lift(scatter_ops.scatter_add)
    scatter_reduce, index_add = lift(scatter_ops.scatter_reduce), lift(scatter_ops.index_add)
    index_copy, index_fill = lift(scatter_ops.index_copy), lift(scatter_ops.index_fill)

    diagonal, diag_embed, diag = lift(arrange.diagonal, "diagonal"), lift(arrange.diag_embed), lift(arrange.diag)
    trace, rot90, fliplr, flipud = (lift(op) for op in (arrange.trace, arrange.rot90, arrange.fliplr, arrange.flipud))
    swapaxes, narrow = lift(arrange.swapaxes, "basic"), lift(arrange.narrow, "basic")
    select, tensor_split = lift(arrange.select, "basic"), lift(arrange.tensor_split, "basic")
    repeat_interleave = _reading("repeat_interleave")
    tensordot, inner, kron = lift(products.tensordot), lift(products.inner), lift(products.kron)
    cross, vander, norm = lift(products.cross), lift(products.vander), lift(products.norm)
    addmm, addmv, addr = lift(products.addmm), lift(products.addmv), lift(products.addr)
    baddbmm, addbmm = lift(products.baddbmm), lift(products.addbmm)
    matrix_power = lift(products.matrix_power)

    matmul = __matmul__ = lift(linalg.matmul)
    __rmatmul__ = lift(linalg.rmatmul)
    mm, bmm, mv = lift(linalg.mm), lift(linalg.bmm), lift(linalg.mv)
    dot, outer = lift(linalg.dot), lift(linalg.outer)

    T = property(lift(movement.t, "basic"), doc="The transpose of a matrix.")
    mT = property(lift(movement.matrix_transpose, "basic"), doc="The last two axes exchanged.")

    def clone(self) -> Tensor:
        """The same value in a tensor of its own; gradients pass."""
        return _wrap(self.node, [self], self.weak)

    def contiguous(self) -> Tensor:
        """The tensor itself; of a view whose elements do not lie in order in the memory of its base, a copy."""
        if self._view is None or (self._requires_grad and self.is_leaf):
            return self
        node = self.node
        tensor = _wrap(node, [self], self.weak)
        link(tensor, self, node, same, (), {}).may_copy = True
        return tensor

    def expand_as(self, other: Tensor) -> Tensor:
        """The tensor broadcast to the shape of `other`."""
        return self.expand(other.shape)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self.eq(other) if isinstance(other, _COMPARABLE) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self.ne(other) if isinstance(other, _COMPARABLE) else NotImplemented


_COMPARABLE = (Tensor, int, float, bool, np.generic, np.ndarray)
_index = lift(indexing.index, "basic")
_set_index = lift(indexing.set_index)


def _is_item(x: Tensor, key: Any, value: Any) -> bool:
    """Whether `value` is `x[key]` itself: `x[key] += y` has written it already when it is assigned."""
    view = value._view if isinstance(value, Tensor) else None
    if view is None or view.op is not indexing.index or view.parent is not x._view:
        return False
    if x._view is None and (x._aliases is None or view.aliases is not x._aliases()):
        return False
    items, written = (one if type(one) is tuple else (one,) for one in (_unwrap(key, []), view.args[0]))
    return len(items) == len(written) and all(
        one is other or (type(one) is type(other) and not isinstance(one, (Node, np.ndarray)) and one == other)
        for one, other in zip(items, written, strict=True)
    )


def _plain_key(x: Tensor, key: Any, written: bool) -> Any:
    """An index expression without lists and bool masks, which become tensors of integers. One mask alone may stay where
    it says what is written."""
    items = key if type(key) is tuple else (key,)
    for item in items:
        if isinstance(item, (list, range, np.ndarray)) or (isinstance(item, Tensor) and item.dtype is bool_):
            break
    else:
        return key
    if written and isinstance(key, Tensor):
        return key
    from weft.dynamic import known_masks

    listed = [Tensor(from_host(np.asarray(item), x.device)) if _is_list(item) else item for item in items]
    return listed[0] if written and len(listed) == 1 else known_masks(x, tuple(listed))


def _is_list(item: Any) -> bool:
    return isinstance(item, (list, range, np.ndarray))
