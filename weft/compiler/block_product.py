"""block_product: matrix products by kernels of our own, on devices with blocks and without a library for them.

`by_blocks` turns every `dot` that is left after the libraries were asked into a `block_product`, a node that only the
compiler makes. It reads its factors as views, those that were widened from 16 bits as they were, and windows (of a
convolution) by their indices, so that they are never in memory. Everything that is computed element by element from the
result is stored right from the registers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.backends.base import Device
from weft.compiler.access import MOVEMENT, Indices, address, filling, row_major, source_index
from weft.compiler.expand import rebuilt
from weft.compiler.matmul import before_widening, operand_view
from weft.compiler.region import Region
from weft.compiler.template import Built, Template
from weft.compiler.values import Builder
from weft.dtypes import DType, float32, int32
from weft.graph.build import cast, permute, reduce, reshape
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, Primitive, make
from weft.kernels import gpu_product
from weft.kernels import index as ix
from weft.kernels.block_tiles import VECTOR
from weft.kernels.gpu_product import Condition, Operand, Product, strided
from weft.kernels.index import Axis, Index
from weft.kernels.language import DECLARED, LAUNCH_RANGES, BufferParam, Expr, Kernel, ScalarParam, Stmt
from weft.kernels.nest import together

PROCESSORS = 64  # multiprocessors of a device that does not say
# A product of fewer tiles of this side leaves multiprocessors idle on large devices, so its sums are cut, to no less
# than `SHORTEST`; those of a small product, whose time is that of a walk along k, to no less than `SHORTEST_OF_SMALL`
# if they are longer than `LONG`: adding up the parts takes about as long as such a walk. Of `FEW_PARTS`, all are loaded
# at once. Shapes decide, whatever the device: it fixes the bits.
TILE, FEW_TILES, FEW_PARTS = 128, 128, 16
SHORTEST, SHORTEST_OF_SMALL, LONG = 512, 48, 256


def by_blocks(nodes: list[Node], outputs: list[Node], leaves: Collection[Node]) -> list[Node]:
    """The outputs with every `dot` as a `block_product`. `nodes` is topologically sorted."""
    if not any(node.op == "dot" for node in nodes):
        return outputs
    leaf_set = set(leaves)

    def replaced(node: Node, new: Mapping[Node, Node]) -> Node | None:
        if node.op != "dot":
            return None
        factors = tuple([new[source] for source in node.srcs])
        before = [before_widening(source, leaf_set) for source in factors]
        if before[0].dtype is before[1].dtype and before[0].dtype.is_narrow and node.dtype is float32:
            factors = (before[0], before[1])
        return _in_parts(factors, float32 if node.dtype.is_narrow else node.dtype, node.dtype)

    return rebuilt(nodes, outputs, leaf_set, replaced)


def _in_parts(factors: tuple[Node, ...], sums: DType, dtype: DType) -> Node:
    """The product; where it has few tiles and long sums, these in parts that are added up afterwards."""
    a, b = factors
    *batch, m, k = a.shape
    n = b.shape[-1]
    parts = 1 if batch else _parts(m, n, k)
    if parts == 1:
        return cast(make("block_product", factors, (sums,)), dtype)
    left = permute(reshape(a, (m, parts, k // parts)), (1, 0, 2))
    apart = make("block_product", (left, reshape(b, (parts, k // parts, n))), (sums,))
    total = reduce("reduce_sum", reshape(apart, (parts, m * n)), (0,))
    return cast(reshape(total, (m, n)), dtype)


def _parts(m: int, n: int, k: int) -> int:
    """How many parts of equal length sums are cut into; parts begin at multiples of 4 elements, for fetches of four."""
    small = m * n * k <= gpu_product.SMALL and k > LONG
    tiles = -(-m // TILE) * -(-n // TILE)
    most = min(FEW_PARTS, k // SHORTEST_OF_SMALL) if small else min(-(-FEW_TILES // tiles), k // SHORTEST)
    return max([parts for parts in range(1, most + 1) if k % (4 * parts) == 0], default=1)


def template(node: Node, leaves: Collection[Node]) -> Template:
    """The kernel of a `block_product`."""
    (*batch_shape, m, n), k = node.shape, node.srcs[0].shape[-1]
    batch = math.prod(batch_shape)
    left, right = _operand("a", node.srcs[0], leaves, False), _operand("b", node.srcs[1], leaves, True)
    product = Product(left.operand, right.operand, batch, m, n, k)
    sides = (left, right)

    def build(region: Region, device: Device) -> Built:
        limits = device.limits
        choice = gpu_product.tiling(
            product,
            "mma" in device.features,
            limits.get("processors", PROCESSORS),
            limits.get("shared_bytes", DECLARED),
        )
        builder = Builder(region, region.index)

        def finish(number: Index, row: Index, column: Index, value: Expr) -> tuple[Stmt, ...]:
            builder.know(node, (*ix.delinearise(number, tuple(batch_shape)), row, column), value)
            return together(builder.stores())

        body, geometry = gpu_product.body(product, choice, finish)
        params = [BufferParam(side.operand.buffer, side.base.dtype, False) for side in sides]
        scalars = [ScalarParam("rows", int32), *[param for param, _ in builder.scalars.values()]]
        name = f"product_{'x'.join(map(str, (*batch_shape, m, n, k) if batch > 1 else (n, k)))}"
        kernel = Kernel(
            name, (*params, *builder.buffers.values()), tuple(scalars), LAUNCH_RANGES, body,
            builder.definitions, geometry,
        )  # fmt: skip
        uses = [*[(side.base, side.offset) for side in sides], *[(value, 0) for value in builder.buffers]]
        numbers = (m, *[value for _, value in builder.scalars.values()])
        flops = 2 * batch * m * n * k + builder.flops * node.size
        return Built(kernel, tuple(uses), numbers, choice.count(product), 1, flops, tuple(builder.sites))

    return Template(tuple(dict.fromkeys(side.base for side in sides)), build, joins=True)


@dataclass(frozen=True, slots=True)
class _Memory:
    """An operand, and the value in memory that it reads from element `offset` on."""

    operand: Operand
    base: Node
    offset: int


def _operand(name: str, node: Node, leaves: Collection[Node], turned: bool) -> _Memory:
    """A factor as a view of what lies in memory anyway; by its indices where it reads elements several times, as under
    windows; else as memory of its own. `turned`: k is its axis before the last."""
    view = operand_view(node, leaves)
    if view is None:
        read = _by_index(name, node, leaves, turned)
        if read is not None:
            return read
        view = operand_view(node, {node})
    assert view is not None
    across, along = (1, view.leading) if view.transposed != turned else (view.leading, 1)
    batch = list(zip(node.shape[:-2], view.batch, strict=True))
    return _Memory(strided(name, view.base.dtype, across, along, batch), view.base, view.offset)


def _by_index(name: str, node: Node, leaves: Collection[Node], turned: bool) -> _Memory | None:
    """A factor that is movement over something smaller, read there; None where it is not."""
    chain, base = [], node
    while base.op in MOVEMENT and base.op != "copy" and base not in leaves and filling(base) == 0:
        chain.append(base)
        base = base.srcs[0]
    if base.size >= node.size:
        return None
    *batch_shape, rows, columns = node.shape
    extents = (columns, rows) if turned else (rows, columns)

    def place(number: Index, across: Index, along: Index) -> tuple[Index, Sequence[Condition]]:
        last = (along, across) if turned else (across, along)
        at: Indices = (*ix.delinearise(number, tuple(batch_shape)), *last)
        conditions: dict[Condition, None] = {}
        for step in chain:
            at, when = source_index(step, at)
            conditions.update(dict.fromkeys(when))
        return address(at, row_major(base.shape), 0), tuple(conditions)

    def neighbours(along: bool) -> int:
        """How many neighbours along k, or across it, are neighbours in memory."""
        vector = VECTOR // base.dtype.itemsize
        number = ix.axis_index(Axis("number", math.prod(batch_shape)))
        while vector > 1:
            inside = Axis("inside", vector)
            group = ix.scale(ix.axis_index(Axis("group", -(-extents[along] // vector))), vector)
            moving = ix.add(group, ix.axis_index(inside))
            other = ix.axis_index(Axis("other", extents[not along]))
            position, conditions = place(number, other, moving) if along else place(number, moving, other)
            constant = not any(ix.depends(index, inside) for index, _ in conditions)
            if constant and position.linear_in(inside) and position.coefficient(inside) == 1:
                break
            vector //= 2
        return vector

    along = neighbours(True) >= neighbours(False)
    return _Memory(Operand(name, base.dtype, along, neighbours(along), place), base, 0)


def _shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    return PRIMITIVES["dot"].shape_rule(srcs, (), dtype)[0], attrs[0]


def _evaluate(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    wide = [array.astype(node.dtype.numpy) if array.dtype.itemsize < dtype.itemsize else array for array in arrays]
    return np.matmul(*wide)


PRIMITIVES["block_product"] = Primitive("block_product", "template", 2, _shape, _evaluate)
