"""`lift` turns an operation on nodes into one on tensors: it unwraps the operands, wraps the result and links views.

Errors of an operation say which argument is wrong. Every operation is recorded through `lift`, so its lines are few.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DType, as_dtype
from weft.base.errors import DTypeError, WeftError, hide_frames, problem
from weft.core.host_arrays import from_host
from weft.core.signatures import Described, parameter_names, users_signature
from weft.core.tensor import Tensor, wrap_results
from weft.core.views import WRITE_INSTEAD, link
from weft.graph import build
from weft.graph.node import Node
from weft.ops import indexing
from weft.ops.common import weak_dtype
from weft.ops.policy import with_policy
from weft.plan.device import missing_dtype

MOVEMENTS = frozenset({"reshape", "permute", "expand", "slice", "flip"})
# NumPy's names of parameters, which PyTorch's parser accepts too.
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
                    args, kwargs = _rename_arguments(known, rest, args, kwargs)
                if kwargs.get("dtype") is not None:
                    kwargs = {**kwargs, "dtype": as_dtype(op.__name__, kwargs["dtype"])}
            tensors: list[Tensor] = []
            nodes = [unwrap(arg, tensors) for arg in args]
            named = {key: unwrap(value, tensors) for key, value in kwargs.items()} if kwargs else kwargs
            weak = False
            for tensor in tensors:
                weak = weak or tensor.weak
            if weak and (strong := [tensor for tensor in tensors if not tensor.weak]):
                weak = False
                nodes = [unwrap(arg, [], strong[0].dtype) for arg in args]
                named = {key: unwrap(value, [], strong[0].dtype) for key, value in kwargs.items()}
            if kwargs and type(named.get("dtype")) is DType and tensors:
                _check_dtype(op.__name__, named["dtype"], tensors[0])
            try:
                result = op(*nodes, **named)
            except (AttributeError, TypeError) as error:
                _raise_explained(call.__name__, op, nodes, named, error)
                raise
            wrapped = wrap_results(result, tensors, weak)
            if view:
                _link_views(wrapped, tensors[0], view, op, nodes, named)
            return wrapped
        except WeftError as error:
            hide_frames(error)
            raise

    call.__wrapped__ = Described(op, users_signature)  # type: ignore[assignment]
    call.is_entry = True  # type: ignore[attr-defined]  # errors of ours end at its caller: see `weft.core.boundary`
    return call


def with_tensor_policy(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """A function of tensors whose operands autocast casts by the table, under `name` or its own."""
    return with_policy(name or function.__name__, function, Tensor, Tensor.to)


def _check_dtype(who: str, dtype: DType, operand: Tensor) -> None:
    """Raise where the result is to have a dtype that the device of an operand does not have."""
    if dtype not in operand.device.dtypes:
        raise missing_dtype(who, dtype, operand.device)


def _rename_arguments(
    known: frozenset[str], rest: str, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Arguments under the names that the operation has: NumPy's translated, `dims=` for `*dims` in its place."""
    kwargs = {_own_name(known, key): value for key, value in kwargs.items() if key != "out" or value is not None}
    if rest in kwargs:
        first = () if args else (kwargs.pop("input"),)
        args = (*args, *first, kwargs.pop(rest))
    return args, kwargs


def _own_name(known: frozenset[str], key: str) -> str:
    other = NUMPY_NAMES.get(key, key)
    return key if key in known or other not in known else other


def _link_views(
    wrapped: Any, source: Tensor, kind: str, op: Callable[..., Any], nodes: list[Any], named: Mapping[str, Any]
) -> None:
    """Make the results of a movement views of its source."""
    if nodes:
        node, rest = nodes[0], tuple(nodes[1:])
    else:
        first = next(key for key, value in named.items() if isinstance(value, Node))
        node, rest, named = named[first], (), {key: value for key, value in named.items() if key != first}
    if op is indexing.index and _has_index_tensor(rest[0]):
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


def _has_index_tensor(key: Any) -> bool:
    """Whether an index expression has tensors with axes: its result is a copy, not a view."""
    return any(isinstance(item, Node) and item.shape for item in (key if type(key) is tuple else (key,)))


def _raise_explained(
    who: str, op: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], error: Exception
) -> None:
    """Raise a better error where arguments do not fit the signature, or one should have been a tensor."""
    if isinstance(error, WeftError):
        return
    try:
        inspect.signature(op).bind(*args, **named)
    except TypeError as reason:
        raise problem(DTypeError, who, f"other arguments ({reason})", f"{who}{users_signature(op)}") from None
    given = {**dict(zip(op.__annotations__, args, strict=False)), **named}
    for name, value in given.items():
        expected_type = op.__annotations__.get(name)
        kind = "tensor" if isinstance(value, Node) else type(value).__name__
        if expected_type == "Node" and kind != "tensor":
            expected, fix = "a tensor", "convert it with weft.tensor" if value is not None else ""
        elif expected_type == "Sequence[Node]" and kind == "tensor":
            expected, fix = "a list of tensors", "put it into a list"
        elif expected_type == "Sequence[Node]" and any(not isinstance(one, Node) for one in value):
            kind = " and ".join(dict.fromkeys(type(one).__name__ for one in value if not isinstance(one, Node)))
            name, expected, fix = f"{name} with elements", "a list of tensors", "leave the others out"
        else:
            continue
        raise problem(DTypeError, who, f"{name} of type {kind}", expected, fix) from None


def unwrap(arg: Any, tensors: list[Tensor], partner: DType | None = None) -> Any:
    """Nodes for tensors, also inside lists; Python numbers for NumPy's. `partner` is what a weak tensor adapts to."""
    if isinstance(arg, Tensor):
        tensors.append(arg)
        if partner is not None and arg.weak:
            return build.cast(arg.node, weak_dtype(arg.dtype.kind, partner))
        return arg.node
    kind = type(arg)
    if kind is tuple or kind is list:
        return kind(unwrap(one, tensors, partner) for one in arg)
    if isinstance(arg, np.generic):
        return arg.item()
    if isinstance(arg, np.ndarray):
        return from_host(arg, tensors[0].device if tensors else None)
    return arg
