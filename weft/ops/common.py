"""What every operation shares: promotion, broadcasting, axes, and the errors for them.

An operand is a Node or a Python number. Numbers are weak: they take the tensor's dtype, except that a float meeting an
integer tensor makes the default dtype (float32) and an integer meeting a bool tensor makes int64. So are tensors
without axes beside ones that have some: they do not widen a dtype of their own category.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from weft.base.dtypes import DType, bool_, float32, int64, integer_bounds, promote
from weft.base.errors import DeviceError, DTypeError, RangeError, ShapeError, problem
from weft.base.state import SETTINGS
from weft.graph import build
from weft.graph.build import Number, Shape
from weft.graph.node import Node

Operand = Node | Number
Sizes = int | Sequence[int]  # one for all axes, or one for each


def weak_dtype(kind: str, dtype: DType) -> DType:
    """The dtype in which a weak value of `kind` ('b', 'i' or 'f') meets a tensor of `dtype`."""
    if kind == "f":
        return dtype if dtype.kind == "f" else SETTINGS.default_dtype
    return int64 if kind == "i" and dtype.kind == "b" else dtype


def number_kind(who: str, value: object) -> str:
    """'b', 'i' or 'f' for a Python number; an error for anything else."""
    for kind, types in (("b", bool), ("i", int), ("f", float)):
        if isinstance(value, types):
            return kind
    raise problem(
        DTypeError, who, f"a {type(value).__name__}", "a tensor or a Python number", "convert it with weft.tensor"
    )


def same_device(who: str, nodes: Sequence[Node]) -> Any:
    """The one device of `nodes`."""
    device = nodes[0].device
    for node in nodes:
        if node.device is not device:
            given = f"tensors on {device} and {node.device}"
            raise problem(DeviceError, who, given, "all on one device", "move one with .to(device)")
    return device


def result_dtype(who: str, operands: Sequence[Operand]) -> DType:
    """The dtype in which operands meet; at least one is a node."""
    dtype: DType | None = None
    for operand in operands:
        if isinstance(operand, Node):
            if dtype is not None and operand.dtype is not dtype:
                dtype = _mixed_dtype(who, [one for one in operands if isinstance(one, Node)])
                break
            dtype = operand.dtype
    assert dtype is not None
    for operand in operands:
        if not isinstance(operand, Node):
            dtype = weak_dtype(number_kind(who, operand), dtype)
    return dtype


def _mixed_dtype(who: str, nodes: Sequence[Node]) -> DType:
    """The dtype in which nodes meet. One without axes counts only where it is of a higher category (bool, integer,
    float) than all that have axes, as in PyTorch."""
    with_axes, without = ([node.dtype for node in nodes if bool(node.shape) is has_axes] for has_axes in (True, False))
    met = [functools.reduce(functools.partial(meeting_dtype, who), some) for some in (with_axes, without) if some]
    return met[0] if met[0].category >= met[-1].category else met[-1]


def meeting_dtype(who: str, a: DType, b: DType) -> DType:
    """The promotion of two dtypes, or an error where no dtype holds both."""
    dtype = promote(a, b)
    if dtype is None:
        given = f"{a.name} and {b.name} tensors"
        raise problem(DTypeError, who, given, "dtypes that one integer dtype can hold", "cast one with .to(dtype)")
    return dtype


def in_float32(op: Callable[..., Any]) -> Callable[..., Any]:
    """`op`, made of several nodes, computed in float32 where its tensors are 16-bit floats: one rounding, at its end.

    The result has the dtype in which the float tensors among the arguments meet.
    """

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        floats = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Node) and arg.dtype.kind == "f"]
        if not any(arg.dtype.is_16_bit for arg in floats):
            return op(*args, **kwargs)
        result = result_dtype(op.__name__, floats)
        value = op(*[_widen(arg) for arg in args], **{key: _widen(arg) for key, arg in kwargs.items()})
        return build.cast(value, result) if result.is_16_bit else value

    return call


def _widen(arg: Any) -> Any:
    return build.cast(arg, float32) if isinstance(arg, Node) and arg.dtype.is_16_bit else arg


def broadcast_shapes(who: str, shapes: Sequence[Shape]) -> Shape:
    """The shape in which `shapes` meet, by NumPy's rule."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1:
                if result[axis] not in (1, extent):
                    given = "shapes " + " and ".join(map(str, shapes))
                    raise problem(
                        ShapeError,
                        who,
                        given,
                        "shapes that broadcast: from the last axis on, equal or 1",
                        "reshape one of them",
                    )
                result[axis] = extent
    return tuple(result)


def meet(who: str, *operands: Operand, dtype: DType | None = None) -> tuple[Node, ...]:
    """Operands as nodes of one dtype (their promotion unless given), shape and device."""
    nodes = [operand for operand in operands if isinstance(operand, Node)]
    if not nodes:
        raise problem(DTypeError, who, "only Python numbers", "at least one tensor", "wrap a number with weft.tensor")
    device = same_device(who, nodes)
    target = dtype or result_dtype(who, operands)
    shape = broadcast_shapes(who, [node.shape for node in nodes])
    return tuple(spread(who, operand, shape, target, device) for operand in operands)


