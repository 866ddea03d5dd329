"""Tensor: what the user holds. It wraps operations on nodes and computes nothing itself.

`lift` turns an operation on nodes into one on tensors. Methods that are operations come from the table of operations
(`weft.methods`); the class body has those that are not.
In-place operations and `x[i] = v` rebind the tensor to a new node; its views, and the tensor that it is a view of, see
the change (`weft.views`), nothing else does.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np

from weft.attributes import TensorAttributes
from weft.backends.base import Buffer, Device
from weft.boundary import entry
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
from weft.errors import DTypeError, GraphError, NoAxesError, ShapeError, WeftError, hide_frames, problem
from weft.graph import build
from weft.graph.node import Node, leaf, placeholder
from weft.methods import TensorMethods
from weft.ops import indexing, movement
from weft.ops.common import weak_dtype
from weft.ops.policy import with_policy
from weft.signatures import Described, parameter_names, users_signature
from weft.state import STATE, VERSION
from weft.views import WRITE_INSTEAD, base_of, link, same, writable_base, write_through

Bool: TypeAlias = bool  # which methods of `Tensor` are called, too
Int: TypeAlias = int
MOVEMENTS = frozenset({"reshape", "permute", "expand", "slice", "flip"})
MAX_DEPTH = 256  # longest chain of operations that is kept without computing it


# What PyTorch's parser takes for other names too, as NumPy's programs have them.
NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "x2": "other"}


def lift(op: Callable[..., Any], view: str = "", name: str = "") -> Callable[..., Any]:
    """The operation on tensors that `op` is on nodes. `name` is what it is registered as, unless that is its own name:
    by it `ops.policy` finds what autocast does to its operands.

    `view` marks those whose result is a view of their first operand: 'basic' for movement that writes go through,
    'reshape' for the same where PyTorch may have to copy, else a key of `WRITE_INSTEAD`.
    """
    known, rest = parameter_names(op)
    op = with_policy(name or op.__name__, op)

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs:
                if not known.issuperset(kwargs):
                    args, kwargs = _renamed(known, rest, args, kwargs)
                if kwargs.get("dtype") is not None:
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
                _explain(call.__name__, op, nodes, named, error)
                raise
            wrapped = _wrap(result, tensors, weak)
            if view:
                _link(wrapped, tensors[0], view, op, nodes, named)
            return wrapped
        except WeftError as error:
            hide_frames(error)
            raise

    call.__wrapped__ = Described(op, users_signature)  # type: ignore[assignment]
    call.is_entry = True  # type: ignore[attr-defined]  # errors of ours end at its caller: see `weft.boundary`
    return call


def with_tensor_policy(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """A function of tensors whose operands autocast casts by the table, under `name` or its own."""
    return with_policy(name or function.__name__, function, Tensor, Tensor.to)


def _renamed(known: frozenset[str], rest: str, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments under the names that the operation has: NumPy's translated, `dims=` for `*dims` in its place."""
    kwargs = {_own_name(known, key): value for key, value in kwargs.items() if key != "out" or value is not None}
    if rest in kwargs:
        first = () if args else (kwargs.pop("input"),)
        args = (*args, *first, kwargs.pop(rest))
    return args, kwargs


def _own_name(known: frozenset[str], key: str) -> str:
    other = NUMPY_NAMES.get(key, key)
    return key if key in known or other not in known else other


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


def _explain(who: str, op: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], error: Exception) -> None:
    """Raise a better error where arguments do not fit the signature, or one should have been a tensor."""
    if isinstance(error, WeftError):
        return
    try:
        inspect.signature(op).bind(*args, **named)
    except TypeError as reason:
        raise problem(DTypeError, who, f"other arguments ({reason})", f"{who}{users_signature(op)}") from None
    given = {**dict(zip(op.__annotations__, args, strict=False)), **named}
    for name, value in given.items():
        wanted = op.__annotations__.get(name)
        kind = "tensor" if isinstance(value, Node) else type(value).__name__
        if wanted == "Node" and kind != "tensor":
            expected, mend = "a tensor", "convert it with weft.tensor" if value is not None else ""
        elif wanted == "Sequence[Node]" and kind == "tensor":
            expected, mend = "a list of tensors", "put it into a list"
        elif wanted == "Sequence[Node]" and any(not isinstance(one, Node) for one in value):
            kind = " and ".join(dict.fromkeys(type(one).__name__ for one in value if not isinstance(one, Node)))
            name, expected, mend = f"{name} with elements", "a list of tensors", "leave the others out"
        else:
            continue
        raise problem(DTypeError, who, f"{name} of type {kind}", expected, mend) from None


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
        fix = "convert it with array.astype first"
        if dtype.kind in "USO":
            fix += "; texts become numbers with np.unique(array, return_inverse=True)[1]"
        raise problem(DTypeError, who, f"an array of {dtype}", expected, fix)
    return known


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
        if not self.ndim:
            raise problem(NoAxesError, "iter", "a scalar tensor", "at least one axis", "use x.item()")
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
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf that requires one, or of these `inputs` alone. See
        `weft.autograd.backward`."""
        from weft.autograd import backward

        backward(self, gradient, retain_graph, create_graph, inputs)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Any:
        """Call `hook(gradient)` whenever `backward()` or `grad` has the gradient of this tensor. What it returns,
        unless that is None, is the gradient from there on. The handle that is returned has `remove()`.

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

        The tensor itself, where it is as asked for and `copy` is not True. `non_blocking` changes nothing: work is
        queued anyway, and a value waits for it when it is read.

        >>> weft.ones(2).to("cpu", weft.int8)
        tensor([1, 1], dtype=weft.int8)
        """
        dtype, device, copy = destination(args, kwargs)
        result = self if dtype is None or dtype is self.dtype else self.cast(dtype)
        result = result if device is None else result._moved(device)
        return result.clone() if copy and result is self else result

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

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Tensor:
        """On an NVIDIA GPU: the first, or the one of that number or name."""
        return self._moved("cuda" if device is None else device)

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

    @property
    @entry
    def T(self) -> Tensor:
        """The transpose of a matrix."""
        return self.t()

    @property
    @entry
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return _matrix_transpose(self)

    @property
    @entry
    def H(self) -> Tensor:
        """The transpose of a matrix, since numbers are real."""
        return self.t()

    @property
    @entry
    def mH(self) -> Tensor:
        """The last two axes exchanged, since numbers are real."""
        return _matrix_transpose(self)

    def contiguous(self) -> Tensor:
        """The tensor itself; of a view whose elements do not lie in order in the memory of its base, a copy."""
        if self._view is None or (self._requires_grad and self.is_leaf):
            return self
        node = self.node
        tensor = _wrap(node, [self], self.weak)
        link(tensor, self, node, same, (), {}).may_copy = True
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
_matrix_transpose = lift(movement.matrix_transpose, "basic")
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
