"""Expensive nodes in the few forms that the fuser accepts.

Reductions get a canonical shape, and long ones are split in two; small matrix products become multiply and sum; what
adds up 16-bit floats does so in float32. All choices here depend on shapes and the class of device alone, so a
node has the same bits in every fusion context: the order of additions is fixed before anything is fused, scheduled or
tuned.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from types import ModuleType

from weft.base.dtypes import float32, int64
from weft.compiler.fusion.index_map import Strided, reshape_strides, row_major
from weft.compiler.passes import gpu_sorting
from weft.compiler.passes import sorting as cpu_sorting
from weft.compiler.passes.library_calls import library_of
from weft.compiler.passes.simplify import reshape
from weft.compiler.passes.slice_starts import Position
from weft.compiler.passes.sorting import along
from weft.compiler.primitives import COPY, FOLD_TERMS, NUMBER, PARTIAL
from weft.graph.attributes import Fold
from weft.graph.build import cast, expand, narrow
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.kernels import numerics

# Kinds whose nodes can be computed directly into their window of a concatenation.
COMPUTED_IN_PLACE = frozenset({"elementwise", "reduce", "dot", "scatter", "segment"})
# Kinds whose nodes take 16-bit floats without a cast; all others add up in float32 and round once, at their end.
ROUNDS_EACH = frozenset({"leaf", "generate", "elementwise", "movement", "gather", "concat", "loop", "pick"})
KEEPS_FLOAT16 = frozenset({"custom", "library", "block_attention", "block_attention_backward"})  # so do these nodes


# What GPUs and CPUs compute in different forms, by the module of the device class (`gpu_sorting` or `sorting`).
SORTING_FORMS: dict[str, Callable[[Node, tuple[Node, ...], ModuleType], Node]] = {
    "scan": lambda node, srcs, module: module.scan(srcs[0], *node.attrs),
    "argsort": lambda node, srcs, module: module.argsort(srcs[0]),
    "along_add": lambda node, srcs, module: module.along_add(*srcs, *node.attrs),
    **{
        f"scatter_{reduction}": lambda node, srcs, module: module.scatter(node, *srcs)
        for reduction in ("add", "max", "min", "prod")
    },
}


def decompose(
    nodes: list[Node], outputs: Sequence[Node], leaves: Collection[Node], separate: Collection[Node] = ()
) -> list[Node]:
    """The outputs, rebuilt with canonical reductions, small products and self-contained concatenations.

    The values in `separate` need memory of their own, also as parts of a concatenation.
    """
    leaf_set = set(leaves)
    new: dict[Node, Node] = {}
    assigned: set[Node] = set()
    users = Counter([*itertools.chain(*[node.srcs for node in nodes]), *outputs])
    for node in nodes:
        if node in leaf_set or not node.srcs:
            new[node] = node
            continue
        given = srcs = tuple([new[source] for source in node.srcs])
        if node.primitive.kind not in ROUNDS_EACH and node.op not in KEEPS_FLOAT16:
            srcs = tuple([cast(source, float32) if source.dtype.is_16_bit else source for source in srcs])
        if node.op == "dot":
            new[node] = _dot(given if _multiplies_float16(given) else srcs)
        elif node.op.startswith("reduce_"):
            new[node] = _reduce(node.op[len("reduce_") :], srcs[0], node.attrs.axes)
        elif node.op == "fold":
            new[node] = _fold(srcs[0], node.attrs)
        elif node.op == "along":
            new[node] = along(srcs[0], srcs[1], node.attrs.axis, node.site)
        elif node.op in SORTING_FORMS:
            new[node] = SORTING_FORMS[node.op](
                node, srcs, gpu_sorting if node.device.features.workgroups else cpu_sorting
            )
        elif node.op == "concat":
            leading = math.prod(node.shape[: node.attrs.axis]) == 1
            single_use = [_has_one_user(source, users) for source in node.srcs]
            parts = [
                source if alone and _can_write_inside(source, window, leaf_set, assigned)
                else _part(source, leaf_set, assigned, leading)
                for source, window, alone in zip(srcs, _windows(node), single_use, strict=True)
            ]  # fmt: skip
            new[node] = make_node("concat", tuple(parts), node.attrs)
        elif srcs == node.srcs:
            new[node] = node
        else:
            new[node] = make_node(
                node.primitive, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site
            )
        new[node] = cast(new[node], node.dtype)
        if node in separate:
            assigned.add(_under_reshape(new[node], leaf_set))
    return [new[node] for node in outputs]


def _multiplies_float16(factors: tuple[Node, ...]) -> bool:
    """Whether the device multiplies 16-bit factors as they are."""
    device = factors[0].device
    return _is_large(factors) and (device.features.float16_products or library_of(device) is not None)


def _is_large(factors: tuple[Node, ...]) -> bool:
    """Whether a product is left to a kernel or library for products, which are for floats alone."""
    a, b = factors
    return a.dtype.kind == "f" and math.prod(a.shape) * b.shape[-1] > numerics.MAX_FUSED_PRODUCT


def _dot(srcs: tuple[Node, ...]) -> Node:
    a, b = srcs
    *batch, m, k = a.shape
    n = b.shape[-1]
    if _is_large(srcs):
        return make_node("dot", srcs)
    full = (*batch, m, k, n)
    left = expand(reshape(a, (*batch, m, k, 1)), full)
    right = expand(reshape(b, (*batch, 1, k, n)), full)
    return _reduce("sum", make_node("mul", (left, right)), (len(full) - 2,))


def _fold(source: Node, attrs: Fold) -> Node:
    """The windows over each element, added in order of their positions: a chain where they are few, else a
    reduction."""
    axis = attrs.axis
    terms = make_node(FOLD_TERMS, (source,), attrs)
    count, shape = terms.shape[axis], (*terms.shape[:axis], *terms.shape[axis + 1 :])
    if count > numerics.MAX_CHAINED_WINDOWS:
        return _reduce("sum", terms, (axis,))
    total = reshape(narrow(terms, axis, 0, 1), shape)
    for j in range(1, count):
        total = make_node("add", (total, reshape(narrow(terms, axis, j, j + 1), shape)))
    return total


def _reduce(op: str, source: Node, axes: tuple[int, ...]) -> Node:
    """A reduction over the canonical shape: kept and reduced axes alternate, extents of 1 are gone."""
    kept_shape = tuple([n for axis, n in enumerate(source.shape) if axis not in axes])
    if all(source.shape[axis] == 1 for axis in axes):
        return reshape(source, kept_shape)
    groups: list[tuple[bool, int]] = []
    last = max(axis for axis, n in enumerate(source.shape) if n != 1)
    for axis, extent in enumerate(source.shape):
        if extent == 1:
            continue
        reduced = axis in axes
        is_separate = reduced and axis == last and extent >= numerics.MIN_INNER_EXTENT
        if groups and groups[-1][0] == reduced and not is_separate:
            groups[-1] = (reduced, groups[-1][1] * extent)
        else:
            groups.append((reduced, extent))
    shape = tuple([extent for _, extent in groups])
    reduced_axes = tuple([position for position, (reduced, _) in enumerate(groups) if reduced])
    x = reshape(source, shape)
    pieces = numerics.GPU_PIECES if source.device.features.workgroups else numerics.CPU_PIECES
    split = numerics.split_reduction(shape, reduced_axes, pieces)
    if split is None:
        out = make_node(f"reduce_{op}", (x,), (reduced_axes,))
    else:
        partial = make_node(PARTIAL[op], (x,), (reduced_axes, *split))
        many = partial.shape[0] > pieces.again
        out = _reduce(op, partial, (0,)) if many else make_node(f"reduce_{op}", (partial,), ((0,),))
    return reshape(out, kept_shape)


def _under_reshape(node: Node, leaves: Collection[Node]) -> Node:
    while node.op == "reshape" and node not in leaves:
        node = node.srcs[0]
    return node


def _part(source: Node, leaves: Collection[Node], assigned: set[Node], leading: bool) -> Node:
    """A part of a concatenation that can be computed directly into its window; a copy where it cannot."""
    base = _under_reshape(source, leaves)
    kind = base.primitive.kind
    if not leading or base in leaves or base in assigned or kind not in COMPUTED_IN_PLACE:
        return copy_of(source)
    assigned.add(base)
    return source


def _windows(node: Node) -> list[Strided]:
    """The windows of a concatenation's parts in its memory."""
    axis, strides = node.attrs.axis, row_major(node.shape)
    starts = itertools.accumulate([source.shape[axis] for source in node.srcs[:-1]], initial=0)
    return [Strided(node, start * strides[axis], strides) for start in starts]