def spread(who: str, operand: Operand, shape: Shape, dtype: DType, device: Any) -> Node:
    """One operand in the dtype and shape that were found for all."""
    if isinstance(operand, Node):
        return build.expand_to(build.cast(operand, dtype), shape)
    return build.full(shape, fit_number(who, operand, dtype), dtype, device)


# Operations whose result, in the bits of a dtype, depends only on those bits of their operands. Numbers of up to 64
# bits wrap around for them, as in PyTorch: `bytes & 0xFF00`, `unsigned + -1`. For all others a number has to fit.
WRAPPING = frozenset({"add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"})


def side_of_range(value: object, dtype: DType) -> int:
    """1 for an int above the range of an integer dtype, -1 for one below it, else 0."""
    if not isinstance(value, int):
        return 0
    low, high = integer_bounds(dtype)
    return 1 if value > high else -1 if value < low else 0


def fit_number(who: str, value: Number, dtype: DType) -> Number:
    """`value`, checked against the range of an integer dtype."""
    if dtype.kind in "iu":
        low, high = integer_bounds(dtype)
        if not low <= value <= high:
            if who in WRAPPING and -(1 << 63) <= value < 1 << 64:
                return (value - low) % (1 << 8 * dtype.itemsize) + low
            raise problem(
                DTypeError,
                who,
                f"the number {value}",
                f"one that fits {dtype.name}",
                "cast the tensor to a wider dtype",
            )
    return value


def to_float(x: Node) -> Node:
    """`x` itself if it is a float, else in the default dtype, float32."""
    return x if x.dtype.kind == "f" else build.cast(x, SETTINGS.default_dtype)


def need_tensors(who: str, *operands: object) -> None:
    """For operations of which no operand may be a Python number, as in PyTorch."""
    for operand in operands:
        if not isinstance(operand, Node):
            expected = "tensors only"
            raise problem(DTypeError, who, f"a {type(operand).__name__}", expected, "convert it with weft.tensor")


def need_numbers(who: str, x: Node) -> None:
    if x.dtype is bool_:
        raise problem(DTypeError, who, "bool tensors", "numbers", "use & | ^ for logic, or cast with .int()")


def need_float(who: str, x: Node) -> None:
    if x.dtype.kind != "f":
        raise problem(DTypeError, who, f"a {x.dtype.name} tensor", "a float tensor", "convert it with .float()")


def need_integer(who: str, x: Node) -> None:
    if x.dtype.kind not in "iu":
        raise problem(DTypeError, who, f"a {x.dtype.name} tensor", "an integer tensor", "convert it with .long()")


def need_bits(who: str, x: Node) -> None:
    if x.dtype.kind == "f":
        raise problem(
            DTypeError, who, f"a {x.dtype.name} tensor", "a bool or integer tensor", "compare it or cast it first"
        )


def as_int(who: str, value: object, what: str) -> int:
    """`value` as a Python int, or an error that names `what` it should be."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise problem(DTypeError, who, f"{value!r} for the {what}", "an int") from None


def sizes(who: str, value: Sizes, rank: int, what: str, least: int = 1) -> Shape:
    """One int per axis, each at least `least`, from one for all or one for each."""
    given = list(value) if isinstance(value, (tuple, list)) else [value]
    found = tuple(as_int(who, one, what) for one in given)
    found = found * rank if len(found) == 1 else found
    if len(found) != rank or min(found) < least:
        expected = f"a whole number from {least} on, or {rank} of them"
        raise problem(RangeError, who, f"{what}={value!r}", expected)
    return found


def normal_axis(who: str, axis: int, rank: int) -> int:
    """`axis` counted from the front; negative ones count from the back. A scalar has axes 0 and -1, as in PyTorch."""
    axis, bound = as_int(who, axis, "axis"), max(rank, 1)
    if not -bound <= axis < bound:
        raise problem(
            ShapeError,
            who,
            f"axis {axis} for a tensor of rank {rank}",
            f"{-bound} to {bound - 1}",
            "count the axes of x.shape",
        )
    return axis % bound


def normal_axes(who: str, dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted axes, each once; None and () mean all of them."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(rank))
    given: list[Any] = list(dim) if isinstance(dim, (tuple, list)) else [dim]
    axes = [normal_axis(who, axis, rank) for axis in given]
    if len(set(axes)) != len(axes):
        raise problem(ShapeError, who, f"axes {tuple(given)}", "each axis once")
    return tuple(sorted(axes)) if rank else ()


def normal_shape(who: str, shape: Sequence[Any]) -> Shape:
    """A shape from `f(2, 3)` or `f((2, 3))`, as a tuple of ints."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = shape[0]
    return tuple(as_int(who, extent, "shape") for extent in shape)
