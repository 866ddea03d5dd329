"""Updates of a few rows of a table: gradients that are rows added into zeros, as those of an embedding are.

`row_gradient` recognises them, `unique_rows` adds up what goes to one row, in the order in which the whole gradient
would, and `replace_rows` is the table with new rows. Where that replaces the table in a compiled function, only these
rows are read and written.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.base.dtypes import int64
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node

MIN_TABLE = 1 << 14  # elements from which a table is updated by rows
TABLE_PER_ENTRY = 4  # rows of the table for each entry of the index, at least


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table: their numbers [R], the number of all rows where there is nothing, and values [R, ...]."""

    index: Tensor
    values: Tensor


def row_gradient(grad: Tensor) -> bool:
    """Whether a gradient that is not computed yet consists of few rows added into zeros."""
    node = _find_scatter(grad.node)
    if node is None or node.size < MIN_TABLE:
        return False
    return 0 < TABLE_PER_ENTRY * node.srcs[0].size <= node.shape[0]


def _find_scatter(node: Node) -> Node | None:
    while node.op == "stop_gradient":
        node = node.srcs[0]
    return node if node.op == "scatter_add" and len(node.shape) >= 2 and node.buffer is None else None


def unique_rows(grad: Tensor) -> Rows:
    """The rows of a gradient for which `row_gradient` holds, each once."""
    node = _find_scatter(grad.node)
    assert node is not None
    (index, src), (count,) = node.srcs, node.attrs
    entries = index.size
    wide = build.in_range(build.cast(index, int64), count, node.site)
    inside = make_node("and", (make_node("le", (build.like(wide, 0), wide)), build.lt(wide, count)))
    keys = build.select(inside, wide, count)
    order = build.argsort(keys)
    keys = build.gather(keys, order, 0, known=True)
    before = build.pad(build.narrow(keys, 0, 0, entries - 1), (1,), (0,), -1)
    begins = build.cast(make_node("ne", (keys, before)), int64)
    number = build.sub(build.scan("sum", begins, 0), 1)
    # One row more than entries: so there is always one to skip, and rows are not taken for entries.
    sums = build.scatter_add(number, build.gather(src, order, 0, known=True), entries + 1)
    found = build.scatter("max", number, keys, entries + 1)
    rows = build.select(build.lt(found, 0), count, found)
    return Rows(Tensor(rows), Tensor(sums))


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table; zeros for the number behind the last row."""
    node = table.node
    rest = (0,) * (len(node.shape) - 1)
    longer = build.pad(node, (0, *rest), (1, *rest), 0)
    return Tensor(build.gather(longer, index.node, 0, known=True))


def replace_rows(table: Tensor, rows: Rows) -> Node:
    """The table with other rows. It is a new value without a history: a later gradient ends here."""
    return build.stop_gradient(make_node("replace_rows", (table.node, rows.index.node, rows.values.node)))
