"""Node: one immutable value in the graph, and the weak table that makes equal nodes one object.

A node is an operation name, its sources and its attributes; shape and dtype follow from the primitive's rule. Nodes
know nothing of devices' insides or kernels. What is attached later is `buffer`, where the value lives once it was
computed, and `shown`, for what a tensor was made of.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from weft.dtypes import DType

_serial = itertools.count()


class Node:
    """One value: `op(srcs, attrs)` with a known shape, dtype and device. Compare with `is`: equal nodes are one."""

    __slots__ = (
        "__weakref__", "_hooks", "attrs", "buffer", "depth", "device", "dtype", "op", "serial", "shape", "shown",
        "site", "srcs",
    )  # fmt: skip

    op: str
    srcs: tuple[Node, ...]
    attrs: tuple
    shape: tuple[int, ...]
    dtype: DType
    device: Any
    buffer: Any  # the Buffer that holds the value once it was computed, else None
    shown: bool  # whether it was the value of a tensor, not just a step on the way to one
    depth: int  # longest chain of uncomputed operations below this node
    serial: int  # counts up as nodes are made
    site: str | None  # the user's line, kept only by operations that can fail on the device
    _hooks: Any  # unset unless a tensor of this value has hooks: see `weft.hooks`

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype.name}{list(self.shape)}>"

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


_interned: weakref.WeakValueDictionary[tuple, Node] = weakref.WeakValueDictionary()


def intern_node(
    op: str,
    srcs: tuple[Node, ...],
    attrs: tuple,
    shape: tuple[int, ...],
    dtype: DType,
    device: Any,
    site: str | None = None,
) -> Node:
    """The one node with these fields. Callers have checked the arguments (see `graph.primitives.make`)."""
    # 0.0 and -0.0 and 1 and True compare equal, so a constant's type and sign belong in its key.
    label = (repr(attrs[0]), dtype) if op == "const" else attrs
    key = (op, label, dtype, device, shape, tuple(map(id, srcs)))
    node = _interned.get(key)
    if node is None:
        node = _new(op, srcs, attrs, shape, dtype, device, site)
        _interned[key] = node
    return node


def copy_of(node: Node) -> Node:
    """The operation of a node once more, as a node that equals no other."""
    return _new(node.op, node.srcs, node.attrs, node.shape, node.dtype, node.device, node.site)


def leaf(buffer: Any, shape: tuple[int, ...], dtype: DType, device: Any) -> Node:
    """A node for a value that lives in `buffer`. Every leaf is its own node."""
    node = Node()  # as `_new` does, in fewer steps: each result of a compiled function is one
    node.op, node.srcs, node.attrs = "buffer", (), (next(_serial),)
    node.shape, node.dtype, node.device = shape, dtype, device
    node.buffer, node.site, node.serial, node.shown = buffer, None, next(_serial), False
    node.depth = 0
    return node


def placeholder(shape: tuple[int, ...], dtype: DType, device: Any) -> Node:
    """A node that stands for a cell or an argument while a function is traced. Every placeholder is its own node."""
    return _new("input", (), (next(_serial),), shape, dtype, device, None)


def _new(op, srcs, attrs, shape, dtype, device, site) -> Node:
    node = Node()
    node.op, node.srcs, node.attrs = op, srcs, attrs
    node.shape, node.dtype, node.device = shape, dtype, device
    node.buffer, node.site, node.serial, node.shown = None, site, next(_serial), False
    node.depth = 1 + max((src.depth for src in srcs if src.buffer is None), default=0) if srcs else 0
    return node


def scalar_of(node: Node) -> float | int | bool | None:
    """The value of a node that is one constant everywhere, else None."""
    while node.op in ("expand", "reshape", "permute", "flip", "slice", "unfold"):
        node = node.srcs[0]
    return node.attrs[0] if node.op == "const" else None


def now() -> int:
    """A number between the serials of all nodes made so far and of those still to come."""
    return next(_serial)


def is_computed(node: Node) -> bool:
    return node.buffer is not None


def toposort(roots: Iterable[Node], stop: Callable[[Node], bool] = is_computed) -> list[Node]:
    """Every node below `roots`, sources before users, without recursion. Nothing below a node that `stop` holds for."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if not stop(node):
                for source in reversed(node.srcs):
                    if source not in seen:
                        stack.append((source, False))
    return order
