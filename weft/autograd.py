"""Gradients for users: `backward`, `grad`, `value_and_grad` and the switches `no_grad` and `enable_grad`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft.boundary import entry
from weft.cell import LEAVES, remember_consumed
from weft.errors import DTypeError, GraphError, ShapeError, problem
from weft.function import Function as Function
from weft.grad.engine import gradients, history
from weft.graph import build
from weft.graph.node import Node
from weft.state import STATE
from weft.tensor import Tensor
from weft.tree import flatten, unflatten


class _GradMode(contextlib.ContextDecorator):
    enabled: bool

    def __init__(self) -> None:
        self._outer: list[bool] = []

    def __enter__(self) -> None:
        self._outer.append(STATE.grad_enabled)
        STATE.grad_enabled = self.enabled

    def __exit__(self, *error: object) -> None:
        STATE.grad_enabled = self._outer.pop()


class no_grad(_GradMode):
    """Inside, results require no gradient: `with weft.no_grad(): ...`, or as a decorator.

    >>> x = weft.ones(1, requires_grad=True)
    >>> with weft.no_grad():
    ...     (x * 2).requires_grad
    False
    """

    enabled = False


class enable_grad(_GradMode):
    """Inside, gradients are recorded even within `no_grad`."""

    enabled = True


def is_grad_enabled() -> bool:
    """Whether operations record gradients now."""
    return STATE.grad_enabled


def _twice(who: str) -> Exception:
    given = "a graph that a backward() has used up already"
    return problem(GraphError, who, given, "a graph that is used once", "call the first with retain_graph=True")


def _leaves(order: Sequence[Node]) -> list[tuple[Node, Tensor]]:
    """The leaf tensors below, with the nodes that stand for them."""
    found = []
    for node in order:
        owner = LEAVES.get(node)
        tensor = owner() if owner is not None else None
        if tensor is not None and tensor._requires_grad:
            found.append((node, tensor))
    return found


def backward(
    tensor: Tensor, gradient: Tensor | None = None, retain_graph: bool = False, create_graph: bool = False
) -> None:
    """Add d(tensor * gradient) / d(leaf) to `.grad` of every leaf below that requires grad.

    `gradient` has the shape of the tensor and may be left out for one element. Without `retain_graph` the history is
    given up: a second call raises. With `create_graph` the gradients can be differentiated again.
    """
    if tensor.dtype.kind != "f":
        raise problem(
            DTypeError, "backward()", f"a {tensor.dtype.name} tensor", "a float tensor", "cast the inputs to float"
        )
    if not tensor.requires_grad:
        given = "a tensor that does not require grad and has no history"
        raise problem(
            GraphError, "backward()", given, "a result of tensors with requires_grad=True", "set it on the inputs"
        )
    if tensor._consumed:
        raise _twice("backward()")
    if gradient is None and tensor.numel() != 1:
        given = f"a tensor of shape {tensor.shape} and no gradient"
        raise problem(
            ShapeError, "backward()", given, "one element", "reduce it with .sum() or .mean(), or pass gradient="
        )
    if gradient is not None and gradient.shape != tensor.shape:
        raise problem(ShapeError, "backward()", f"a gradient of shape {gradient.shape}", f"{tensor.shape}")
    root = tensor.node
    seed = build.like(root, 1.0) if gradient is None else build.cast(gradient.node, root.dtype)
    order = history([root])
    leaves = _leaves(order)
    if any(leaf._consumed for _, leaf in leaves):
        raise _twice("backward()")
    found = gradients([root], [seed], [node for node, _ in leaves], order)
    for (_, leaf), g in zip(leaves, found, strict=True):
        if g is not None:
            _accumulate(leaf, g, create_graph)
    if not (retain_graph or create_graph or tensor.is_leaf):
        remember_consumed(tensor)


def _accumulate(leaf: Tensor, g: Node, create_graph: bool) -> None:
    g = g if create_graph else build.stop_gradient(g)
    held = leaf.grad
    if held is None:
        leaf.grad = Tensor(g, create_graph, is_leaf=not create_graph)
        return
    held._assign(build.add(held.node, g))
    if create_graph:
        held._requires_grad, held.is_leaf = True, False


def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns (value, gradients): `fn` gives a scalar; the gradients have the structure of the argument
    `argnums` (nested tuples, lists and dicts of tensors), or are a tuple of these for several.

    With `has_aux`, `fn` returns (value, extra) and the result is ((value, extra), gradients).

    >>> weft.value_and_grad(lambda x: (x * x).sum())(weft.tensor([1.0, 3.0]))
    (tensor(10.), tensor([2., 6.]))
    """
    several = not isinstance(argnums, int)
    numbers: Sequence[int] = argnums if not isinstance(argnums, int) else (argnums,)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        inputs, structure = flatten([args[number] for number in numbers])
        with enable_grad():
            fresh = [_variable(item) for item in inputs]
            replaced = dict(zip(numbers, unflatten(structure, fresh), strict=True))
            value = fn(*(replaced.get(place, arg) for place, arg in enumerate(args)), **kwargs)
        result, extra = value if has_aux else (value, None)
        if not isinstance(result, Tensor) or result.numel() != 1 or result.dtype.kind != "f":
            given = f"shape {result.shape}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
            raise problem(
                ShapeError,
                "grad",
                f"{given} from the function",
                "one float element",
                "reduce it with .sum() or .mean()",
            )
        root = result.node
        targets = [item.node for item in fresh]
        order = history([root])
        outside = STATE.grad_enabled and any(leaf not in _Identity(fresh) for _, leaf in _leaves(order))
        outside = outside or (STATE.grad_enabled and any(item.requires_grad for item in inputs))
        found = gradients([root], [build.like(root, 1.0)], targets, order)
        grads = [
            _result(build.like(node, 0.0) if g is None else g, outside) for node, g in zip(targets, found, strict=True)
        ]
        answer = unflatten(structure, grads)
        value = _result(root, outside)
        return ((value, extra) if has_aux else value), (tuple(answer) if several else answer[0])

    return entry(call)


def grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradients of `fn` (with `has_aux`: gradients and extra); see `value_and_grad`.

    >>> cube = lambda x: x**3
    >>> weft.grad(weft.grad(cube))(weft.tensor(2.0))
    tensor(12.)
    """
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return entry(call)


class _Identity:
    """Membership by identity, since `==` between tensors is elementwise."""

    def __init__(self, items: Sequence[object]):
        self._ids = {id(item) for item in items}

    def __contains__(self, item: object) -> bool:
        return id(item) in self._ids


def _variable(item: Any) -> Tensor:
    if not isinstance(item, Tensor) or item.dtype.kind != "f":
        given = f"a {item.dtype.name} tensor" if isinstance(item, Tensor) else f"a {type(item).__name__}"
        raise problem(DTypeError, "grad", f"{given} among the arguments", "float tensors", "choose others with argnums")
    return Tensor(build.variable(item.node), requires_grad=True)


def _result(node: Node, requires_grad: bool) -> Tensor:
    return Tensor(node if requires_grad else build.stop_gradient(node), requires_grad, is_leaf=not requires_grad)
