"""Gradients for users: `backward`, `grad`, `value_and_grad` and the switches of gradient recording."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, overload

from weft.boundary import entry
from weft.cell import LEAVES, remember_consumed
from weft.errors import DTypeError, GraphError, ShapeError, problem
from weft.function import Function as Function
from weft.grad.engine import gradients, history
from weft.graph import build
from weft.graph.node import Node
from weft.hooks import gradient_site, hooks_on, in_order, retained_on
from weft.state import STATE
from weft.tensor import Tensor
from weft.tree import flatten, unflatten


class _GradMode(abc.ABC):
    """A context manager and decorator that switches gradients. As a decorator it needs no parentheses."""

    def __new__(cls, function: Any = None, /) -> Any:
        return object.__new__(cls) if function is None else cls()(function)

    def __init__(self) -> None:
        self._outer: list[bool] = []

    @abc.abstractmethod
    def _enabled(self) -> bool:
        """Whether gradients are recorded inside."""

    def _fresh(self) -> Any:
        """Another one of the same meaning: each call of a decorated function, in any thread, has its own."""
        return type(self)()

    def __enter__(self) -> None:
        self._outer.append(STATE.grad_enabled)
        STATE.grad_enabled = self._enabled()

    def __exit__(self, *error: object) -> None:
        STATE.grad_enabled = self._outer.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise problem(GraphError, type(self).__name__, f"a {type(function).__name__}", "a function to decorate")
        if inspect.isgeneratorfunction(function):
            return functools.wraps(function)(lambda *args, **kwargs: _switched(self, function(*args, **kwargs)))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outer, STATE.grad_enabled = STATE.grad_enabled, self._enabled()
            try:
                return function(*args, **kwargs)
            finally:  # not a `with` statement, whose `__exit__` an interrupt may prevent
                STATE.grad_enabled = outer

        return entry(call)


def _switched(mode: _GradMode, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A generator whose own code runs in a gradient mode; the code between its steps runs in the caller's."""
    step: Callable[..., Any] = generator.send
    given: tuple[Any, ...] = (None,)
    try:
        while True:
            try:
                with mode._fresh():
                    value = step(*given)
            except StopIteration as end:
                return end.value
            try:
                given, step = ((yield value),), generator.send
            except GeneratorExit:
                raise
            except BaseException as error:
                given, step = (error,), generator.throw
    finally:
        with mode._fresh():
            generator.close()


class no_grad(_GradMode):
    """Inside, results require no gradient: `with weft.no_grad(): ...`, or `@weft.no_grad` on a function.

    >>> x = weft.ones(1, requires_grad=True)
    >>> with weft.no_grad():
    ...     (x * 2).requires_grad
    False
    """

    def _enabled(self) -> bool:
        return False


class enable_grad(_GradMode):
    """Inside, gradients are recorded even within `no_grad`."""

    def _enabled(self) -> bool:
        return True


class _ChosenMode(_GradMode):
    """A mode that is given: `mode` is what it was made with."""

    def __new__(cls, mode: Any = True) -> Any:
        return cls()(mode) if callable(mode) else object.__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self.mode = bool(mode)

    def _fresh(self) -> Any:
        return type(self)(self.mode)


class inference_mode(_ChosenMode):
    """`no_grad` under the name that PyTorch has for inference; `inference_mode(False)` records gradients. Tensors made
    inside are ordinary ones: nothing forbids them in a gradient later.

    >>> @weft.inference_mode
    ... def predict(x):
    ...     return x * 2
    >>> predict(weft.ones(1, requires_grad=True)).requires_grad
    False
    """

    def _enabled(self) -> bool:
        return not self.mode


class set_grad_enabled(_ChosenMode):
    """Record gradients, or do not, from now on in this thread; in a `with` statement, inside of it; as a decorator, in
    the function. What a function under `weft.compile` sets ends with the call.

    >>> with weft.set_grad_enabled(False):
    ...     weft.is_grad_enabled()
    False
    """

    def __new__(cls, mode: bool) -> Any:
        return object.__new__(cls)

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._before = STATE.grad_enabled
        STATE.grad_enabled = self.mode

    def _enabled(self) -> bool:
        return self.mode

    def __enter__(self) -> None:
        STATE.grad_enabled = self.mode

    def __exit__(self, *error: object) -> None:
        STATE.grad_enabled = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        STATE.grad_enabled = self._before
        return super().__call__(function)


