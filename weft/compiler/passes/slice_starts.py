"""Where slices and writes into slices start, as numbers that come with each run.

`for i in range(n): x[i] = f(x[:, i])` makes graphs that differ in nothing but starts. A program whose starts are open
has one form for all of them, so its plan is found again. A write of one row, or of one value for a whole window,
compares indices with its start, whatever that is, so its start is always open. Other starts determine which elements
are adjacent, so a program is compiled with them as constants first, and with open ones (`wide`) once it comes back with
others.

`expand_update` and `expand_slice` give what the passes compile: comparisons with the start, windows by number.
Many writes into a large value are a concatenation (`expand_chain`), of which each element is written once.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from weft.base.dtypes import int64
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node

Starts = Mapping[int, Node]  # by axis: a scalar that comes with each run

MOST_OPEN = 32  # writes of a program up to which their starts are open
CHAIN = 8  # writes, one after the other, that may be a concatenation
CHOICES = 1 << 20  # between a value and what was written, up to which every element checks every write


@dataclass(frozen=True, slots=True)
class Position:
    """The start of `node`, a slice or an update, along `axis`: entry `slot` of a run's numbers."""

    node: Node
    axis: int
    slot: int

    @property
    def value(self) -> int:
        return self.node.attrs.starts[self.axis]


def open_axes(node: Node, leaves: Container[Node], wide: bool) -> tuple[int, ...]:
    """The axes of a slice or an update along which its start is open."""
    if node.op == "update_slice":
        value = node.srcs[1]
        inner, outer, window = _strip_repeat(value, leaves).shape, node.shape, value.shape
        return tuple([axis for axis, n in enumerate(outer) if window[axis] != n and (wide or inner[axis] == 1)])
    if node.op == "slice" and wide and node.size:
        return tuple([axis for axis, n in enumerate(node.srcs[0].shape) if node.shape[axis] != n])
    return ()


def open_form(node: Node, axes: tuple[int, ...]) -> tuple:
    """The attributes of a slice or an update without the starts along `axes`."""
    starts = tuple([None if axis in axes else start for axis, start in enumerate(node.attrs.starts)])
    return (starts, node.attrs.steps)


def _strip_repeat(value: Node, leaves: Container[Node]) -> Node:
    """What a value that is not in memory repeats."""
    return value.srcs[0] if value.op == "expand" and value not in leaves else value


def expand_update(node: Node, srcs: tuple[Node, ...], leaves: Container[Node], starts: Starts) -> Node:
    """A write into a window: `value` where the indices are those of the window, else `x`."""
    (x, value), (fixed, steps) = srcs, node.attrs
    small, here = _strip_repeat(value, leaves), None
    for axis, extent in enumerate(x.shape):
        part, step = value.shape[axis], steps[axis]
        if part == extent:
            continue
        start = starts.get(axis)
        inside = _is_in_window(
            x, axis, part, step, build.const(fixed[axis], int64, x.device) if start is None else start
        )
        here = inside if here is None else make_node("and", (here, inside))
        if small.shape[axis] > 1:
            small = _pad_to(small, axis, extent, step, fixed[axis] if start is None else start)
    assert here is not None
    return make_node("select", (here, build.expand(small, x.shape), x))


def _is_in_window(x: Node, axis: int, part: int, step: int, start: Node) -> Node:
    """Whether an element of `x` is in the window of `part` elements along `axis`, every `step` from `start` on."""
    at, start = build.iota(x.shape, axis, x.device), build.expand_to(start, x.shape)
    if part == 1:
        return build.eq(at, start)
    offset = build.sub(at, start)
    inside = make_node(
        "and", (make_node("le", (build.like(offset, 0), offset)), build.lt(offset, (part - 1) * step + 1))
    )
    if step == 1:
        return inside
    return make_node("and", (inside, build.eq(make_node("mod", (offset, build.like(offset, step))), 0)))


