"""Hooks: functions that see, and may replace, the gradient of a tensor on its way back, and `retain_grad`.

The gradient of a leaf is that of the tensor, whatever its value was: its hooks belong to the tensor. The gradient of a
result is that of one value, whose history other results share: its hooks belong to the node. Both hold their hooks
themselves, so a hook that refers to its own tensor is garbage together with it. Hooks run while the graph of the
gradient is recorded, so inside `weft.compile` they are part of the plan.

Where a result is a permuted value, what is computed from it is computed from the value below (`graph.layout`): its
gradient is the permuted gradient of that.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from weft.base.errors import DTypeError, GraphError, ShapeError, problem
from weft.base.state import STATE, VERSION
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.layout import permute_value
from weft.graph.node import Node

Hook = Callable[[Any], Any]
Order = tuple[int, ...] | None  # of the axes of a tensor over those of the node that has its gradient

_numbers = itertools.count()
_leaf_hooks: dict[int, weakref.ref[Any]] = {}  # hooks of leaves by number, and whose they are
_used = False  # whether there ever was a hook or a retained gradient: without, backward() does not look for them


class Hooks:
    """What is called with one gradient, in the order of registration, and the tensor whose `.grad` it becomes."""

    __slots__ = ("functions", "retained")

    def __init__(self) -> None:
        self.functions: dict[int, tuple[Hook, Order]] = {}
        self.retained: tuple[weakref.ref[Any], Order] | None = None


class RemovableHandle:
    """What `register_hook` returns: `remove()` takes the hook away, as does the end of a `with` block."""

    def __init__(self, hooks: Hooks, number: int):
        self._hooks, self.id = hooks, number

    def remove(self) -> None:
        """Take the hook away; once is enough."""
        if self._hooks.functions.pop(self.id, None) is not None and _leaf_hooks.pop(self.id, None) is not None:
            VERSION.bump()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_hook(tensor: Tensor, hook: Hook) -> RemovableHandle:
    """See `Tensor.register_hook`."""
    global _used
    if not callable(hook):
        raise problem(DTypeError, "register_hook", f"a {type(hook).__name__}", "a function of the gradient")
    _check(tensor, "register_hook")
    (hooks, order), number = _hooks_of(tensor), next(_numbers)
    hooks.functions[number] = hook, order
    _used = True
    if tensor.is_leaf and STATE.trace is None:
        _leaf_hooks[number] = weakref.ref(tensor, lambda _: _leaf_hooks.pop(number, None))
        VERSION.bump()  # compiled functions that differentiate look at the hooks of leaves
    return RemovableHandle(hooks, number)


def retain_grad(tensor: Tensor) -> None:
    """See `Tensor.retain_grad`."""
    global _used
    _check(tensor, "retain_grad")
    if not tensor.is_leaf:
        hooks, order = _hooks_of(tensor)
        hooks.retained = weakref.ref(tensor), order
        _used = True


def _check(tensor: Tensor, who: str) -> None:
    if not tensor.requires_grad:
        expected = "a tensor that does"
        raise problem(GraphError, who, "a tensor that does not require grad", expected, "set requires_grad=True")
    trace = STATE.trace
    if trace is None:
        return
    if trace.where == "weft.loop":
        given = "a tensor inside the function of weft.loop"
        raise problem(GraphError, who, given, "a tensor outside of it", "use a weft.autograd.Function there")
    if not trace.is_made(tensor):
        given = f"a tensor from outside of {trace.where}"
        raise problem(GraphError, who, given, "an argument or a result inside it", "register it before the call")


def _hooks_of(tensor: Tensor) -> tuple[Hooks, Order]:
    """The hooks of a leaf, or of the present value of a result, and the order in which the tensor shows that."""
    owner: Any
    owner, order = (tensor, None) if tensor.is_leaf else gradient_site(tensor)
    if owner is None:  # the transpose of a tensor: what is computed from it from now on goes through a node of its own
        owner = build.variable(tensor.node)
        tensor._show(owner)
    hooks = getattr(owner, "_hooks", None)
    if hooks is None:
        hooks = owner._hooks = Hooks()
    return hooks, order


def gradient_site(tensor: Tensor) -> tuple[Any, Order]:
    """The node that has the gradient of a tensor, and the order in which the tensor shows its axes. The node is None
    for a transpose of another tensor: what is computed from the one and from the other cannot be distinguished."""
    node = tensor.node
    if node.op != "permute" or tensor.is_leaf:
        return node, None
    return (None, None) if node.srcs[0].shown else (node.srcs[0], node.attrs.order)


def in_order(gradient: Node, order: Order) -> Node:
    """The gradient of a tensor from that of its site."""
    return gradient if order is None else permute_value(gradient, order)


# ---- called by backward() --------------------------------------------------------------------------------------------


def hooks_on(
    order: Sequence[Node], leaves: Sequence[tuple[Node, Tensor]], create_graph: bool
) -> dict[Node, Callable[[Node], Node]]:
    """What replaces the gradients of nodes: the hooks on a history, and those of its leaves."""
    if STATE.trace is not None:
        STATE.trace.guard(_numbers_on_leaves)
    if not _used:
        return {}
    found = [(node, getattr(node, "_hooks", None)) for node in order]
    found += [(node, getattr(leaf, "_hooks", None)) for node, leaf in leaves]
    return {
        node: _Application(list(hooks.functions.values()), create_graph)
        for node, hooks in found
        if hooks is not None and hooks.functions
    }


def find_retained_gradients(history: Sequence[Node]) -> list[tuple[Node, Tensor, Order]]:
    """The results in a history that keep their gradients: (node, tensor, order of its axes)."""
    found = [(node, getattr(node, "_hooks", None)) for node in history] if _used else []
    kept = [(node, *hooks.retained) for node, hooks in found if hooks is not None and hooks.retained is not None]
    return [(node, tensor, order) for node, reference, order in kept if (tensor := reference()) is not None]


def _numbers_on_leaves() -> tuple[int, ...]:
    return tuple(_leaf_hooks)


class _Application:
    """All hooks of one gradient as a function of nodes."""

    def __init__(self, functions: Sequence[tuple[Hook, Order]], create_graph: bool):
        self.functions, self.create_graph = functions, create_graph

    def __call__(self, gradient: Node) -> Node:
        enabled, STATE.grad_enabled = STATE.grad_enabled, self.create_graph
        try:
            for function, order in self.functions:
                given = Tensor(in_order(gradient, order), self.create_graph, is_leaf=not self.create_graph)
                answer = _check_answer(function(given), given).node
                gradient = answer if order is None else permute_value(answer, tuple(_inverse(order)))
            return gradient
        finally:
            STATE.grad_enabled = enabled


def _inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _check_answer(answer: Any, given: Tensor) -> Tensor:
    """What a hook returned, or what it was given if that is None."""
    if answer is None:
        return given
    if not isinstance(answer, Tensor):
        raise problem(GraphError, "register_hook", f"a {type(answer).__name__} from the hook", "a tensor or None")
    forms = [(one.shape, one.dtype.name, str(one.device)) for one in (answer, given)]
    if forms[0] != forms[1]:
        texts = [f"{dtype}{list(shape)} on {device}" for shape, dtype, device in forms]
        raise problem(ShapeError, "register_hook", f"{texts[0]} from the hook", f"the form of the gradient, {texts[1]}")
    return answer
