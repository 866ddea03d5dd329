"""Writes into a window of a value, and reads that are answered from such writes.

`update_slice(x, value)` is `x` with a window replaced. A tensor that is assigned element by element is a chain of them,
so a slice of it looks down that chain when it is made: a slice inside a window reads what was written there,
one outside of it reads what is below. A slice that meets a window in part reads the update itself; below many updates
a short one is put together from its parts.
"""

from __future__ import annotations

import itertools
import math

from weft.graph.attributes import Slice, UpdateSlice
from weft.graph.layout import make_canonical, permute_value, to_source_order
from weft.graph.node import Node

MAX_UPDATES = 1024  # updates that one read searches
MAX_PARTS = 16  # elements along an axis that are read one by one
LONG_CHAIN = 8  # updates below which a read is worth putting together from parts

Shape = tuple[int, ...]


def update_slice(x: Node, value: Node, starts: Shape, steps: Shape) -> Node:
    """`x` with `value` at `starts`, every `steps`; an empty value changes nothing."""
    if value.shape == x.shape:
        return value
    if not value.size:
        return x
    steps = tuple([step if extent > 1 else 1 for step, extent in zip(steps, value.shape, strict=True)])
    return make_canonical("update_slice", (x, value), UpdateSlice(starts, steps))


def window_stops(starts: Shape, steps: Shape, shape: Shape) -> Shape:
    """Where the window of a value of `shape` ends along each axis."""
    return tuple([start + (extent - 1) * step + 1 for start, step, extent in zip(starts, steps, shape, strict=True)])


def read_slice(x: Node, starts: Shape, stops: Shape, steps: Shape) -> Node:
    """`x[starts:stops:steps]`, read from the update that wrote it, or from below updates that did not touch it.

    A value that was computed is read from its memory, unless what it was made of is in memory as well.
    """
    if x.op == "permute":
        order = x.attrs.order
        return permute_value(
            read_slice(x.srcs[0], *[to_source_order(part, order) for part in (starts, stops, steps)]), order
        )
    detached = False
    for _ in range(MAX_UPDATES):
        if x.op == "stop_gradient" and x.srcs[0].op in ("update_slice", "stop_gradient"):
            found, window = x.srcs[0], (starts, stops, steps)
        elif x.op == "update_slice":
            step_down = _slice_source(x, starts, stops, steps)
            if step_down is None:
                parts = _parts(x, starts, stops, steps)
                if parts is None:
                    break
                return make_canonical("stop_gradient", (parts,)) if detached else parts
            found, window = step_down
        else:
            break
        if x.buffer is not None and not _is_in_memory(found):
            break
        detached = detached or x.op == "stop_gradient"
        x, (starts, stops, steps) = found, window
    whole = not any(starts) and stops == x.shape and all(step == 1 for step in steps)
    read = x if whole else make_canonical("slice", (x,), Slice(starts, stops, steps))
    return make_canonical("stop_gradient", (read,)) if detached and read.op != "stop_gradient" else read


def _is_in_memory(node: Node) -> bool:
    while node.buffer is None and node.op in ("reshape", "stop_gradient"):
        node = node.srcs[0]
    return node.buffer is not None


def _slice_source(
    update: Node, starts: Shape, stops: Shape, steps: Shape
) -> tuple[Node, tuple[Shape, Shape, Shape]] | None:
    """The source of an update that a slice reads, with the slice of it; None where it reads both."""
    below, value = update.srcs
    moved: list[tuple[int, int, int]] = []
    inside = True
    for start, stop, step, first, every, extent in zip(starts, stops, steps, *update.attrs, value.shape, strict=True):
        count = -(-(stop - start) // step)
        step = step if count > 1 else 0
        last, end = start + (count - 1) * step, first + (extent - 1) * every
        if not count or last < first or end < start or (start - first) % math.gcd(step, every):
            return below, (starts, stops, steps)
        inside = inside and first <= start and last <= end and not (start - first) % every and not step % every
        begin, stride = (start - first) // every, max(step // every, 1)
        moved.append((begin, begin + (count - 1) * stride + 1, stride))
    return (value, tuple(zip(*moved, strict=True))) if inside else None  # type: ignore[return-value]


def _parts(update: Node, starts: Shape, stops: Shape, steps: Shape) -> Node | None:
    """A short slice that meets the window of an update in part along one axis: the parts before it, inside and after.
    None for any other, below few updates, and of what was computed."""
    below, (firsts, every), extents = update, update.attrs, update.srcs[1].shape
    for _ in range(LONG_CHAIN):
        if below.op != "update_slice" or below.buffer is not None:
            return None
        below = below.srcs[0]
    ends = window_stops(firsts, every, extents)
    cut = [axis for axis in range(len(starts)) if starts[axis] < firsts[axis] or stops[axis] > ends[axis]]
    if len(cut) != 1 or any(step != 1 for step in (*steps, *every)):
        return None
    (axis,) = cut
    if stops[axis] - starts[axis] > MAX_PARTS:
        return None
    inside = (max(starts[axis], firsts[axis]), min(stops[axis], ends[axis]))
    bounds = sorted({starts[axis], *inside, stops[axis]})
    parts = [
        read_slice(update, _with(starts, axis, start), _with(stops, axis, stop), steps)
        for start, stop in itertools.pairwise(bounds)
    ]
    return make_canonical("concat", tuple(parts), (axis,))


def _with(values: Shape, axis: int, value: int) -> Shape:
    return (*values[:axis], value, *values[axis + 1 :])
