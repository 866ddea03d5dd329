"""Views: tensors that share their elements with the tensor they were made from, as PyTorch's views do.

Nodes are immutable values, so nothing shares memory here. A view remembers its base and the movements that lead from
the base to it. A write to a view becomes a new value of the base (the movements undone in reverse order), and every
write to the base makes its views stale: the next read of a view derives its node from the base again. An unwritten
view is an ordinary value: it costs no node and does not keep the history of its base alive.

References: a view refers to its `View`, that to the `Aliases`, and these to the base once it was written. The base
and the list of views are otherwise referred to weakly, so there are no cycles.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.base.dtypes import float32
from weft.base.errors import GraphError, problem
from weft.base.state import STATE
from weft.core.strides import Shape, contiguous_strides, count_elements, movements_of, strides_after, strides_of_reshape
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node, placeholder
from weft.ops import arrange, indexing

MIN_SWEPT_MEMBERS = 64  # views of one base from which on dead references are removed
# How to write to views that do not write through, by the operation that made them.
WRITE_INSTEAD = {
    "diagonal": "write to the source with index tensors, x[i, i + offset] = value, or clone() the view first",
    "unfold": "write to the source, x[index] = value, or clone() the view first",
    "narrow": "write to the source with index tensors, or clone() the view first",
    "expand": "write to the tensor before it was expanded, or clone() the view first",
}


class Aliases:
    """The tensors that share the elements of one base.

    `version` counts writes. Before the first one the base is not retained: `node` then gives its value, strongly if it
    was computed already (it has memory, no history), else weakly.
    """

    __slots__ = ("__weakref__", "_base", "_members", "_node", "base", "shape", "version")

    def __init__(self, base: Any, node: Node):
        self.base: Any = None
        self.version = 0
        self.shape = node.shape
        self._base = weakref.ref(base)
        self._node: Any = node if node.buffer is not None else weakref.ref(node)
        self._members: list[weakref.ref[Any]] = []
        if STATE.trace is not None:  # nodes of a trace mean nothing outside it
            self.base, self._node = base, None

    def add(self, tensor: Any) -> None:
        """Register a view."""
        members = self._members
        members.append(weakref.ref(tensor))
        if len(members) >= MIN_SWEPT_MEMBERS and len(members).bit_count() == 1:  # at each power of two
            members[:] = [member for member in members if member() is not None]

    def note_write(self, base: Any) -> None:
        """The base has a new value."""
        self.base, self._node = base, None
        self.version += 1

    def retain_base(self) -> Any:
        """The base, retained from now on; None where a single view is all that is left of the aliases."""
        if self.base is None:
            base = self._base()
            if base is None:
                members = self._live_views()
                if len(members) < 2:
                    return None
                base = self._restore(members)
            self.base = base
        return self.base

    def release_values(self) -> None:
        """Release nodes of stale views: their memory is about to be rewritten."""
        for tensor in self._live_views():
            if tensor._view.version != self.version and tensor._node.op != "input":
                node = tensor._node
                tensor._node = placeholder(node.shape, node.dtype, node.device)

    def _live_views(self) -> list[Any]:
        """The views that there are; copies among them leave."""
        found = [tensor for member in self._members if (tensor := member()) is not None]
        return [tensor for tensor in found if (view := resolve(tensor)) is not None and view.aliases is self]

    def _restore(self, members: list[Any]) -> Any:
        """A base for views whose own is gone: its value if that is still known, else what the views show of it."""
        requires_grad = any(tensor._requires_grad and not tensor.is_leaf for tensor in members)
        trace, STATE.trace = STATE.trace, None
        try:
            node = self._node() if isinstance(self._node, weakref.ref) else self._node
            if node is None:
                node = self._shown_by(members)
            base = type(members[0])(node, requires_grad, is_leaf=not requires_grad)
        finally:
            STATE.trace = trace
        base._aliases = weakref.ref(self)
        return base

    def _shown_by(self, members: list[Any]) -> Any:
        """What is known of the base's value where only its views are left; 0 where none of them shows it."""
        first = members[0]._node
        node = build.full(self.shape, 0, first.dtype, first.device)
        for tensor in members:
            if tensor._view.blocked is None:
                node = tensor._view.write(node, tensor._node)
        return node


