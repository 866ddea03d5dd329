"""`grad` and `value_and_grad`: gradients of tensors or of functions as results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

from weft.autograd.backpropagation import (
    Identity,
    gradients_in,
    leaves_of,
    list_tensors,
    make_consumed_error,
    root_of,
)
from weft.autograd.function import Function as Function
from weft.autograd.hooks import hooks_on
from weft.autograd.modes import enable_grad
from weft.base.errors import DTypeError, GraphError, ShapeError, problem
from weft.base.state import STATE
from weft.base.tree import flatten, unflatten
from weft.core.boundary import entry
from weft.core.realize import remember_consumed
from weft.core.tensor import Tensor
from weft.grad.engine import history
from weft.graph import build
from weft.graph.node import Node


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
            value = fn(*(replaced.get(number, arg) for number, arg in enumerate(args)), **kwargs)
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
        order = history([root])
        leaves = leaves_of(order)
        outside = STATE.grad_enabled and any(leaf not in Identity(fresh) for _, leaf in leaves)
        outside = outside or (STATE.grad_enabled and any(item.requires_grad for item in inputs))
        seeds, hooks = [build.like(root, 1.0)], hooks_on(order, leaves, True)
        grads = [
            _result(build.like(item.node, 0.0) if g is None else g, outside)
            for item, g in zip(fresh, gradients_in(fresh, [root], seeds, order, leaves, hooks), strict=True)
        ]
        answer = unflatten(structure, grads)
        value = _result(root, outside)
        return ((value, extra) if has_aux else value), (tuple(answer) if several else answer[0])

    return entry(call)


@overload
def grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]: ...


@overload
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]: ...


def grad(*args: Any, **kwargs: Any) -> Any:
    """Of tensors, as `torch.autograd.grad`: the gradients of `outputs` in `inputs`, as a tuple; no `.grad` changes.
    Of a function: a function that returns its gradients (with `has_aux`: gradients and extra); see `value_and_grad`.

    grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, allow_unused=None,
    is_grads_batched=False, materialize_grads=False) adds up the gradients of all outputs; `grad_outputs` may be left
    out for outputs of one element. `inputs` may be leaves or results. An input that no output depends on raises, is
    None with `allow_unused`, and zeros with `materialize_grads`. `retain_graph` and `create_graph` are those of
    `Tensor.backward`. As in PyTorch `only_inputs` changes nothing; `is_grads_batched=True` raises.

    >>> x = weft.tensor(2.0, requires_grad=True)
    >>> weft.grad(x**3, x)
    (tensor(12.),)

    grad(fn, argnums=0, has_aux=False):

    >>> cube = lambda x: x**3
    >>> weft.grad(weft.grad(cube))(weft.tensor(2.0))
    tensor(12.)
    """
    first = args[0] if args else kwargs.get("fn")
    return _grad_of_function(*args, **kwargs) if callable(first) else _grad_of_tensors(*args, **kwargs)


def _grad_of_function(fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return entry(call)


def _grad_of_tensors(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    outputs, inputs = list_tensors("outputs", outputs), list_tensors("inputs", inputs)
    if is_grads_batched:
        fix = "call it for each of them, with retain_graph=True"
        raise problem(GraphError, "grad", "is_grads_batched=True", "grad_outputs of the shapes of the outputs", fix)
    if materialize_grads and allow_unused is False:
        text = "materialize_grads=True with allow_unused=False"
        raise problem(GraphError, "grad", text, "allow_unused to be True or left out", "leave allow_unused out")
    allow_unused = materialize_grads if allow_unused is None else allow_unused
    given: list[Any]
    given = [None] * len(outputs) if grad_outputs is None else list_tensors("grad_outputs", grad_outputs, or_none=True)
    if len(given) != len(outputs):
        raise problem(ShapeError, "grad", f"{len(given)} grad_outputs for {len(outputs)} outputs", "one for each")
    for position, item in enumerate(inputs):
        if not item.requires_grad:
            text = f"input {position}, which does not require grad"
            raise problem(GraphError, "grad", text, "tensors that do", "set requires_grad=True before it is used")
    pairs = [root_of("grad", output, seed) for output, seed in zip(outputs, given, strict=True)]
    roots = [root for root, _ in pairs]
    order = history(roots)
    leaves = leaves_of(order)
    if any(leaf._consumed for _, leaf in leaves if leaf not in Identity(inputs)):
        raise make_consumed_error("grad")
    seeds, hooks = [seed for _, seed in pairs], hooks_on(order, leaves, create_graph)
    found = gradients_in(inputs, roots, seeds, order, leaves, hooks)
    for position, g in enumerate(found):
        if g is None and not allow_unused:
            text = f"input {position}, which no output was computed from"
            fix = "pass allow_unused=True for None, or materialize_grads=True for zeros"
            raise problem(GraphError, "grad", text, "inputs of the outputs", fix)
    if not (create_graph if retain_graph is None else retain_graph):
        for output in outputs:
            if not output.is_leaf:
                remember_consumed(output)
    if materialize_grads:
        found = [build.like(item.node, 0.0) if g is None else g for item, g in zip(inputs, found, strict=True)]
    return tuple([None if g is None else _result(g, create_graph) for g in found])


def _variable(item: Any) -> Tensor:
    if not isinstance(item, Tensor) or item.dtype.kind != "f":
        given = f"a {item.dtype.name} tensor" if isinstance(item, Tensor) else f"a {type(item).__name__}"
        raise problem(DTypeError, "grad", f"{given} among the arguments", "float tensors", "choose others with argnums")
    return Tensor(build.variable(item.node), requires_grad=True)


def _result(node: Node, requires_grad: bool) -> Tensor:
    return Tensor(node if requires_grad else build.stop_gradient(node), requires_grad, is_leaf=not requires_grad)
