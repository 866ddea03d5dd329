"""`backward`: gradients of tensors are added to the `grad` of the leaves they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.autograd.function import Function as Function
from weft.autograd.hooks import find_retained_gradients, gradient_site, hooks_on, in_order
from weft.base.errors import DTypeError, GraphError, ShapeError, problem
from weft.core.cell import LEAVES
from weft.core.realize import remember_consumed
from weft.core.tensor import Tensor
from weft.grad.engine import gradients, history
from weft.graph import build
from weft.graph.node import Node


def make_consumed_error(who: str) -> Exception:
    given = "a graph that a backward() has used up already"
    return problem(GraphError, who, given, "a graph that is used once", "call the first with retain_graph=True")


def leaves_of(order: Sequence[Node]) -> list[tuple[Node, Tensor]]:
    """The leaf tensors that `order` depends on, with their nodes."""
    found = []
    for node in order:
        owner = LEAVES.get(node)
        tensor = owner() if owner is not None else None
        if tensor is not None and tensor._requires_grad:
            found.append((node, tensor))
    return found


def same_leaves(leaves: Sequence[tuple[Node, Tensor]]) -> dict[Node, Node]:
    """For each node of a leaf the first one in the graph. A leaf has several where it was read or written while the
    graph was made; its gradient is one sum all the same, so that reading changes no bits and hooks are called once."""
    first: dict[int, Node] = {}
    return {node: first.setdefault(id(leaf), node) for node, leaf in leaves}


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
    `create_graph`) the history is released: a second call raises. With `create_graph` the gradients can be
    differentiated again.

    >>> x, w = weft.ones(2, requires_grad=True), weft.ones(2, requires_grad=True)
    >>> weft.autograd.backward((x * w).sum(), inputs=[x])
    >>> x.grad, w.grad
    (tensor([1., 1.]), None)
    """
    who = "backward()"
    outputs, seeds = _with_seeds(who, tensors, grad_tensors)
    chosen = None if inputs is None else _check_inputs(inputs)
    pairs = [root_of(who, output, seed) for output, seed in zip(outputs, seeds, strict=True)]
    roots = [root for root, _ in pairs]
    order = history(roots)
    leaves = leaves_of(order)
    if any(leaf._consumed for _, leaf in leaves):
        raise make_consumed_error(who)
    hooks = hooks_on(order, leaves, create_graph)
    selected = _select_targets(order, leaves, chosen)
    # A hook is called even where the leaves that its tensor depends on no longer exist.
    targets = [*[node for node, _, _ in selected], *(hooks if chosen is None else ())]
    found = gradients(roots, [seed for _, seed in pairs], targets, order, hooks, same_leaves(leaves))
    for (_, leaf, axes), g in zip(selected, found, strict=False):
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
    outputs = list_tensors("tensors", tensors, who=who)
    seeds = [None] * len(outputs) if grad_tensors is None else list_tensors("grad_tensors", grad_tensors, True, who)
    if not outputs or len(seeds) != len(outputs):
        raise problem(ShapeError, who, f"{len(seeds)} grad_tensors for {len(outputs)} tensors", "one for each")
    return outputs, seeds


def _check_inputs(inputs: Any) -> list[Tensor]:
    """The tensors that a backward() is for, each once."""
    who, found = "backward()", {id(item): item for item in list_tensors("inputs", inputs, who="backward()")}
    if not found:
        raise problem(GraphError, who, "no inputs", "one tensor at least, or inputs=None for all leaves")
    for position, item in enumerate(found.values()):
        if not item.requires_grad:
            given = f"input {position}, which does not require grad"
            raise problem(GraphError, who, given, "tensors that do", "set requires_grad=True before it is used")
    return list(found.values())