class View:
    """How one view follows from its base: the view it was made of, if that was one, and one operation on its node."""

    __slots__ = (
        "aliases", "args", "blocked", "is_detached", "is_untracked", "leaf", "may_copy", "named", "op", "parent",
        "position", "version",
    )  # fmt: skip

    def __init__(self, aliases: Aliases, parent: View | None, op: Callable[..., Any], args: tuple, named: Mapping):
        self.aliases, self.parent = aliases, parent
        self.op, self.args, self.named = op, args, named
        self.position: int | None = None  # which of several results
        self.version = aliases.version  # of the aliases when the tensor's node was derived
        # The operation that no write can be undone through, if there is one on the way to the base.
        self.blocked: str | None = None
        self.is_detached = self.is_untracked = False  # no gradient flows to the base; it was made under no_grad
        if parent is not None:
            self.blocked, self.is_detached, self.is_untracked = parent.blocked, parent.is_detached, parent.is_untracked
        self.leaf: weakref.ref[Any] | None = None  # the tensor itself, where it is a leaf that requires grad
        self.may_copy = False  # a copy where the elements do not lie as the new shape needs; not known yet

    def derive(self, base: Any) -> Node:
        """The node of the view: movements of the base's node, or of the leaf's that it is a view of."""
        source = self.find_source(base)
        node, start = source.node, source._view
        for view in self._path(start):
            node = view._apply(node)
        return build.stop_gradient(node) if self.is_untracked else node

    def find_source(self, base: Any) -> Any:
        """The nearest view on the way to the base that is a leaf which requires grad itself, or the base."""
        view = self.parent
        while view is not None:
            leaf = None if view.leaf is None else view.leaf()
            if leaf is not None and leaf._requires_grad:
                return leaf
            view = view.parent
        return base

    def is_detached_from(self, start: View | None) -> bool:
        """Whether there is a detach() on the way from the view `start`, or from the base."""
        return any(view.op is build.stop_gradient for view in self._path(start))

    def write(self, base: Node, value: Node) -> Node:
        """The node of the base in which the view's elements are `value`."""
        path = list(self._path())
        nodes = [base]
        for view in path[:-1]:
            nodes.append(view._apply(nodes[-1]))
        for view, node in zip(reversed(path), reversed(nodes), strict=True):
            value = view._undo(node, value)
        return value

    def strides(self) -> Shape | None:
        """The strides of the view over the memory of a contiguous base; None where they are not known."""
        shape, strides = self.aliases.shape, contiguous_strides(self.aliases.shape)
        for view in self._path():
            found = view._move_strides(shape, strides)
            if found is None:
                return None
            shape, strides = found
        return strides

    def offset(self) -> int | None:
        """Where the first element lies in the memory of a contiguous base; None where it is not known."""
        shape, strides, offset = self.aliases.shape, contiguous_strides(self.aliases.shape), 0
        for view in self._path():
            if view.op is indexing.index and _replace_tensors(view.args[0]) is not view.args[0]:
                return None
            offset += view._first_offset(shape, strides)
            found = view._move_strides(shape, strides)
            if found is None:
                return None
            shape, strides = found
        return offset

    def is_copy(self) -> bool:
        """Whether the operation has to copy, in PyTorch: the elements of its source do not lie as they should."""
        shape = self.aliases.shape
        strides: Shape | None = contiguous_strides(shape)
        if self.parent is not None:
            strides = self.parent.strides()
            shape = self.parent._shape()
        if strides is None:
            return False
        if self.op is keep_view:
            return strides_of_reshape(shape, strides, (count_elements(shape),)) != (1,) and count_elements(shape) > 1
        return strides_of_reshape(shape, strides, self._shape()) is None

    def _path(self, start: View | None = None) -> Iterator[View]:
        """The views from the base, or from the one after `start`, to this one."""
        path: list[View] = []
        view: View | None = self
        while view is not None and view is not start:
            path.append(view)
            view = view.parent
        return reversed(path)

    def _apply(self, node: Node) -> Node:
        result = self.op(node, *self.args, **self.named)
        return result if self.position is None else result[self.position]

    def _shape(self) -> Shape:
        shape = self.aliases.shape
        for view in self._path():
            shape = view._apply_to_form(shape).shape
        return shape

    def _apply_to_form(self, shape: Shape) -> Node:
        """The movement on a placeholder: what it does, whatever the value is."""
        start = placeholder(shape, float32, None)
        if self.op is indexing.index:
            return indexing.index(start, _replace_tensors(self.args[0]))
        return self._apply(start)

    def _undo(self, node: Node, value: Node) -> Node:
        """`node` with `value` at the elements that the operation reads."""
        if self.op is indexing.index:
            return _drop_overwritten(indexing.set_index(node, self.args[0], value))
        moves = movements_of(self._apply_to_form(node.shape))
        nodes = [node]
        for move in moves[:-1]:
            nodes.append(make_canonical(move.primitive, (nodes[-1],), move.attrs))
        for move, source in zip(reversed(moves), reversed(nodes), strict=False):
            if move.op == "reshape":
                value = build.reshape(value, source.shape)
            elif move.op == "permute":
                value = build.permute(value, sorted(range(len(source.shape)), key=move.attrs.order.__getitem__))
            elif move.op == "slice":
                key = tuple([slice(*bounds) for bounds in zip(*move.attrs, strict=True)])
                value = _drop_overwritten(indexing.set_index(source, key, value))
        return value

    def _move_strides(self, shape: Shape, strides: Shape) -> tuple[Shape, Shape] | None:
        form = self._apply_to_form(shape)
        if self.op is arrange.diagonal:  # written with a reshape that may copy, but always a view
            axes = [axis % len(shape) for axis in self._diagonal_axes()]
            rest = [stride for axis, stride in enumerate(strides) if axis not in axes]
            return form.shape, (*rest, sum([strides[axis] for axis in axes]))
        for move in movements_of(form):
            found = strides_after(move, strides)
            if found is None:
                return None
            shape, strides = move.shape, found
        return shape, strides

    def _first_offset(self, shape: Shape, strides: Shape) -> int:
        """How far from the first element of its source that of the view lies."""
        form = self._apply_to_form(shape)
        if self.op is arrange.diagonal:
            rows, columns = (strides[axis] for axis in self._diagonal_axes())
            offset = self._diagonal_arguments().get("offset", 0)
            return offset * columns if offset > 0 else -offset * rows
        first = 0
        for move in movements_of(form):
            if move.op == "slice":
                first += sum([start * stride for start, stride in zip(move.attrs.starts, strides, strict=True)])
            strides = strides_after(move, strides) or contiguous_strides(move.shape)
        return first

    def _diagonal_axes(self) -> tuple[int, int]:
        """The two axes of a `diagonal`."""
        given = self._diagonal_arguments()
        return given.get("dim1", 0), given.get("dim2", 1)

    def _diagonal_arguments(self) -> dict[str, Any]:
        return dict(zip(("offset", "dim1", "dim2"), self.args, strict=False), **self.named)


