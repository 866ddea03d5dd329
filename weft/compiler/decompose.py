"""decompose: bring heavy nodes into the few forms that the fuser knows.

Reductions get a canonical shape, and long ones are split in two; small matrix products become multiply and sum; what
adds up 16-bit floats does so in float32. All choices here depend on shapes and the kind of device alone. That is what
makes results the same bits in whatever company a node is compiled: the order of additions is fixed before anything is
fused, scheduled or tuned.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from weft.compiler import order, order_blocks
from weft.compiler.access import Strided, reshaped, row_major, terms_of_fold
from weft.compiler.libraries import library_of
from weft.compiler.order import along
from weft.compiler.positions import Position
from weft.compiler.simplify import reshape
from weft.dtypes import DType, float32, int64
from weft.graph.build import cast, expand, narrow
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, Primitive, make
from weft.kernels.cascade import CHAIN

SMALL_DOT = 8192  # multiply-adds up to which a matrix product is a fused loop rather than a library call
INNER = 64  # a last axis at least this long is worth its own vector loop
COLUMNS_ALONE = 64  # rows that one pass over a column adds up before the sum is split
LONG = 32768  # elements from which a reduction with few results is split
FEW = 8  # windows over an element that are added one by one
PER_CHUNK = 8192  # at least this many elements make a chunk of a split row sum
# Kinds whose nodes can be computed right into their place in a concatenation.
COMPUTED_IN_PLACE = frozenset({"elementwise", "reduce", "dot", "scatter", "segment"})
# Kinds whose nodes take 16-bit floats as they are; all others add up in float32 and round once, at their end.
ROUNDS_EACH = frozenset({"leaf", "generate", "elementwise", "movement", "gather", "concat", "loop", "pick"})
KEEPS_NARROW = frozenset({"custom", "library", "block_attention", "block_attention_backward"})  # so do these nodes


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a kind of device wants long reductions cut: rows into at most `rows` pieces, unless there are `enough` rows;
    columns into at most `columns` chunks of at least `least` rows, or into more where these would have more than
    `most` rows: a kernel adds up the rows of a chunk one by one. The sums of more than `again` chunks are cut once
    more. Where `sums` is not 0, chunks have at most so many
    sums in all, unless there are `fewest` chunks; and their number is a power of two, some of them a row shorter:
    kernels that add up chunks know it, and a batch that is a little shorter needs no other ones."""

    rows: int
    enough: int
    columns: int
    least: int
    most: int
    again: int
    fewest: int = 0
    sums: int = 0


FOR_WORKERS, FOR_BLOCKS = (
    Pieces(64, 64, 64, 32, 2 * CHAIN, 1 << 14),
    Pieces(1024, 128, 2048, 16, 256, 2048, 256, 1 << 17),
)
NARROW = 256  # columns of which chunks are as short as can be: their sums are little to store

# What is written apart for devices with blocks and for others, in the room that is given.
ORDERED: dict[str, Callable[[Node, tuple[Node, ...], ModuleType], Node]] = {
    "scan": lambda node, srcs, room: room.scan(srcs[0], *node.attrs),
    "argsort": lambda node, srcs, room: room.argsort(srcs[0]),
    "along_add": lambda node, srcs, room: room.along_add(*srcs, *node.attrs),
    **{f"scatter_{fold}": lambda node, srcs, room: room.scatter(node, *srcs) for fold in ("add", "max", "min", "prod")},
}


def decompose(
    nodes: list[Node], outputs: list[Node], leaves: Collection[Node], apart: Collection[Node] = ()
) -> list[Node]:
    """The outputs, rebuilt with canonical reductions, small products and self-contained concatenations.

    The values in `apart` need memory of their own, also as parts of a concatenation.
    """
    leaf_set = set(leaves)
    new: dict[Node, Node] = {}
    placed: set[Node] = set()
    users = Counter([*itertools.chain(*[node.srcs for node in nodes]), *outputs])
    for node in nodes:
        if node in leaf_set or not node.srcs:
            new[node] = node
            continue
        given = srcs = tuple([new[source] for source in node.srcs])
        if PRIMITIVES[node.op].kind not in ROUNDS_EACH and node.op not in KEEPS_NARROW:
            srcs = tuple([cast(source, float32) if source.dtype.is_narrow else source for source in srcs])
        if node.op == "dot":
            new[node] = _dot(given if _stays_narrow(given) else srcs)
        elif node.op.startswith("reduce_"):
            new[node] = _reduce(node.op[len("reduce_") :], srcs[0], node.attrs[0])
        elif node.op == "fold":
            new[node] = _fold(srcs[0], node.attrs)
        elif node.op == "along":
            new[node] = along(srcs[0], srcs[1], node.attrs[0], node.site)
        elif node.op in ORDERED:
            new[node] = ORDERED[node.op](node, srcs, order_blocks if "blocks" in node.device.features else order)
        elif node.op == "concat":
            leading = math.prod(node.shape[: node.attrs[0]]) == 1
            once = [_once(source, users) for source in node.srcs]
            parts = [
                source if alone and _written_inside(source, window, leaf_set, placed)
                else _part(source, leaf_set, placed, leading)
                for source, window, alone in zip(srcs, _windows(node), once, strict=True)
            ]  # fmt: skip
            new[node] = make("concat", tuple(parts), node.attrs)
        elif srcs == node.srcs:
            new[node] = node
        else:
            new[node] = make(node.op, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site)
        new[node] = cast(new[node], node.dtype)
        if node in apart:
            placed.add(_under_reshape(new[node], leaf_set))
    return [new[node] for node in outputs]


