"""Node: one immutable value in the graph, the primitive it is made by, and the weak table that makes equal nodes one.

A node is a primitive, its sources and its attributes; shape and dtype follow from the primitive's rule. Nodes know
nothing of devices' insides or kernels. What is attached later is `buffer`, where the value lives once it was computed,
and `shown`, for what a tensor was made of.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.base.dtypes import DType
from weft.graph.attributes import Serial

Shape = tuple[int, ...]
Rule = Callable[[tuple["Node", ...], Any, "DType | None"], tuple[Shape, DType]]
Results = Callable[[tuple["Node", ...], Any], tuple[tuple[Shape, DType], ...]]
Evaluation = Callable[["Node", Sequence[np.ndarray], np.dtype], Any]

GRADIENTS = ("rule", "joint", "engine", "none")

_serial = itertools.count()
_LEAF = Serial(-1)  # leaves are never interned: only their identity distinguishes them


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One row of a table of primitives: `graph.primitives`, or `compiler.primitives` for what only the compiler makes.

    `gradient` says where its gradient is: 'rule', its entry in `grad.rules.RULES`; 'joint', the entry of a node with
    several results in `grad.rules.SEVERAL`, which is given the gradients of all of them; 'engine', the reverse
    traversal of `grad.engine` itself; 'none', no gradient reaches it.
    """

    name: str
    # leaf, generate, elementwise, movement, update, reduce, fold, gather, scatter, segment, rows, concat, dot, conv,
    # scan, sort, put, template, order, loop, pick
    kind: str
    arity: int | None  # the number of sources; None for any number above zero
    attributes: type[tuple]  # the record of its attributes in `graph.attributes`; `tuple` where there are none
    shape_rule: Rule
    # Its meaning in NumPy, from the node, the arrays of its sources and the dtype to answer in; of a node with several
    # results the tuple of them. None for leaves, whose value lives in a buffer, for loops, and for what is picked.
    evaluation: Evaluation | None
    cost: int  # operations for one element, where it is computed in place
    gradient: str
    results: Results | None = None  # the shape and dtype of each result of a node with several, which `pick` takes


def given_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert dtype is not None
    return (), dtype


BUFFER = Primitive("buffer", "leaf", 0, Serial, given_rule, None, 0, "none")
INPUT = Primitive("input", "leaf", 0, Serial, given_rule, None, 0, "none")


class Node:
    """One value: `op(srcs, attrs)` with a known shape, dtype and device. Compare with `is`: equal nodes are one."""

    __slots__ = (
        "__weakref__", "_hooks", "attrs", "buffer", "depth", "device", "dtype", "op", "primitive", "serial",
        "shape", "shown", "site", "srcs",
    )  # fmt: skip

    op: str  # the name of the primitive
    primitive: Primitive
    srcs: tuple[Node, ...]
    attrs: Any  # a record of `graph.attributes`
    shape: tuple[int, ...]
    dtype: DType
    device: Any
    buffer: Any  # the Buffer that holds the value once it was computed, else None
    shown: bool  # whether it was the value of a tensor, not just an intermediate one
    depth: int  # longest chain of uncomputed operations below this node
    serial: int  # counts up as nodes are made
    site: str | None  # the user's line, kept only by operations that can fail on the device
    _hooks: Any  # unset unless a tensor of this value has hooks: see `weft.autograd.hooks`

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
# Its weak references by key, looked up without the calls of `WeakValueDictionary.get`.
_references: dict[tuple, weakref.ref[Node]] = _interned.data  # type: ignore[attr-defined]


def intern_node(
    primitive: Primitive,
    srcs: tuple[Node, ...],
    attrs: Any,
    shape: tuple[int, ...],
    dtype: DType,
    device: Any,
    site: str | None = None,
) -> Node:
    """The one node with these fields. Callers have checked the arguments (see `graph.primitives.make_node`)."""
    op = primitive.name
    # 0.0 and -0.0 and 1 and True compare equal, so a constant's type and sign belong in its key.
    label = (repr(attrs.value), dtype) if op == "const" else attrs
    key = (op, label, dtype, device, shape, tuple(map(id, srcs)))
    reference = _references.get(key)
    node = None if reference is None else reference()
    if node is None:
        node = _new(primitive, srcs, attrs, shape, dtype, device, site)
        _interned[key] = node
    return node


def copy_of(node: Node) -> Node:
    """The operation of a node once more, as a node that equals no other."""
    return _new(node.primitive, node.srcs, node.attrs, node.shape, node.dtype, node.device, node.site)


def leaf(buffer: Any, shape: tuple[int, ...], dtype: DType, device: Any) -> Node:
    """A node for a value that lives in `buffer`. Every leaf is its own node."""
    node = Node()  # as `_new` does, in fewer steps: each result of a compiled function is one
    node.op, node.primitive, node.srcs, node.attrs = "buffer", BUFFER, (), _LEAF
    node.shape, node.dtype, node.device = shape, dtype, device
    node.buffer, node.site, node.serial, node.shown = buffer, None, next(_serial), False
    node.depth = 0
    return node


def placeholder(shape: tuple[int, ...], dtype: DType, device: Any) -> Node:
    """A node that stands for a cell or an argument while a function is traced. Every placeholder is its own node."""
    return _new(INPUT, (), Serial(next(_serial)), shape, dtype, device, None)


def _new(primitive: Primitive, srcs, attrs, shape, dtype, device, site) -> Node:
    node = Node()
    node.op, node.primitive, node.srcs, node.attrs = primitive.name, primitive, srcs, attrs
    node.shape, node.dtype, node.device = shape, dtype, device
    node.buffer, node.site, node.serial, node.shown = None, site, next(_serial), False
    node.depth = 1 + max((src.depth for src in srcs if src.buffer is None), default=0) if srcs else 0
    return node


def scalar_of(node: Node) -> float | int | bool | None:
    """The value of a node that is one constant everywhere, else None."""
    while node.op in ("expand", "reshape", "permute", "flip", "slice", "unfold"):
        node = node.srcs[0]
    return node.attrs.value if node.op == "const" else None


def current_serial() -> int:
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
