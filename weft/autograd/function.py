"""Function: an operation whose gradient the user writes, and checkpoint: one that is computed again for its gradient.

Both leave marks in the graph that `grad.engine` follows: a `call` with its `result`s, or a `checkpoint`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.base.errors import DeviceError, DTypeError, GraphError, ShapeError, problem
from weft.base.state import STATE
from weft.base.tree import flatten, unflatten
from weft.core.method_registry import tensor_method
from weft.core.tensor import Tensor
from weft.grad.checkpoint import segment
from weft.graph import build
from weft.graph.node import Node, current_serial
from weft.graph.primitives import make_node
from weft.plan.device import Device


class Context:
    """What `forward` leaves for `backward`: the first argument of both. Other attributes may be set freely."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self._saved: list[tuple[Node, bool] | None] = []
        self._copies: Mapping[Node, Node] = {}
        self._plain: tuple[Any, ...] = ()
        self._materialize = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `saved_tensors`."""
        self._saved = [None if tensor is None else (tensor.node, tensor.requires_grad) for tensor in tensors]

    def _saved_results(self, marked: Mapping[Node, Tensor]) -> None:
        """Let saved results have the history of the call, so that gradients of `backward` pass through them."""
        for position, one in enumerate(self._saved):
            if one is not None and not one[1] and one[0] in marked:
                self._saved[position] = (marked[one[0]].node, True)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` was given. Inside a checkpoint these values are computed again."""
        found = [one and (self._copies.get(one[0], one[0]), one[1]) for one in self._saved]
        return tuple([one and Tensor(one[0], one[1], is_leaf=not one[1]) for one in found])

    def mark_non_differentiable(self, *results: Tensor) -> None:
        """Say which results have no gradient. Results that are not floats have none anyway."""
        self._plain = results

    def set_materialize_grads(self, value: bool) -> None:
        """Whether `backward` gets zeros (the default) or None for a result that was not used."""
        self._materialize = value