def _stays_narrow(factors: tuple[Node, ...]) -> bool:
    """Whether the device multiplies 16-bit factors as they are."""
    device = factors[0].device
    return _is_large(factors) and ("narrow products" in device.features or library_of(device) is not None)


def _is_large(factors: tuple[Node, ...]) -> bool:
    """Whether a product is left to a kernel or library for products, which are for floats alone."""
    a, b = factors
    return a.dtype.kind == "f" and math.prod(a.shape) * b.shape[-1] > SMALL_DOT


def _dot(srcs: tuple[Node, ...]) -> Node:
    a, b = srcs
    *batch, m, k = a.shape
    n = b.shape[-1]
    if _is_large(srcs):
        return make("dot", srcs)
    full = (*batch, m, k, n)
    left = expand(reshape(a, (*batch, m, k, 1)), full)
    right = expand(reshape(b, (*batch, 1, k, n)), full)
    return _reduce("sum", make("mul", (left, right)), (len(full) - 2,))


def _fold(source: Node, attrs: tuple) -> Node:
    """The windows over each element, added in order of their places: a chain where they are few, else a reduction."""
    axis = attrs[0]
    terms = make("fold_terms", (source,), attrs)
    count, shape = terms.shape[axis], (*terms.shape[:axis], *terms.shape[axis + 1 :])
    if count > FEW:
        return _reduce("sum", terms, (axis,))
    total = reshape(narrow(terms, axis, 0, 1), shape)
    for j in range(1, count):
        total = make("add", (total, reshape(narrow(terms, axis, j, j + 1), shape)))
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
        keep_apart = reduced and axis == last and extent >= INNER
        if groups and groups[-1][0] == reduced and not keep_apart:
            groups[-1] = (reduced, groups[-1][1] * extent)
        else:
            groups.append((reduced, extent))
    shape = tuple([extent for _, extent in groups])
    reduced_axes = tuple([position for position, (reduced, _) in enumerate(groups) if reduced])
    x = reshape(source, shape)
    pieces = FOR_BLOCKS if "blocks" in source.device.features else FOR_WORKERS
    split = _split(shape, reduced_axes, pieces)
    if split is None:
        out = make(f"reduce_{op}", (x,), (reduced_axes,))
    else:
        partial = make(f"partial_{op}", (x,), (reduced_axes, *split))
        many = partial.shape[0] > pieces.again
        out = _reduce(op, partial, (0,)) if many else make(f"reduce_{op}", (partial,), ((0,),))
    return reshape(out, kept_shape)