def _pad_to(x: Node, axis: int, extent: int, step: int, start: Node | int) -> Node:
    """`x` put at `start`, every `step`, along an axis of `extent`; anything around it."""
    span, rank = (x.shape[axis] - 1) * step + 1, len(x.shape)
    spaced = build.embed_slice(x, _with(x.shape, axis, span), (0,) * rank, _with((1,) * rank, axis, step))
    low = extent - span if isinstance(start, Node) else start  # the last start there can be, or this one
    high = extent - span if isinstance(start, Node) else extent - span - start
    padded = build.pad(spaced, _with((0,) * rank, axis, low), _with((0,) * rank, axis, high))
    if not isinstance(start, Node):
        return padded
    return _window(padded, axis, extent, 1, build.sub(low, start))


def expand_slice(node: Node, x: Node, starts: Starts) -> Node:
    """A slice whose start along some axes is a number of the run; along others it is whole."""
    for axis, start in starts.items():
        x = _window(x, axis, node.shape[axis], node.attrs.steps[axis], start)
    return x


def _window(x: Node, axis: int, size: int, step: int, start: Node) -> Node:
    """`size` elements along `axis`, every `step` from `start` on, which is a scalar."""
    if size == 1:
        return build.reshape(build.gather(x, start, axis, known=True), _with(x.shape, axis, 1))
    return build.gather(make_node("unfold", (x,), (axis, size, 1, step)), start, axis, known=True)


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])


def chains_of(nodes: Sequence[Node], outputs: Sequence[Node], leaves: Container[Node]) -> dict[Node, list[Node]]:
    """Long chains of writes into large values of which only the last result is read: by that, all of them in order."""
    users = Counter([source for node in nodes if node not in leaves for source in node.srcs])
    users.update(outputs)
    chains: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op == "update_slice" and node not in leaves:
            below = node.srcs[0]
            chains[node] = chains.pop(below) if below in chains and users[below] == 1 else []
            chains[node].append(node)
    return {
        last: chain
        for last, chain in chains.items()
        if len(chain) >= CHAIN and len(chain) * last.size > CHOICES and _axis_of(chain) is not None
    }


def _axis_of(chain: Sequence[Node]) -> int | None:
    """The axis along which the windows of all writes are whole runs: -1 where that is so once the value is flattened;
    None where there is none."""
    axes: set[int] = set()
    flat = True
    for node in chain:
        window, shape = node.srcs[1].shape, node.shape
        partial = [axis for axis, extent in enumerate(shape) if window[axis] != extent]
        if any(step != 1 for step in node.attrs.steps):
            return None
        axes.add(partial[0] if len(partial) == 1 else -1)
        flat = flat and math.prod(window[: partial[-1]]) == 1
    if len(axes) == 1 and -1 not in axes:
        return axes.pop()
    return -1 if flat else None


def expand_chain(chain: Sequence[Node], x: Node, values: Sequence[Node]) -> Node:
    """Writes into `x`, one after the other, as the concatenation of what is left of each."""
    shape, axis = x.shape, _axis_of(chain)
    assert axis is not None
    whole = (math.prod(shape),) if axis < 0 else shape
    runs: list[tuple[int, int, Node, int]] = [(0, whole[max(axis, 0)], build.reshape(x, whole), 0)]
    for node, value in zip(chain, values, strict=True):
        if axis < 0:
            start = 0
            for extent, at in zip(shape, node.attrs.starts, strict=True):
                start = start * extent + at
            value = build.reshape(value, (value.size,))
        else:
            start = node.attrs.starts[axis]
        _overwrite(runs, (start, start + value.shape[max(axis, 0)], value, 0))
    parts = [build.narrow(part, max(axis, 0), offset, offset + stop - start) for start, stop, part, offset in runs]
    return build.reshape(build.concat(parts, max(axis, 0)), shape)


def _overwrite(runs: list[tuple[int, int, Node, int]], new: tuple[int, int, Node, int]) -> None:
    """Put a run (first, end, value, where it starts there) over the adjacent ones, in order, in `runs`."""
    start, stop = new[:2]
    first = bisect.bisect_right(runs, start, key=lambda run: run[0]) - 1
    last = bisect.bisect_left(runs, stop, key=lambda run: run[0])
    begin, _, before, offset = runs[first]
    _, end, after, shift = runs[last - 1]
    middle = [new]
    if begin < start:
        middle.insert(0, (begin, start, before, offset))
    if stop < end:
        middle.append((stop, end, after, shift + stop - runs[last - 1][0]))
    runs[first:last] = middle