def is_inference_mode_enabled() -> bool:
    """Whether gradients are not recorded now."""
    return not STATE.grad_enabled


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
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of the sum of `tensors * grad_tensors` to `.grad` of every leaf below that requires grad, or of
    `inputs` alone: these may be results, too, and one that nothing was computed from is left as it is.

    A grad tensor has the shape of its tensor and may be left out for one element. Without `retain_graph` (None: as
    `create_graph`) the history is given up: a second call raises. With `create_graph` the gradients can be
    differentiated again.

    >>> x, w = weft.ones(2, requires_grad=True), weft.ones(2, requires_grad=True)
    >>> weft.autograd.backward((x * w).sum(), inputs=[x])
    >>> x.grad, w.grad
    (tensor([1., 1.]), None)
    """
    who = "backward()"
    outputs, seeds = _with_seeds(who, tensors, grad_tensors)
    chosen = None if inputs is None else _chosen(inputs)
    pairs = [_root(who, output, seed) for output, seed in zip(outputs, seeds, strict=True)]
    roots = [root for root, _ in pairs]
    order = history(roots)
    leaves = _leaves(order)
    if any(leaf._consumed for _, leaf in leaves):
        raise _twice(who)
    hooks = hooks_on(order, leaves, create_graph)
    wanted = _wanted(order, leaves, chosen)
    # A hook is called even where the leaves below its tensor are gone.
    targets = [*[node for node, _, _ in wanted], *(hooks if chosen is None else ())]
    found = gradients(roots, [seed for _, seed in pairs], targets, order, hooks)
    for (_, leaf, axes), g in zip(wanted, found, strict=False):
        if g is not None:
            _accumulate(leaf, in_order(g, axes), create_graph)
    retain_graph = create_graph if retain_graph is None else retain_graph
    if not (retain_graph or create_graph):
        for output in outputs:
            if not output.is_leaf:
                remember_consumed(output)


def _with_seeds(who: str, tensors: Any, grad_tensors: Any) -> tuple[list[Tensor], list[Any]]:
    """Outputs, and the gradient that was given for each, or None."""
    if isinstance(tensors, Tensor):
        return [tensors], [grad_tensors]
    outputs = _listed("tensors", tensors, who=who)
    seeds = [None] * len(outputs) if grad_tensors is None else _listed("grad_tensors", grad_tensors, True, who)
    if not outputs or len(seeds) != len(outputs):
        raise problem(ShapeError, who, f"{len(seeds)} grad_tensors for {len(outputs)} tensors", "one for each")
    return outputs, seeds


def _chosen(inputs: Any) -> list[Tensor]:
    """The tensors that a backward() is for, each once."""
    who, found = "backward()", {id(item): item for item in _listed("inputs", inputs, who="backward()")}
    if not found:
        raise problem(GraphError, who, "no inputs", "one tensor at least, or inputs=None for all leaves")
    for position, item in enumerate(found.values()):
        if not item.requires_grad:
            given = f"input {position}, which does not require grad"
            raise problem(GraphError, who, given, "tensors that do", "set requires_grad=True before it is used")
    return list(found.values())


def _wanted(
    order: Sequence[Node], leaves: Sequence[tuple[Node, Tensor]], chosen: Sequence[Tensor] | None
) -> list[tuple[Node, Tensor, Any]]:
    """What gets a gradient: (node, tensor, order of its axes). With chosen tensors, these, and of the results that
    retain their gradients those that lie on the way to them."""
    if chosen is None:
        return [*[(node, leaf, None) for node, leaf in leaves], *retained_on(order)]
    is_chosen = _Identity(chosen)
    found: list[tuple[Node, Tensor, Any]] = [(node, leaf, None) for node, leaf in leaves if leaf in is_chosen]
    for position, item in enumerate(chosen):
        if not item.is_leaf:
            node, axes = _site("backward()", position, item)
            found.append((node, item, axes))
    below: set[Node] = {node for node, _, _ in found}
    for node in order:
        if any(src in below for src in node.srcs):
            below.add(node)
    return [*found, *[one for one in retained_on(order) if one[0] in below and one[1] not in is_chosen]]


def _site(who: str, position: int, item: Tensor) -> tuple[Node, Any]:
    """The node that has the gradient of an input, and the order of the input's axes over the node's."""
    node, axes = gradient_site(item)
    if node is None:
        given = f"input {position}, which is a transpose of another tensor"
        fix = "differentiate in that tensor, or use x.t().clone()"
        raise problem(GraphError, who, given, "leaves, or results with values of their own", fix)
    return node, axes


def _root(who: str, tensor: Tensor, gradient: Tensor | None) -> tuple[Node, Node]:
    """The node that gradients start from, and its own gradient; what cannot be differentiated raises."""
    if tensor.dtype.kind != "f":
        raise problem(DTypeError, who, f"a {tensor.dtype.name} tensor", "a float tensor", "cast the inputs to float")
    if not tensor.requires_grad:
        given = "a tensor that does not require grad and has no history"
        raise problem(GraphError, who, given, "a result of tensors with requires_grad=True", "set it on the inputs")
    if tensor._consumed:
        raise _twice(who)
    name = "gradient" if who == "backward()" else "grad_outputs"
    if gradient is None and tensor.numel() != 1:
        given = f"a tensor of shape {tensor.shape} and no gradient"
        fix = f"reduce it with .sum() or .mean(), or pass {name}="
        raise problem(ShapeError, who, given, "one element", fix)
    if gradient is not None and not isinstance(gradient, Tensor):
        raise problem(DTypeError, who, f"a {type(gradient).__name__} as the gradient", "a tensor or None")
    if gradient is not None and gradient.shape != tensor.shape:
        raise problem(ShapeError, who, f"a gradient of shape {gradient.shape}", f"{tensor.shape}")
    root = tensor.node
    return root, build.like(root, 1.0) if gradient is None else build.cast(gradient.node, root.dtype)


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
        leaves = _leaves(order)
        outside = STATE.grad_enabled and any(leaf not in _Identity(fresh) for _, leaf in leaves)
        outside = outside or (STATE.grad_enabled and any(item.requires_grad for item in inputs))
        found = gradients([root], [build.like(root, 1.0)], targets, order, hooks_on(order, leaves, True))
        grads = [
            _result(build.like(node, 0.0) if g is None else g, outside) for node, g in zip(targets, found, strict=True)
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
    allow_unused: bool | None = None,
    *,
    materialize_grads: bool = False,
) -> tuple[Any, ...]: ...


def grad(*args: Any, **kwargs: Any) -> Any:
    """Of tensors, as `torch.autograd.grad`: the gradients of `outputs` in `inputs`, as a tuple; no `.grad` changes.
    Of a function: a function that returns its gradients (with `has_aux`: gradients and extra); see `value_and_grad`.

    grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=None, *,
    materialize_grads=False) adds up the gradients of all outputs; `grad_outputs` may be left out for outputs of one
    element. `inputs` may be leaves or results. An input that no output depends on raises, is None with `allow_unused`,
    and zeros with `materialize_grads`. `retain_graph` and `create_graph` are those of `Tensor.backward`.

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
    allow_unused: bool | None = None,
    *,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    outputs, inputs = _listed("outputs", outputs), _listed("inputs", inputs)
    if materialize_grads and allow_unused is False:
        text = "materialize_grads=True with allow_unused=False"
        raise problem(GraphError, "grad", text, "allow_unused to be True or left out", "leave allow_unused out")
    allow_unused = materialize_grads if allow_unused is None else allow_unused
    given: list[Any]
    given = [None] * len(outputs) if grad_outputs is None else _listed("grad_outputs", grad_outputs, or_none=True)
    if len(given) != len(outputs):
        raise problem(ShapeError, "grad", f"{len(given)} grad_outputs for {len(outputs)} outputs", "one for each")
    for position, item in enumerate(inputs):
        if not item.requires_grad:
            text = f"input {position}, which does not require grad"
            raise problem(GraphError, "grad", text, "tensors that do", "set requires_grad=True before it is used")
    pairs = [_root("grad", output, seed) for output, seed in zip(outputs, given, strict=True)]
    roots = [root for root, _ in pairs]
    sites = [_site("grad", position, item) for position, item in enumerate(inputs)]
    targets = [node for node, _ in sites]
    order = history(roots)
    leaves = _leaves(order)
    if any(leaf._consumed for _, leaf in leaves if leaf not in _Identity(inputs)):
        raise _twice("grad")
    found = gradients(roots, [seed for _, seed in pairs], targets, order, hooks_on(order, leaves, create_graph))
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
        found = [build.like(node, 0.0) if g is None else g for node, g in zip(targets, found, strict=True)]
    return tuple(
        [
            None if g is None else _result(in_order(g, axes), create_graph)
            for g, (_, axes) in zip(found, sites, strict=True)
        ]
    )


def _listed(name: str, value: Any, or_none: bool = False, who: str = "grad") -> list[Any]:
    """One tensor, or several, as a list."""
    items = [value] if isinstance(value, Tensor) or not isinstance(value, (tuple, list)) else list(value)
    for item in items:
        if not (isinstance(item, Tensor) or (or_none and item is None)):
            expected = "a function, or tensors and the inputs to differentiate them in" if who == "grad" else "tensors"
            raise problem(DTypeError, who, f"a {type(item).__name__} among the {name}", expected)
    return items


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