def _split(shape: tuple[int, ...], axes: tuple[int, ...], pieces: Pieces) -> tuple[int, int, int] | None:
    """(axis to cut, length of a piece, number of pieces) where a reduction is long and yields little, else None."""
    n = math.prod(shape[axis] for axis in axes)
    kept = math.prod(shape) // n
    if len(shape) - 1 in axes:
        axis = max(axes, key=lambda position: shape[position])
        count = min(pieces.rows, -(-n // PER_CHUNK), shape[axis])
        if kept >= pieces.enough or n < LONG or count < 2:
            return None
        per = -(-shape[axis] // count)
        per = -(-per // INNER) * INNER if axis == len(shape) - 1 else per
        return axis, per, -(-shape[axis] // per)
    if axes != (0,) or n <= COLUMNS_ALONE:
        return None
    count = min(pieces.columns, -(-n // pieces.least))
    fewest = -(-n // pieces.most)
    if not pieces.sums:
        fewest = -(-n // CHAIN) if kept <= NARROW else fewest
        per = -(-n // max(count, fewest))
        return 0, per, -(-n // per)
    most = max(pieces.sums // kept, pieces.fewest)
    count = max(min(_power_above(count), 1 << (most.bit_length() - 1)), _power_above(fewest))
    return 0, -(-n // count), count


def _power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _under_reshape(node: Node, leaves: Collection[Node]) -> Node:
    while node.op == "reshape" and node not in leaves:
        node = node.srcs[0]
    return node


def _part(source: Node, leaves: Collection[Node], placed: set[Node], leading: bool) -> Node:
    """A part of a concatenation that can be computed right into its place; copied there where it cannot."""
    base = _under_reshape(source, leaves)
    kind = PRIMITIVES[base.op].kind
    if not leading or base in leaves or base in placed or kind not in COMPUTED_IN_PLACE:
        return copy_of(source)
    placed.add(base)
    return source


def _windows(node: Node) -> list[Strided]:
    """The places of a concatenation's parts in it."""
    axis, strides = node.attrs[0], row_major(node.shape)
    starts = itertools.accumulate([source.shape[axis] for source in node.srcs[:-1]], initial=0)
    return [Strided(node, start * strides[axis], strides) for start in starts]


def _once(source: Node, users: Counter[Node]) -> bool:
    """Whether nobody but one user reads `source`, whatever shapes it has on the way."""
    while source.op == "reshape" and users[source] == 1:
        source = source.srcs[0]
    return users[source] == 1


def _written_inside(source: Node, window: Strided, leaves: Collection[Node], placed: set[Node]) -> bool:
    """Whether a library writes `source` right into its place in a concatenation."""
    base = _under_reshape(source, leaves)
    if base in leaves or base in placed or base.op != "pick" or base.srcs[0].op != "library":
        return False
    call = base.srcs[0]
    strides = reshaped(source.shape, window.strides, base.shape)
    view = None if strides is None else Strided(base, window.offset, strides)
    if view is None or not base.device.libraries[call.attrs[0]].writes(call, base.attrs[0], view):
        return False
    placed.add(base)
    return True


_copies = itertools.count()


def copy_of(source: Node) -> Node:
    """The same value in memory of its own; every copy is its own node."""
    return make("copy", (source,), (next(_copies),))


def number_for(node: Node, slot: int) -> Node:
    """What stands for a constant whose value comes with each run."""
    return make("number", (), (slot,), dtype=node.dtype, device=node.device)


def numbers_for(positions: Iterable[Position]) -> dict[Node, dict[int, Node]]:
    """What stands for the starts of slices that come with each run, by node and axis."""
    found: dict[Node, dict[int, Node]] = {}
    for at in positions:
        found.setdefault(at.node, {})[at.axis] = make("number", (), (at.slot,), dtype=int64, device=at.node.device)
    return found


# --- primitives that only the compiler makes -------------------------------------------------------------------------


def _partial_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    (source,), (axes, _, _, count) = srcs, attrs
    return (count, *[n for position, n in enumerate(source.shape) if position not in axes]), source.dtype


def _partial_of(function):
    def run(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        axes, axis, per, count = node.attrs
        (x,) = arrays
        extent = x.shape[axis]
        if "blocks" in node.device.features and x.ndim - 1 not in axes:  # every so manieth row: `gpu_chunks.Turns`
            ranges = [range(chunk, extent, count) for chunk in range(count)]
        else:
            ranges = [range(at, min(at + per, extent)) for at in range(0, extent, per)]
        return np.stack([function(np.take(x, part, axis), axis=axes) for part in ranges]).astype(dtype)

    return run


def _same_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    return srcs[0].shape, srcs[0].dtype


def _fold_terms_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    (source,), (axis, extent, step, dilation) = srcs, attrs
    terms = terms_of_fold(source.shape[axis + 1], step, dilation)
    return (*source.shape[:axis], terms, extent, *source.shape[axis + 2 :]), source.dtype


def _fold_terms(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    axis, _, step, dilation = node.attrs
    windows = np.moveaxis(arrays[0], (axis, axis + 1), (0, 1))
    out = np.zeros(node.shape, dtype)
    target = np.moveaxis(out, (axis, axis + 1), (0, 1))
    for o, k in itertools.product(*map(range, windows.shape[:2])):
        target[k // (step // math.gcd(step, dilation)), o * step + k * dilation] = windows[o, k]
    return out


PRIMITIVES["fold_terms"] = Primitive("fold_terms", "movement", 1, _fold_terms_shape, _fold_terms)


def _open(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    assert dtype is not None
    return (), dtype


PRIMITIVES["number"] = Primitive("number", "generate", 0, _open, None)
PRIMITIVES["copy"] = Primitive("copy", "elementwise", 1, _same_shape, lambda node, arrays, dtype: arrays[0])
for _name, _function in {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}.items():
    PRIMITIVES[f"partial_{_name}"] = Primitive(f"partial_{_name}", "reduce", 1, _partial_shape, _partial_of(_function))
