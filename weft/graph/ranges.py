"""Indices that leave their axis: which nodes have them, and what is said about the first one.

Kernels only note that an index was outside; what it was, and where, is found afterwards from the values of the index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.graph.node import Node

_LABELS = ("cross_entropy", "nll_loss", "multi_margin_loss")  # operations whose indices are called labels
_LONGEST_MASK = 8  # nodes from an index to the scan that counts the elements of a mask


@dataclass(frozen=True, slots=True)
class Range:
    """What a node asks of an index: `index` in 0 to `extent` - 1. `given` is what the user gave for it, where negative
    numbers count from the end if it `wraps`."""

    extent: int
    index: Node
    given: Node
    wraps: bool

    def fault(self, site: str, index: np.ndarray, given: np.ndarray) -> tuple[str, str] | None:
        """(what was given, what was expected) for the first value outside, in row-major order; None if there is none.
        `site` says at which operation and line."""
        wrong = np.flatnonzero((index < 0) | (index >= self.extent))
        if not wrong.size:
            return None
        if _counts_places(self.index):
            return f"{self.extent} values for another number of places that the mask picks", "one value for each place"
        labels = site.startswith(_LABELS)
        at = tuple(int(number) for number in np.unravel_index(wrong[0], index.shape))
        where = "" if not at else f" at position {at[0]}" if len(at) == 1 else f" at position {at}"
        of = f"{self.extent} classes" if labels else f"an axis of extent {self.extent}"
        value = given.reshape(-1)[wrong[0]]
        lowest = -self.extent if self.wraps else 0
        return f"the {'label' if labels else 'index'} {value}{where}, for {of}", f"{lowest} to {self.extent - 1}"


@dataclass(frozen=True, slots=True)
class Pointers(Range):
    """What a node asks of row pointers: the first is 0, none is below the one before, the last is `extent`."""

    def fault(self, site: str, index: np.ndarray, given: np.ndarray) -> tuple[str, str] | None:
        """As that of an index; the bags of `embedding_bag` have offsets, to which the last pointer may be added."""
        before = np.concatenate([[0], index[:-1]])
        is_wrong = (index < before) | (index > self.extent)
        is_wrong[0] |= index[0] != 0
        is_wrong[-1] |= index[-1] != self.extent
        if not is_wrong.any():
            return None
        at, name = int(np.argmax(is_wrong)), "offset" if site.startswith("embedding_bag") else "row pointer"
        text = f"{name}s that do not rise from 0 to {self.extent}: {index[at]} at position {at}"
        return text, f"the first 0, none below the one before it, none above {self.extent}"


def checked_source(node: Node) -> tuple[int, int] | None:
    """(which of a node's sources is an index that it checks, the extent of the axis), or None."""
    if node.op == "along" or (node.op == "gather" and not node.attrs.known):
        return 1, node.srcs[0].shape[node.attrs.axis]
    if node.op == "gather_neighbors":
        return 1, node.srcs[0].shape[0]
    if node.op == "in_range":
        return 0, node.attrs.extent
    if node.op.startswith("scatter_"):
        return 0, node.attrs.rows
    return None


def ranges_of(node: Node) -> list[Range]:
    """The checks that a node makes of its index: none, one, or one for each of several axes."""
    if node.op.startswith("segment_"):
        pointers, count = node.srcs[-1], node.attrs.entries if node.op == "segment_rows" else node.srcs[0].shape[0]
        return [Pointers(count, pointers, pointers, False)]
    checked = checked_source(node)
    if checked is None:
        return []
    index, extent = node.srcs[checked[0]], checked[1]
    return _of_axes(index) or [_range(index, extent)]


def _range(index: Node, extent: int) -> Range:
    """The check of one axis; negative indices count from the end in select(x < 0, x + extent, x)."""
    if index.op == "select":
        below, moved, x = index.srcs
        if below.op == "lt" and below.srcs[0] is x and moved.op == "add" and moved.srcs[0] is x:
            return Range(extent, index, x, True)
    return Range(extent, index, index, False)


def _of_axes(index: Node) -> list[Range]:
    """The checks of an index over several axes: select(all of 0 <= at < extent, number, -1)."""
    if index.op != "select" or _number(index.srcs[2]) != -1:
        return []
    found, waiting = [], [index.srcs[0]]
    while waiting:
        node = waiting.pop()
        if node.op == "and":
            waiting += reversed(node.srcs)
        elif node.op == "lt" and (extent := _number(node.srcs[1])) is not None:
            found.append(_range(node.srcs[0], int(extent)))
    return found


def _number(node: Node) -> float | None:
    """The one number that a constant repeats."""
    while node.op in ("expand", "reshape"):
        node = node.srcs[0]
    return node.attrs.value if node.op == "const" else None


def _counts_places(index: Node) -> bool:
    """Whether an index numbers the elements where a mask is true, as a running sum does."""
    level = {index}
    for _ in range(_LONGEST_MASK):
        level = {source for node in level if node.op in ("reshape", "select", "sub", "cast") for source in node.srcs}
        if any(node.op == "scan" for node in level):
            return True
    return False
