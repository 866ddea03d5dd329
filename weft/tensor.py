"""Tensor: the user's mutable cell. It holds a node and wraps operations; it computes nothing itself.

`lift` turns an operation on nodes into one on tensors; the class body below is the table of methods made with it. A
tensor's value is computed when it is read. Assigning (in-place operations, `x[i] = v`) rebinds the cell to a new node.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from weft.backends.base import Buffer, Device
from weft.dtypes import DType, bool_, float32, float64, int32, int64
from weft.errors import BufferError_, DTypeError, GraphError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node, leaf, placeholder
from weft.ops import activation, elementwise, indexing, linalg, movement, reduce
from weft.ops.common import weak_dtype
from weft.state import STATE, VERSION

MAX_DEPTH = 2000  # longest chain of operations that is kept without computing it

LEAVES: weakref.WeakKeyDictionary[Node, weakref.ref[Tensor]] = weakref.WeakKeyDictionary()
_consumed: list[weakref.ref[Tensor]] = []


def take_consumed() -> list[Tensor]:
    """The live tensors whose history a `backward()` used up and whose value nobody has read yet; the list is emptied.

    An optimizer evaluates them together with its update, so that reading the loss afterwards computes nothing twice.
    """
    alive = [tensor for ref in _consumed if (tensor := ref()) is not None]
    _consumed.clear()
    return [tensor for tensor in alive if tensor._node is not None and tensor._node.buffer is None]


def evaluate(tensors: Iterable[Tensor]) -> None:
    """Compute the values of several tensors as one program: `weft.eval(a, b)`."""
    tensors = list(tensors)
    if STATE.trace is not None:
        raise _inside_compile("eval()")
    nodes = [tensor.node for tensor in tensors]
    waiting = [node for node in nodes if node.buffer is None]
    if waiting:
        from weft.compiler.evaluate import evaluate as compute  # the compiler is loaded when a value is first needed

        compute(waiting)
    for tensor, node in zip(tensors, nodes, strict=True):
        tensor._settle(node)


def _inside_compile(who: str) -> Exception:
    given = "a tensor inside weft.compile, where values are not known yet"
    return problem(GraphError, who, given, "only operations on tensors", "return the tensor, or choose with weft.where")


def lift(op: Callable[..., Any], view: str = "") -> Callable[..., Any]:
    """The operation on tensors that `op` is on nodes. `view` marks movement, on whose result in-place is refused."""

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        nodes = [_unwrap(arg, tensors) for arg in args]
        named = {key: _unwrap(value, tensors) for key, value in kwargs.items()} if kwargs else kwargs
        weak = False
        for tensor in tensors:
            weak = weak or tensor.weak
        if weak:
            strong = [tensor for tensor in tensors if not tensor.weak]
            if strong:
                weak = False
                nodes = [_unwrap(arg, [], strong[0].dtype) for arg in args]
                named = {key: _unwrap(value, [], strong[0].dtype) for key, value in kwargs.items()}
        return _wrap(op(*nodes, **named), tensors, weak, view)

    return call


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


def _wrap(result: Any, tensors: list[Tensor], weak: bool, view: str) -> Any:
    if isinstance(result, Node):
        requires_grad = False
        if result.dtype.kind == "f":
            for tensor in tensors:
                if tensor._requires_grad:
                    requires_grad = True
                    break
        if requires_grad and not STATE.grad_enabled:
            result, requires_grad = build.stop_gradient(result), False
        tensor = wrap(result, requires_grad)
        tensor.weak = weak and not result.shape
        tensor._view = view
        return tensor
    parts = [_wrap(part, tensors, weak, view) for part in result]
    return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)


def wrap(node: Node, requires_grad: bool = False) -> Tensor:
    """A tensor for the result of an operation. A chain that grew too long is computed now."""
    tensor = Tensor(node, requires_grad, is_leaf=not requires_grad)
    if node.depth > MAX_DEPTH and STATE.trace is None and node.buffer is None:
        evaluate([tensor])
    return tensor


def from_host(array: np.ndarray, device: str | Device | None = None) -> Node:
    """A leaf node with the bytes of a NumPy array."""
    from weft.device import get

    place = get(device)
    dtype = _known_dtype("from_numpy", array.dtype)
    buffer = Buffer(place.backend.allocate(array.nbytes), 0, array.nbytes)
    place.backend.upload(buffer, np.ascontiguousarray(array).reshape(array.shape))
    return leaf(buffer, array.shape, dtype, place)


def _known_dtype(who: str, dtype: np.dtype) -> DType:
    from weft.dtypes import ALL, from_numpy

    known = from_numpy(dtype)
    if known is None:
        expected = "one of " + ", ".join(one.name for one in ALL)
        raise problem(DTypeError, who, f"an array of {dtype}", expected, "convert it with array.astype first")
    return known


class Tensor:
    """A value of some shape, dtype and device, computed when read. Made by `weft.tensor`, `weft.zeros`, ... and by
    operations, not by calling the class.

    >>> x = weft.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """

    __slots__ = (
        "__weakref__", "_buffer", "_consumed", "_form", "_grad", "_node", "_owned", "_requires_grad", "_view", "is_leaf", "name", "weak",
    )  # fmt: skip
    __array_ufunc__ = None  # so that NumPy leaves mixed expressions to us

    def __init__(self, node: Node | None, requires_grad: bool = False, is_leaf: bool = True):
        self._node = node
        self._requires_grad = requires_grad
        self._grad: Tensor | None = None
        self._buffer: Buffer | None = None  # set while a compiled function keeps the value in its own storage
        self._form: tuple[tuple[int, ...], DType] | None = None  # shape and dtype of what lies in `_buffer`
        self._consumed = False  # backward() has used up the history
        self._owned: Node | None = None  # the node registered in LEAVES for this tensor
        self._view = ""
        self.is_leaf = is_leaf
        self.name: str | None = None
        self.weak = False  # takes the dtype of its partner, as Python numbers do
        if STATE.trace is not None:
            STATE.trace.created(self)

    # ---- the cell ----------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The node that holds the value now. Reading it under gradients makes a leaf findable for `backward()`."""
        if STATE.trace is not None:
            node = STATE.trace.read(self)
        else:
            node = self._node
            if node is None:
                from weft.compiler.cells import expose

                node = expose(self)
        if self._requires_grad and STATE.grad_enabled and (self.is_leaf or self._consumed) and self._owned is not node:
            node = self._own(node)
        return node

    def _own(self, node: Node) -> Node:
        """Register a node that stands for this leaf alone, making one if the present node is shared."""
        owner = LEAVES.get(node)
        other = owner() if owner is not None else None
        if node.op not in ("buffer", "input", "variable") or (other is not None and other is not self):
            if not self._consumed:
                node = build.variable(node)
            if STATE.trace is not None:
                STATE.trace.write(self, node)
            else:
                self._node = node
        LEAVES[node] = weakref.ref(self)
        self._owned = node if STATE.trace is None else None
        return node

    def _assign(self, node: Node) -> None:
        """Rebind the cell."""
        if STATE.trace is not None:
            STATE.trace.write(self, node)
            return
        self._node = node
        if self._buffer is not None:
            VERSION.bump()

    def _settle(self, node: Node) -> None:
        """Once the value is known, forget a history that no gradient will need."""
        if self._node is node and node.srcs and (not self._requires_grad or self.is_leaf or self._consumed):
            self._node = leaf(node.buffer, node.shape, node.dtype, node.device)

    def _form_now(self) -> tuple[tuple[int, ...], DType, Device]:
        """Shape, dtype and device, without making or registering a node."""
        node = self._node if STATE.trace is None else STATE.trace.present(self)
        if node is not None:
            return node.shape, node.dtype, node.device
        assert self._form is not None and self._buffer is not None
        return (*self._form, self._buffer.slab.device)

    @staticmethod
    def _stand_in(
        shape: tuple[int, ...], dtype: DType, device: Device, requires_grad: bool, weak: bool = False
    ) -> Tensor:
        """What an argument is while a function is traced: a placeholder of the same form."""
        tensor = Tensor(placeholder(shape, dtype, device), requires_grad)
        tensor.weak = weak
        return tensor

    # ---- what it is --------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._form_now()[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        return self._form_now()[1]

    @property
    def device(self) -> Device:
        return self._form_now()[2]

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one extent of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise problem(ShapeError, "len", "a scalar tensor", "at least one axis", "use numel()")
        return self.shape[0]

    # ---- values ------------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """The value as a new NumPy array. Reading computes; inside weft.compile it raises."""
        if STATE.trace is not None:
            raise _inside_compile("numpy()/item()/bool()")
        evaluate([self])
        node = self._node
        assert node is not None
        if node.buffer.state != "live":
            given = f"a tensor whose storage was {node.buffer.state}"
            raise problem(BufferError_, "numpy()", given, "live storage", "clone() the tensor before it is given away")
        return node.device.backend.download(node.buffer, node.shape, node.dtype)

    def item(self) -> float | int | bool:
        """The one element as a Python number."""
        if self.numel() != 1:
            raise problem(ShapeError, "item()", f"shape {self.shape}", "one element", "use tolist() or reduce it first")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise problem(ShapeError, "bool()", f"shape {self.shape}", "one element", "use .any() or .all()")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise problem(DTypeError, "index", f"a {self.dtype.name} tensor as an int", "an integer tensor of one element")
        return int(self.item())

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        from weft.printing import text

        return text(self)

    # ---- gradients ---------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for gradients in this leaf, or no longer. Results computed before do not change."""
        if requires_grad == self._requires_grad:
            return self
        if not self.is_leaf:
            raise problem(GraphError, "requires_grad_", "the result of an operation", "a leaf", "use x.detach()")
        if requires_grad and self.dtype.kind != "f":
            raise problem(DTypeError, "requires_grad_", f"a {self.dtype.name} tensor", "a float tensor", "use x.float()")
        self._requires_grad = requires_grad
        if self._buffer is not None:
            VERSION.bump()
        if STATE.trace is None and self._node is not None:
            # a node of its own, so that what was computed from the old one stays apart
            old = self._node
            self._node = leaf(old.buffer, old.shape, old.dtype, old.device) if old.buffer else build.variable(build.stop_gradient(old))
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
            STATE.trace.touch_grad(self)
        if value is not None and (value.shape != self.shape or value.dtype is not self.dtype):
            given, expected = f"{value.dtype.name}{list(value.shape)}", f"{self.dtype.name}{list(self.shape)}"
            raise problem(ShapeError, "grad", given, expected)
        if (value is None) != (self._grad is None) and self._buffer is not None:
            VERSION.bump()
        self._grad = value

    def backward(self, gradient: Tensor | None = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf that requires one. See `weft.autograd.backward`."""
        from weft.autograd import backward

        backward(self, gradient, retain_graph, create_graph)

    def detach(self) -> Tensor:
        """The same value, cut off from its history."""
        tensor = wrap(build.stop_gradient(self.node))
        tensor._view, tensor.weak = "detach", self.weak
        return tensor

    # ---- other dtypes and devices ------------------------------------------------------------------------------

    def to(self, target: DType | str | Device | None = None, *, dtype: DType | None = None, device: Any = None) -> Tensor:
        """In another dtype, on another device, or both. Between devices the value passes through the host."""
        if isinstance(target, DType):
            dtype = target
        elif target is not None:
            device = target
        result = self if dtype is None or dtype is self.dtype else self.cast(dtype)
        return result if device is None else result._moved(device)

    def _moved(self, device: str | Device) -> Tensor:
        from weft.device import get

        place = get(device)
        if place is self.device:
            return self
        if self._requires_grad and STATE.grad_enabled:
            given = "a tensor that requires grad"
            raise problem(GraphError, "to(device)", given, "one that does not: gradients stay on a device", "use x.detach()")
        return Tensor(from_host(self.numpy(), place))

    def cpu(self) -> Tensor:
        """On the CPU."""
        return self._moved("cpu")

    def float(self) -> Tensor:  # noqa: A003
        """As float32."""
        return self.to(float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(float64)

    def int(self) -> Tensor:  # noqa: A003
        """As int32."""
        return self.to(int32)

    def long(self) -> Tensor:
        """As int64."""
        return self.to(int64)

    def bool(self) -> Tensor:  # noqa: A003
        """As bool: whether each element is not zero."""
        return self.to(bool_)

    def type_as(self, other: Tensor) -> Tensor:
        """In the dtype of `other`."""
        return self.to(other.dtype)

    # ---- assignment: in-place operations rebind the cell -------------------------------------------------------

    def _replace(self, who: str, value: Tensor) -> Tensor:
        """Rebind to the result of an in-place operation, after the checks that PyTorch makes too."""
        if self._requires_grad and self.is_leaf and STATE.grad_enabled:
            given = "a leaf that requires grad"
            raise problem(GraphError, who, given, "no in-place operation on it", "put it under weft.no_grad()")
        if self._view:
            given = f"the result of {self._view}(), which shares nothing with its source"
            raise problem(GraphError, who, given, "a tensor of its own", "write x = x + ..., or x[index] = value on the source")
        if value.shape != self.shape:
            raise problem(ShapeError, who, f"a result of shape {value.shape}", f"that of the tensor, {self.shape}")
        if value.dtype.rank > self.dtype.rank and value.dtype.kind != self.dtype.kind:
            given = f"a result of {value.dtype.name} for a {self.dtype.name} tensor"
            raise problem(DTypeError, who, given, "a dtype that fits", "cast the operand first")
        self._assign(build.cast(value.node, self.dtype))
        if not (self._requires_grad and self.is_leaf):
            self._requires_grad, self.is_leaf = value._requires_grad, not value._requires_grad
        self._consumed, self._owned = False, None
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        self._replace("x[index] = value", _set_index(self, key, value))

    def copy_(self, source: Any) -> Tensor:
        """Take the value of `source`, broadcast and cast."""
        return self._replace("copy_", _set_index(self, Ellipsis, source))

    def fill_(self, value: Any) -> Tensor:
        """Take one number everywhere."""
        return self._replace("fill_", _set_index(self, Ellipsis, value))

    def zero_(self) -> Tensor:
        """Become zeros."""
        return self.fill_(0)

    def set_(self, source: Tensor) -> Tensor:
        """Become `source` without the checks of the in-place operations, and without its history."""
        self._assign(build.stop_gradient(source.node))
        self._owned = None
        return self

    def _in_place(name: str) -> Callable[..., Tensor]:  # type: ignore[misc]  # runs while the class is made
        def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return self._replace(name + "_", getattr(self, name)(*args, **kwargs))

        call.__name__, call.__doc__ = name + "_", f"`{name}`, in place."
        return call

    def _augmented(name: str) -> Callable[..., Tensor]:  # type: ignore[misc]
        def call(self: Tensor, other: Any) -> Tensor:
            result = getattr(self, name)(other)
            return result if self._view == "index" else self._replace(name + "_", result)  # x[i] += v assigns afterwards

        return call

    add_, sub_, mul_, div_ = _in_place("add"), _in_place("sub"), _in_place("mul"), _in_place("div")
    pow_, clamp_, neg_, sqrt_ = _in_place("pow"), _in_place("clamp"), _in_place("neg"), _in_place("sqrt")
    addcmul_, addcdiv_, lerp_ = _in_place("addcmul"), _in_place("addcdiv"), _in_place("lerp")
    exp_, relu_, masked_fill_ = _in_place("exp"), _in_place("relu"), _in_place("masked_fill")
    __iadd__, __isub__, __imul__ = _augmented("add"), _augmented("sub"), _augmented("mul")
    __itruediv__, __ifloordiv__, __imod__ = _augmented("div"), _augmented("floor_divide"), _augmented("remainder")
    __ipow__, __iand__, __ior__ = _augmented("pow"), _augmented("bitwise_and"), _augmented("bitwise_or")

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
    log, log2, log10, log1p = (lift(op) for op in (elementwise.log, elementwise.log2, elementwise.log10, elementwise.log1p))
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

    reshape = lift(movement.reshape, "reshape")
    view = lift(movement.reshape, "view")
    permute, transpose = lift(movement.permute, "permute"), lift(movement.transpose, "transpose")
    t, movedim = lift(movement.t, "t"), lift(movement.movedim, "movedim")
    expand, expand_as = lift(movement.expand, "expand"), lift(movement.expand_as, "expand_as")
    broadcast_to = lift(movement.broadcast_to, "broadcast_to")
    squeeze, unsqueeze = lift(movement.squeeze, "squeeze"), lift(movement.unsqueeze, "unsqueeze")
    flatten, unflatten = lift(movement.flatten, "flatten"), lift(movement.unflatten, "unflatten")
    split, chunk, unbind = lift(movement.split, "split"), lift(movement.chunk, "chunk"), lift(movement.unbind, "unbind")
    flip, roll, repeat, tile = (lift(op) for op in (movement.flip, movement.roll, movement.repeat, movement.tile))
    tril, triu = lift(movement.tril), lift(movement.triu)
    __getitem__ = lift(indexing.index, "index")
    index_select = lift(indexing.index_select)

    matmul = __matmul__ = lift(linalg.matmul)
    __rmatmul__ = lift(linalg.rmatmul)
    mm, bmm, mv = lift(linalg.mm), lift(linalg.bmm), lift(linalg.mv)
    dot, outer = lift(linalg.dot), lift(linalg.outer)

    T = property(lift(movement.t, "T"), doc="The transpose of a matrix.")
    mT = property(lift(movement.matrix_transpose, "mT"), doc="The last two axes exchanged.")

    def clone(self) -> Tensor:
        """The same value in a tensor of its own; gradients pass."""
        return _wrap(self.node, [self], self.weak, "")

    def contiguous(self) -> Tensor:
        """The tensor itself: layouts are the compiler's business."""
        return self

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self.eq(other) if isinstance(other, _COMPARABLE) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self.ne(other) if isinstance(other, _COMPARABLE) else NotImplemented


_COMPARABLE = (Tensor, int, float, bool, np.generic, np.ndarray)
_set_index = lift(indexing.set_index)