# ---- making, reading and writing views ------------------------------------------------------------------------------


def link(result: Any, source: Any, node: Node, op: Callable[..., Any], args: tuple, named: Mapping) -> View:
    """Make `result` a view of `source`, whose node was `node`: `op(node, *args, **named)`."""
    parent = source._view
    if parent is not None and parent.may_copy:
        parent = resolve(source)
    if parent is not None:
        aliases = parent.aliases
    else:
        reference = source._aliases
        aliases = None if reference is None else reference()
        if aliases is None:
            aliases = Aliases(source, node)
            source._aliases = weakref.ref(aliases)
    view = result._view = View(aliases, parent, op, args, named)
    aliases.add(result)
    if source._requires_grad and not STATE.grad_enabled:
        view.is_untracked = True
    return view


def keep_view(x: Node) -> Node:
    """The movement that moves nothing."""
    return x


def resolve(tensor: Any) -> View | None:
    """The `View` of a tensor, or None; one that turns out to be a copy stands alone from now on."""
    view = tensor._view
    if view is not None and view.may_copy:
        if view.is_copy():
            tensor._view = None
            return None
        view.may_copy = False
    return view


def refresh(tensor: Any) -> None:
    """Derive a stale view from its base. In a trace, only for tensors made in it."""
    view = resolve(tensor)
    if view is None:
        return
    base = view.aliases.base
    tracked, STATE.grad_enabled = STATE.grad_enabled, True  # so that a leaf is found by backward()
    try:
        node = view.derive(base)
    finally:
        STATE.grad_enabled = tracked
    adopt_flags(tensor)
    tensor._consumed, tensor._owned = False, None
    tensor._show(node)
    view.version = view.aliases.version