def _select_targets(
    order: Sequence[Node], leaves: Sequence[tuple[Node, Tensor]], chosen: Sequence[Tensor] | None
) -> list[tuple[Node, Tensor, Any]]:
    """What gets a gradient: (node, tensor, order of its axes). With chosen tensors, these, and of the results that
    retain their gradients those that depend on them."""
    if chosen is None:
        return [*[(node, leaf, None) for node, leaf in leaves], *find_retained_gradients(order)]
    is_chosen = Identity(chosen)
    found: list[tuple[Node, Tensor, Any]] = [(node, leaf, None) for node, leaf in leaves if leaf in is_chosen]
    for position, item in enumerate(chosen):
        if not item.is_leaf:
            node, axes = site_of("backward()", position, item)
            found.append((node, item, axes))
    below: set[Node] = {node for node, _, _ in found}
    for node in order:
        if any(src in below for src in node.srcs):
            below.add(node)
    return [*found, *[one for one in find_retained_gradients(order) if one[0] in below and one[1] not in is_chosen]]


def site_of(who: str, position: int, item: Tensor) -> tuple[Node, Any]:
    """The node that has the gradient of an input, and the order of the input's axes over the node's."""
    node, axes = gradient_site(item)
    if node is None:
        given = f"input {position}, which is a transpose of another tensor"
        fix = "differentiate in that tensor, or use x.t().clone()"
        raise problem(GraphError, who, given, "leaves, or results with values of their own", fix)
    return node, axes


def gradients_in(
    inputs: Sequence[Tensor], roots: Sequence[Node], seeds: Sequence[Node], order: Sequence[Node],
    leaves: Sequence[tuple[Node, Tensor]], hooks: dict[Node, Any],
) -> list[Node | None]:  # fmt: skip
    """The gradient of sum(roots * seeds) in each of `inputs`; None where no path leads there.

    A leaf may have been read or written since the outputs were computed, and then has another node than they know.
    """
    same = same_leaves(leaves)
    known = {id(leaf): same[node] for node, leaf in leaves}
    sites = [
        (known[id(item)], None) if id(item) in known else site_of("grad", position, item)
        for position, item in enumerate(inputs)
    ]
    found = gradients(roots, seeds, [node for node, _ in sites], order, hooks, same)
    return [None if g is None else in_order(g, axes) for (_, axes), g in zip(sites, found, strict=True)]


def root_of(who: str, tensor: Tensor, gradient: Tensor | None) -> tuple[Node, Node]:
    """The node that gradients start from, and its own gradient; what cannot be differentiated raises."""
    if tensor.dtype.kind != "f":
        raise problem(DTypeError, who, f"a {tensor.dtype.name} tensor", "a float tensor", "cast the inputs to float")
    if not tensor.requires_grad:
        given = "a tensor that does not require grad and has no history"
        raise problem(GraphError, who, given, "a result of tensors with requires_grad=True", "set it on the inputs")
    if tensor._consumed:
        raise make_consumed_error(who)
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
    previous = leaf.grad
    if previous is None:
        leaf.grad = Tensor(g, create_graph, is_leaf=not create_graph)
        return
    previous._assign(build.add(previous.node, g))
    if create_graph:
        previous._requires_grad, previous.is_leaf = True, False


def list_tensors(name: str, value: Any, or_none: bool = False, who: str = "grad") -> list[Any]:
    """One tensor, or several, as a list."""
    items = [value] if isinstance(value, Tensor) or not isinstance(value, (tuple, list)) else list(value)
    for item in items:
        if not (isinstance(item, Tensor) or (or_none and item is None)):
            expected = "a function, or tensors and the inputs to differentiate them in" if who == "grad" else "tensors"
            raise problem(DTypeError, who, f"a {type(item).__name__} among the {name}", expected)
    return items


class Identity:
    """Membership by identity, since `==` between tensors is elementwise."""

    def __init__(self, items: Sequence[object]):
        self._ids = {id(item) for item in items}

    def __contains__(self, item: object) -> bool:
        return id(item) in self._ids
