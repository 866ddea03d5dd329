"""When tensors are computed: `realize` runs one program for several tensors and for what is worth computing with them.

Values besides those that are requested: cells that were assigned in place, what a later `backward()` will read, and
expensive values that something else retains. Nothing is computed twice because of what is realized first.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weft.base.errors import GraphError, problem
from weft.base.references import count_references
from weft.base.state import STATE
from weft.graph.body import find_loop_picks
from weft.graph.node import Node, toposort
from weft.graph.primitives import results_of

if TYPE_CHECKING:
    from weft.core.cell import TensorCell

# Kinds of primitives whose results are expensive to recompute.
EXPENSIVE_KINDS = frozenset({
    "dot", "conv", "template", "loop", "pick", "scan", "sort", "put", "scatter", "segment", "reduce", "fold",
})  # fmt: skip
MAX_RECOMPUTED_DEPTH = 8  # operations in a row that are computed again rather than stored
VIEW_OPS = ("reshape", "permute", "expand", "slice")
ASSIGNED: dict[int, weakref.ref[Any]] = {}  # cells assigned in place whose value was not computed yet, by identity
_consumed: list[weakref.ref[Any]] = []
_companions: weakref.WeakKeyDictionary[Node, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()  # `compute_with`


def remember_consumed(tensor: TensorCell) -> None:
    """Note that `backward()` has used up the history of `tensor`, whose value may still be read."""
    tensor._consumed = True
    if STATE.trace is None:
        if tensor._node is not None and tensor._node.buffer is not None:
            tensor._settle(tensor._node)
        _consumed[:] = [ref for ref in _consumed if ref() is not None]
        _consumed.append(weakref.ref(tensor))


def take_consumed() -> list[Any]:
    """The live tensors whose history a `backward()` used up and whose value was not read yet; the list is emptied.

    An optimizer realizes them together with its update, so that reading the loss afterwards computes nothing twice.
    """
    alive = [tensor for ref in _consumed if (tensor := ref()) is not None]
    _consumed.clear()
    return [tensor for tensor in alive if tensor._node is not None and tensor._node.buffer is None]


def compute_with(cells: Iterable[TensorCell], value: TensorCell) -> None:
    """Let `cells`, which were assigned in place, be computed together with `value`, or with what is made of it.

    For state that is not read in a training loop, such as running statistics: it would wait for many steps, and keep
    everything that it was made of.
    """
    if STATE.trace is None and value._node is not None and value._node.buffer is None:
        _companions.setdefault(value._node, []).extend([weakref.ref(cell) for cell in cells])


def realize(tensors: Iterable[TensorCell]) -> None:
    """Compute the values of several tensors as one program: `weft.eval(a, b)`.

    Computed with them: cells that were assigned in place and lie on the way, or belong to it (`compute_with`); below a
    tensor that `backward()` may still be called on, the values that its gradient will read; and what is expensive to
    recompute and something else retains. So nothing is computed twice.
    """
    tensors = list(tensors)
    if STATE.trace is not None:
        raise unknown_value_error("eval()")
    nodes = [tensor.node for tensor in tensors]
    waiting = [node for node in nodes if node.buffer is None]
    if waiting:
        from weft.compiler.realize import realize_nodes  # the compiler is loaded when a value is first needed

        cells = _take_assigned_below(waiting)
        tensors += cells
        nodes += [cell._node for cell in cells]
        waiting += [cell._node for cell in cells]
        later = [node for tensor, node in zip(tensors, nodes, strict=True) if tensor._needs_history(node)]
        realize_nodes(
            waiting,
            [
                *find_saved_for_backward(later),
                *find_loop_picks(waiting),
                *_find_permute_sources(waiting),
                *find_retained(waiting),
            ],
        )
    for tensor, node in zip(tensors, nodes, strict=True):
        tensor._settle(node)


def _take_assigned_below(roots: list[Node]) -> list[Any]:
    """Cells that were assigned in place and lie on the way to `roots`, or are computed with something that does; from
    now on they count as computed."""
    if not ASSIGNED:
        return []
    on_the_way = set(toposort(roots))
    if _companions:
        nodes = [node for node in list(_companions) if node in on_the_way]
        companions = [cell for node in nodes for ref in _companions.pop(node, ()) if (cell := ref()) is not None]
        roots = [*roots, *[cell._node for cell in companions if id(cell) in ASSIGNED]]
        on_the_way = set(toposort(roots)) if companions else on_the_way
    references = list(ASSIGNED.values())  # at once: other threads assign, too
    cells = [cell for ref in references if (cell := ref()) is not None and cell._node in on_the_way]
    for cell in cells:
        ASSIGNED.pop(id(cell), None)
    return cells


def _find_permute_sources(nodes: list[Node]) -> list[Node]:
    """Values that are not computed yet and that `nodes` show in another order."""
    return [node.srcs[0] for node in nodes if node.op == "permute" and node.srcs[0].buffer is None]


def find_saved_for_backward(roots: list[Node]) -> list[Node]:
    """Uncomputed values below `roots` that a gradient will read: products (and attention) with operands, reductions.

    What a checkpoint covers will be computed again from its inputs.
    """
    found: dict[Node, None] = {}
    proxies: set[Node] = set()  # what only the derivative is companions of
    order = toposort(roots, lambda node: node.buffer is not None or node.op in ("stop_gradient", "checkpoint"))
    inputs = [given for node in order if node.op == "checkpoint" for given in node.attrs.segment.inputs]
    if inputs:
        found.update(dict.fromkeys([node for node in inputs if node.buffer is None and node.srcs]))
        found.update(dict.fromkeys(find_saved_for_backward(inputs)))
    for node in order:
        if node.op == "surrogate":
            proxies.add(node.srcs[1])
        if node.buffer is None and node.primitive.kind in ("dot", "conv", "template"):
            found.update(dict.fromkeys(results_of(node) or [node]))
            for source in node.srcs:
                source = source_of_views(source)
                if source.buffer is None and source.srcs:
                    found[source] = None
        elif node.buffer is None and node.op.startswith(("reduce_", "segment_", "scatter_")):
            found[node] = None
        elif node.buffer is None and node.op == "update_slice":
            value = source_of_views(node.srcs[1])  # later reads of the window look for it, see `graph.updates`
            if value.buffer is None and value.srcs and 2 * value.size <= node.size:
                found[value] = None
    return [node for node in found if node not in proxies]


def find_retained(roots: list[Node]) -> list[Node]:
    """Values on the way to `roots` that something else retains, a tensor or a node that is not computed yet, and that
    are not just a few operations on what is computed: from now on they are read. Of what lies inside one operation,
    such as the exponentials of a softmax, only what is expensive itself: its gradient computes the rest again.

    A node is retained where there are more references to it than the nodes on the way have.
    """
    order = toposort(roots)
    known = Counter([id(source) for node in order for source in node.srcs])
    known.update({id(root): len(order) for root in roots})
    references = count_references(order)  # before there are names for nodes here
    deferred: set[int] = set()  # nodes that need work which is not done yet
    found: list[Node] = []
    for node, count in zip(order, references, strict=True):
        if node.buffer is not None:
            continue
        if node.op == "checkpoint":
            return []  # what it covers is to be forgotten
        is_retained = count > known[id(node)]
        needs_work = (
            _is_expensive(node)
            or node.depth > MAX_RECOMPUTED_DEPTH
            or any(id(source) in deferred for source in node.srcs)
        )
        several = node.primitive.results or node.op == "loop"  # it has no value of its own
        value = source_of_views(node)
        if is_retained and needs_work and not several and (node.shown or value.shown or _is_expensive(value)):
            found.append(value)
        elif needs_work:
            deferred.add(id(node))
    return found


def _is_expensive(node: Node) -> bool:
    return node.primitive.kind in EXPENSIVE_KINDS


def source_of_views(node: Node) -> Node:
    """The value below a chain of views."""
    while node.op in VIEW_OPS and node.buffer is None:
        node = node.srcs[0]
    return node


def unknown_value_error(who: str) -> Exception:
    """The error for reading a value while a function is traced."""
    given = f"a tensor inside {STATE.trace.where}, where values are not known yet"
    return problem(GraphError, who, given, "only operations on tensors", "return the tensor, or choose with weft.where")
