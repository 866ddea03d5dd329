"""The nodes around Winograd convolutions (`kernels.cpu.winograd`): parts of data, of weights and of their gradients.

x [N, *space, C] becomes [N, *space but the last, 4, pairs, C]; weights [*kernel, C, O] become four with one tap along
the last axis. Both are elementwise sums of slices, so they fuse with what computes x and with the padding.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.build import concat, like, reshape, slice_
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.kernels.cpu.winograd import DATA, PARTS, PIXELS, TAP_SUMS, TAPS, WEIGHTS, signed_sum


def _sums(rows: Sequence[Sequence[float]], values: Sequence[Node]) -> list[Node]:
    def write(op: str, a: Node, b: Node) -> Node:
        return make_node(op, (a, b))

    totals = [signed_sum(row, values, write) for row in rows]
    return [
        total if max(row) == 1 else write("mul", total, like(total, max(row)))
        for row, total in zip(rows, totals, strict=True)
    ]


def data_parts(x: Node, pairs: int) -> Node:
    """[N, *space, width, C], at least 2 * pairs + 2 wide, as [N, *space, 4, pairs, C]."""
    *outer, _, channels = x.shape
    steps, pixels = (*[1] * len(outer), PIXELS, 1), []
    for first in range(PIXELS + TAPS - 1):
        bounds = (*[0] * len(outer), first, 0), (*outer, first + PIXELS * (pairs - 1) + 1, channels), steps
        pixels.append(make_node("reshape", (make_node("slice", (x,), bounds),), ((*outer, 1, pairs, channels),)))
    return concat(_sums(DATA, pixels), len(outer))


def weight_parts(packed: Node) -> Node:
    """[blocks, C, *kernel, 3, block] as [blocks, 4, C, *kernel, 1, block]."""
    blocks, *inner, _, block = packed.shape
    shape, none = (blocks, 1, *inner, 1, block), (0,) * (len(inner) + 1)
    taps = [reshape(slice_(packed, (*none, tap, 0), (blocks, *inner, tap + 1, block)), shape) for tap in range(TAPS)]
    return concat(_sums(WEIGHTS, taps), 1)


def tap_gradients(sums: Node) -> Node:
    """The sums of a weight gradient [blocks, 4, *kernel, 1, C, block] as [blocks, *kernel, 3, C, block]."""
    blocks, _, *kernel, _, channels, block = sums.shape
    shape, none = (blocks, *kernel, 1, channels, block), (0,) * (len(kernel) + 3)
    parts = [reshape(slice_(sums, (0, part, *none), (blocks, part + 1, *shape[1:])), shape) for part in range(PARTS)]
    return concat(_sums(TAP_SUMS, parts), len(kernel) + 1)