def adopt_flags(tensor: Any) -> None:
    """Whether a stale view requires grad follows from its base, unless it is a leaf itself: `view.requires_grad_()`."""
    view = resolve(tensor)
    if view is None:
        return
    source = view.find_source(view.aliases.base)
    requires_grad = source._requires_grad and not view.is_untracked and not view.is_detached_from(source._view)
    if requires_grad or not tensor.is_leaf:
        tensor._requires_grad, tensor.is_leaf = requires_grad, not requires_grad


def base_of(tensor: Any) -> Any:
    """The base of a view, or None for a tensor that shares its elements with no other."""
    view = resolve(tensor)
    if view is None:
        return None
    base = view.aliases.retain_base()
    if base is None:
        tensor._view = None
    return base


def writable_base(tensor: Any, who: str, value: Any) -> Any:
    """The base that a write to this tensor goes to, or None for the tensor itself. A forbidden write raises."""
    view = resolve(tensor)
    if view is not None and view.blocked is not None:
        given = f"the result of {view.blocked}(), a view that writes do not go through"
        raise problem(
            GraphError, who, given, "a tensor of its own, or a view by basic indexing", WRITE_INSTEAD[view.blocked]
        )
    base = base_of(tensor)
    if not STATE.grad_enabled:
        return base
    view = tensor._view
    is_leaf_view = False
    if base is not None and view is not None:
        leaf = view.find_source(base)
        is_leaf_view = leaf._requires_grad and leaf.is_leaf and not view.is_detached_from(leaf._view)
    if is_leaf_view or (tensor._requires_grad and tensor.is_leaf):
        given = ("a view of " if is_leaf_view else "") + "a leaf that requires grad"
        raise problem(GraphError, who, given, "no in-place operation on it", "put it under weft.no_grad()")
    if base is None or view is None:
        return base
    if view.is_detached and value._requires_grad:
        given = "a value that requires grad for a view through which no gradient flows: detach()"
        raise problem(GraphError, who, given, "a value without history, or a copy", "use x.detach().clone()")
    if view.is_untracked and not view.is_detached and (base._requires_grad or value._requires_grad):
        given = "a view that was made under no_grad, with gradients on"
        raise problem(GraphError, who, given, "both in one gradient mode", "make the view where it is written")
    return base


def write_through(tensor: Any, base: Any, node: Node, requires_grad: bool) -> Node:
    """Rebind the base of a view so that the view is `node`; returns the new node of the base."""
    view, old = tensor._view, base.node
    assert view is not None
    if STATE.grad_enabled and not view.is_detached:
        whole = view.write(old, node)
        base._requires_grad = base._requires_grad or requires_grad
        base.is_leaf, base._consumed = not base._requires_grad, False
        tensor._requires_grad, tensor.is_leaf, tensor._consumed = base._requires_grad, base.is_leaf, False
        tensor._assign_base(base, whole, node)
    else:  # the value changes, and the gradients of what was there before stay
        whole = view.write(old, node)
        if base._requires_grad:
            whole = build.stop_gradient(whole) if base.is_leaf else build.surrogate(whole, old)
        if tensor._requires_grad:
            base._assign(whole)
        else:
            tensor._assign_base(base, whole, node)
    base._owned = None
    return whole


def release_views(base: Any) -> None:
    """Make the views of a base stale whose memory will be rewritten, and release what they retain of it."""
    aliases = base._aliases()
    if aliases is not None:
        aliases.note_write(base)
        aliases.release_values()


def _drop_overwritten(node: Node) -> Node:
    """A write without the one below it, where that wrote the same elements: `for ...: row += 1` does not grow."""
    below = node.srcs[2] if node.op == "select" else node
    if below.op != "select" or below.srcs[0] is not node.srcs[0] or below.buffer is not None:
        return node
    return make_canonical("select", (node.srcs[0], node.srcs[1], below.srcs[2]))


def _replace_tensors(key: Any) -> Any:
    """An index expression with 0 for its tensors, which have no axes."""
    if isinstance(key, tuple):
        has_nodes = any(isinstance(item, Node) for item in key)
        return tuple([0 if isinstance(item, Node) else item for item in key]) if has_nodes else key
    return 0 if isinstance(key, Node) else key
