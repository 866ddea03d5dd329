"""Writes of a few rows into a table (`replace_rows`), in the table's own memory or as a choice for all elements.

Where the table with its new rows replaces the table itself, and has no other use, only the rows are
stored: the node `write_rows` has their shape, is in the memory of the table, and each row is written to the row that
the index says. A row whose number is the table's extent is not written. Numbers of rows differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from weft.compiler.fusion.region import Region
from weft.compiler.passes.expand import rebuild_outputs
from weft.compiler.primitives import WRITE_ROWS
from weft.compiler.program import Program
from weft.graph import build
from weft.graph.node import Node, toposort
from weft.graph.primitives import make_node
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis

SAME_MEMORY = ("reshape", "stop_gradient")  # nodes whose elements are stored as those of their source


class RowsConflict(Exception):
    """Rows cannot be written in place: the old table is read later."""


def expand_replaced_rows(program: Program, in_place: bool) -> Sequence[Node]:
    """The outputs of a program without `replace_rows`."""
    if all(node.op != "replace_rows" for node in program.nodes):
        return program.outputs
    outputs, leaves = list(program.outputs), set(program.leaves)
    if in_place:
        users = Counter([source for node in program.nodes for source in node.srcs] + outputs)
        for write in program.writes:
            chain = _same_memory(outputs[write.output])
            table = chain[-1]
            if table.op == "replace_rows" and all(users[node] == 1 for node in chain):
                x = _same_memory(table.srcs[0])[-1]
                if x is program.leaves[write.leaf] and x.nbytes == table.nbytes:
                    outputs[write.output] = _write(table)
    return rebuild_outputs(toposort(outputs, leaves.__contains__), outputs, leaves, _select_rows)


def _same_memory(node: Node) -> list[Node]:
    """`node` and the sources whose memory it shares, down to what is computed."""
    found = [node]
    while found[-1].op in SAME_MEMORY:
        found.append(found[-1].srcs[0])
    return found


def _write(table: Node) -> Node:
    x, index, rows = table.srcs
    repeated = build.reshape(index, (index.size, *[1] * (len(rows.shape) - 1)))
    return make_node(WRITE_ROWS, (rows, build.expand(repeated, rows.shape)), (x.shape[0],))


def _select_rows(node: Node, new: Mapping[Node, Node]) -> Node | None:
    """A choice between the old element and the new one, for the whole table."""
    if node.op != "replace_rows":
        return None
    x, index, rows = (new[source] for source in node.srcs)
    count = x.shape[0]
    number = build.iota(index.shape, 0, index.device)
    last = build.narrow(build.scatter("max", index, number, count + 1), 0, 0, count)
    is_new = make_node("le", (build.like(last, 0), last))
    picked = build.gather(rows, build.select(is_new, last, 0), 0, known=True)
    repeated = build.reshape(is_new, (count, *[1] * (len(x.shape) - 1)))
    return build.select(build.expand(repeated, x.shape), picked, x)


def index_of(node: Node) -> Node:
    """The numbers of the rows that `write_rows` writes."""
    index = node.srcs[1]
    while index.op in ("expand", "reshape"):
        index = index.srcs[0]
    return index


def reads_own_rows(region: Region, value: Node, nodes: Mapping[Node, int], offset: int) -> bool:
    """Whether every access of a region to the memory of a table, in which it writes rows, is to the element that
    is written at that point."""
    at = region.indices_for(value.shape)
    if at is None:
        return False
    index, element = index_of(value), value.dtype.itemsize
    shape = (value.attrs.rows, *value.shape[1:])
    own = set()
    for gather in _gathers(region):
        if gather.srcs[1] is index and gather.attrs.axis == 0:
            row = ix.axis_index(Axis(f"g{id(gather)}", gather.srcs[0].shape[0], "value"))
            own.add(ix.linearise((row, *at[1:]), shape) + offset // element)
    for node, place in region.accesses:
        if node in nodes:
            if node.dtype is not value.dtype:
                return False
            if (ix.linearise(place, node.shape) + nodes[node] // element) not in own:
                return False
    return True


def _gathers(region: Region) -> list[Node]:
    """The gathers that a region computes on its way down to memory."""
    found, seen = [], set()
    stack = list(region.roots)
    while stack:
        node = stack.pop()
        if node in seen or node in region.reads:
            continue
        seen.add(node)
        if node.op == "gather":
            found.append(node)
        stack.extend(node.srcs)
    return found