def _has_one_user(source: Node, users: Counter[Node]) -> bool:
    """Whether `source` has one user, through reshapes."""
    while source.op == "reshape" and users[source] == 1:
        source = source.srcs[0]
    return users[source] == 1


def _can_write_inside(source: Node, window: Strided, leaves: Collection[Node], assigned: set[Node]) -> bool:
    """Whether a library writes `source` directly into its window of a concatenation."""
    base = _under_reshape(source, leaves)
    if base in leaves or base in assigned or base.op != "pick" or base.srcs[0].op != "library":
        return False
    call = base.srcs[0]
    strides = reshape_strides(source.shape, window.strides, base.shape)
    view = None if strides is None else Strided(base, window.offset, strides)
    if view is None or not base.device.libraries[call.attrs.library].can_write(call, base.attrs.number, view):
        return False
    assigned.add(base)
    return True


_copies = itertools.count()


def copy_of(source: Node) -> Node:
    """The same value in memory of its own; every copy is its own node."""
    return make_node(COPY, (source,), (next(_copies),))


def number_for(node: Node, slot: int) -> Node:
    """The node of a constant whose value comes with each run."""
    return make_node(NUMBER, (), (slot,), dtype=node.dtype, device=node.device)


def numbers_for(positions: Iterable[Position]) -> dict[Node, dict[int, Node]]:
    """The nodes of slice starts that come with each run, by node and axis."""
    found: dict[Node, dict[int, Node]] = {}
    for at in positions:
        found.setdefault(at.node, {})[at.axis] = make_node(NUMBER, (), (at.slot,), dtype=int64, device=at.node.device)
    return found