class Function:
    """An operation with a gradient of its own, after `torch.autograd.Function`. Call it by `apply`.

    `forward(ctx, *args)` computes the results, without history. `backward(ctx, *grads)` gets one gradient per result
    and returns one per argument of `forward`, None for those that have none. Both are written in operations on tensors,
    so they work inside `weft.compile`, and gradients of gradients pass through `backward`.

    >>> class Clip(weft.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, limit):
    ...         ctx.limit = limit
    ...         return x.clone()
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g.clamp(-ctx.limit, ctx.limit), None
    >>> x = weft.ones(2, requires_grad=True)
    >>> (Clip.apply(x, 0.5) * weft.tensor([3.0, 0.25])).sum().backward()
    >>> x.grad
    tensor([0.5000, 0.2500])
    """

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        raise problem(GraphError, "Function", "a class without `forward`", "a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        expected = "a static method backward(ctx, *grads), since a gradient is requested"
        raise problem(GraphError, "Function", "a class without `backward`", expected)

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """The results of `forward(ctx, *args)`, with the gradient that `backward` gives."""
        needs = [isinstance(arg, Tensor) and arg.requires_grad and STATE.grad_enabled for arg in args]
        # Nodes first: under gradients, reading a leaf makes a node that `backward` of the loss will find.
        sources = [(position, arg.node) for position, arg in enumerate(args) if isinstance(arg, Tensor)]
        context = Context(tuple(needs))
        if STATE.trace is not None:
            STATE.trace.contexts.append(context)
        outer, STATE.grad_enabled = STATE.grad_enabled, False
        try:
            given = cls.forward(context, *args)
        finally:
            STATE.grad_enabled = outer
        if not any(needs):
            return given
        results, structure = flatten(given)
        for result in results:
            if not isinstance(result, Tensor):
                expected = "tensors, alone or in a tuple"
                raise problem(GraphError, f"{cls.__name__}.forward", f"a {type(result).__name__} as a result", expected)
        rule = _Rule(cls, context, sources, len(args), [_Form(result) for result in results])
        call = make_node("call", tuple([node for _, node in sources]), (rule,))
        marked = [_mark(result, call, position, context) for position, result in enumerate(results)]
        context._saved_results({old.node: new for old, new in zip(results, marked, strict=True) if new.requires_grad})
        return unflatten(structure, marked)


class _Form:
    """Shape, dtype and device of a result, for the zeros that replace a missing gradient."""

    def __init__(self, tensor: Tensor):
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device


def _mark(result: Tensor, call: Node, position: int, context: Context) -> Tensor:
    if result.dtype.kind != "f" or any(result is plain for plain in context._plain):
        return result.detach()
    return Tensor(make_node("result", (build.stop_gradient(result.node), call), (position,)), True, is_leaf=False)


class _Rule:
    """The gradient rule of one call: nodes in, nodes out, `backward` in between."""

    def __init__(
        self, cls: type[Function], context: Context, sources: list[tuple[int, Node]], count: int, forms: list[_Form]
    ):
        self.cls, self.context, self.forms, self.count = cls, context, forms, count
        self.sources = [(position, node.shape, node.dtype, node.device) for position, node in sources]

    def __call__(
        self, call: Node, gradients: Mapping[int, Node], copies: Mapping[Node, Node]
    ) -> tuple[Node | None, ...]:
        given = [self._gradient(gradients.get(position), form) for position, form in enumerate(self.forms)]
        outer = STATE.grad_enabled, self.context._copies
        STATE.grad_enabled, self.context._copies = True, copies
        try:
            answer = self.cls.backward(self.context, *given)
        finally:
            STATE.grad_enabled, self.context._copies = outer
        parts = answer if isinstance(answer, (tuple, list)) else (answer,)
        who = f"{self.cls.__name__}.backward"
        if len(parts) != self.count:
            expected = f"{self.count}: one for each argument of forward, None where there is none"
            raise problem(GraphError, who, f"{len(parts)} gradients", expected)
        return tuple([self._check_gradient(who, parts[position], position, *form) for position, *form in self.sources])

    def _gradient(self, node: Node | None, form: _Form) -> Tensor | None:
        if node is not None:
            return Tensor(node, True, is_leaf=False)
        if not self.context._materialize:
            return None
        return Tensor(build.full(form.shape, 0, form.dtype, form.device))

    def _check_gradient(self, who: str, part: Any, position: int, shape: tuple, dtype: Any, device: Any) -> Node | None:
        if part is None:
            return None
        what = f"for argument {position}"
        if not isinstance(part, Tensor):
            raise problem(GraphError, who, f"a {type(part).__name__} {what}", "a tensor or None")
        if dtype.kind != "f":
            given = f"a gradient {what}, which is a {dtype.name} tensor"
            raise problem(DTypeError, who, given, "None", "only float arguments have gradients")
        if part.shape != shape:
            raise problem(ShapeError, who, f"a gradient of shape {part.shape} {what}", f"its shape, {shape}")
        if part.dtype is not dtype:
            fix = "cast it with .to(x.dtype)"
            raise problem(DTypeError, who, f"a {part.dtype.name} gradient {what}", f"its dtype, {dtype.name}", fix)
        if part.device is not device:
            raise problem(DeviceError, who, f"a gradient on {part.device} {what}", f"its device, {device}")
        return part.node


class _Move(Function):
    """To another device by way of the host; gradients come back the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, device: Device) -> Tensor:
        ctx.device = x.device
        return x.detach().to(device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.to(ctx.device), None


@tensor_method
def _move_with_history(self: Tensor, device: Device) -> Tensor:
    """The tensor on another device, through which gradients flow back."""
    result = _Move.apply(self, device)
    node = result.node
    node.buffer = node.srcs[0].srcs[0].buffer  # known at once: nothing on that device has to visit the history
    return result


def wait_for(x: Tensor, others: Iterable[Tensor]) -> Tensor:
    """`x` for readers that run, in a plan, after `others` were computed: an order, neither a kernel nor memory."""
    node = x.node
    for other in others:
        node = make_node("after", (node, other.node))
    return Tensor(node)


def checkpoint(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)`, keeping only the inputs: intermediate values are computed again when a gradient needs it.
    Without arguments, a function that does so at each call: `block = weft.checkpoint(block)`.

    Gradients are the same to the last bit, random draws included; `fn` itself runs once. Tensors that `fn` takes from
    elsewhere (parameters) get their gradients too. Inside `weft.compile` the arena shrinks; eagerly, values are dropped
    from memory in the same way.

    >>> w = weft.full((2, 2), 0.5, requires_grad=True)
    >>> y = weft.checkpoint(lambda x: (x @ w).tanh() @ w, weft.ones(1, 2))
    >>> y.sum().backward()
    >>> w.grad.shape
    (2, 2)
    """
    if not callable(fn):
        raise problem(GraphError, "checkpoint", f"a {type(fn).__name__}", "a function and its arguments")
    if not args and not kwargs:
        return functools.wraps(fn)(lambda *args, **kwargs: run_checkpointed(fn, args, kwargs))
    return run_checkpointed(fn, args, kwargs)


def run_checkpointed(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """`fn(*args, **kwargs)`, marked so that backpropagation computes it again."""
    inputs = [arg.node for arg in flatten((args, kwargs))[0] if isinstance(arg, Tensor)]
    since = current_serial()
    result = fn(*args, **kwargs)
    leaves, structure = flatten(result)
    marked = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf]
    if not marked or not STATE.grad_enabled:
        return result
    part = segment([leaf.node for leaf in marked], inputs, since)
    if not part.body:
        return result
    new = {id(leaf): Tensor(make_node("checkpoint", (leaf.node,), (part,)), True, is_leaf=False) for leaf in marked}
    return unflatten(structure, [new.get(id(leaf), leaf) for leaf in leaves])
