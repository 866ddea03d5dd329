"""Matrix products by kernels of our own, on GPUs, where no library computes them.

`tile_products` replaces every `dot` that no library takes by a `block_product`, a primitive of the compiler alone. It
reads its factors as views, those that were cast from 16 bits in their 16-bit form, and windows (of a convolution) by
their indices, so that they are never in memory. Everything that is computed element by element from the result is
stored directly from the registers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from weft.base.dtypes import DType, float32, int32
from weft.compiler.fusion.index_map import MOVEMENT, Indices, address, filling, row_major, source_index
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.expressions import Builder
from weft.compiler.passes.expand import rebuild_outputs
from weft.compiler.primitives import BLOCK_PRODUCT
from weft.compiler.templates.matmul_layout import before_widening, operand_view
from weft.compiler.templates.template import ScheduledKernel, Template
from weft.graph.build import cast, permute, reduce, reshape
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.kernels.gpu import gemm as gpu_gemm
from weft.kernels.gpu import product_tiles
from weft.kernels.gpu.product_tiles import Condition, Operand, Product, strided_operand
from weft.kernels.gpu.register_tiles import VECTOR
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import LAUNCH_RANGES, BufferParam, Expr, Kernel, ScalarParam, Stmt
from weft.kernels.ir.nest import store_after_evaluation
from weft.kernels.numerics import gpu_product_parts
from weft.plan.device import Device

PROCESSORS = 64  # multiprocessors of a device that does not say


def tiles_for(device: Device, dtype: DType, m: int, n: int, k: int) -> dict[str, int]:
    """The tiles with which [m, k] @ [k, n] can be computed, by name (`Tuning.product_speeds`), and how many elements
    the busiest processor computes with each: time times speed. None for a small product, whose tiles are fixed."""
    unit, processors = next(iter(device.features.matrix_units), None), device.limits.processors or PROCESSORS
    parts = gpu_product_parts(m, n, k)
    depth = k // parts
    product = Product(strided_operand("a", dtype, k, 1), strided_operand("b", dtype, 1, n), parts, m, n, depth)
    form = "" if product.is_small else product_tiles.form_of(dtype, unit)
    found = product_tiles.fitting_tiles(product_tiles.tiles_of(form, depth), product, unit, device.limits)
    return {f"{form} {tile.name}": tile.work(parts, m, n, processors) for tile in found}


def tile_products(nodes: list[Node], outputs: Sequence[Node], leaves: Collection[Node]) -> Sequence[Node]:
    """The outputs with every `dot` as a `block_product`. `nodes` is topologically sorted."""
    if not any(node.op == "dot" for node in nodes):
        return outputs
    leaf_set = set(leaves)

    def replace_dot(node: Node, new: Mapping[Node, Node]) -> Node | None:
        if node.op != "dot":
            return None
        factors = tuple([new[source] for source in node.srcs])
        before = [before_widening(source, leaf_set) for source in factors]
        if before[0].dtype is before[1].dtype and before[0].dtype.is_16_bit and node.dtype is float32:
            factors = (before[0], before[1])
        return _in_parts(factors, float32 if node.dtype.is_16_bit else node.dtype, node.dtype)

    return rebuild_outputs(nodes, outputs, leaf_set, replace_dot)


def _in_parts(factors: tuple[Node, ...], sums: DType, dtype: DType) -> Node:
    """The product; where it has few tiles and long sums, these in parts that are added up afterwards."""
    a, b = factors
    *batch, m, k = a.shape
    n = b.shape[-1]
    parts = 1 if batch else gpu_product_parts(m, n, k)
    if parts == 1:
        return cast(make_node(BLOCK_PRODUCT, factors, (sums,)), dtype)
    left = permute(reshape(a, (m, parts, k // parts)), (1, 0, 2))
    partial = make_node(BLOCK_PRODUCT, (left, reshape(b, (parts, k // parts, n))), (sums,))
    total = reduce("reduce_sum", reshape(partial, (parts, m * n)), (0,))
    return cast(reshape(total, (m, n)), dtype)


def template(node: Node, leaves: Collection[Node]) -> Template:
    """The kernel of a `block_product`."""
    (*batch_shape, m, n), k = node.shape, node.srcs[0].shape[-1]
    batch = math.prod(batch_shape)
    left, right = _operand("a", node.srcs[0], leaves, False), _operand("b", node.srcs[1], leaves, True)
    product = Product(left.operand, right.operand, batch, m, n, k)
    sides = (left, right)

    def build(region: Region, device: Device) -> ScheduledKernel:
        limits = device.limits
        choice = product_tiles.tiling(
            product,
            next(iter(device.features.matrix_units), None),
            limits.processors or PROCESSORS,
            limits,
            device.features.async_copies,
            device.tuning.product_speeds,
        )
        builder = Builder(region, region.index)

        def finish(number: Index, row: Index, column: Index, value: Expr) -> tuple[Stmt, ...]:
            builder.know(node, (*ix.delinearise(number, tuple(batch_shape)), row, column), value)
            return store_after_evaluation(builder.stores())

        body, geometry = gpu_gemm.body(product, choice, finish, limits)
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
        return ScheduledKernel(kernel, tuple(uses), numbers, choice.count(product), 1, flops, tuple(builder.sites))

    return Template(tuple(dict.fromkeys(side.base for side in sides)), build, joins=True)


@dataclass(frozen=True, slots=True)
class _Memory:
    """An operand, and the value in memory that it reads from element `offset` on."""

    operand: Operand
    base: Node
    offset: int


def _operand(name: str, node: Node, leaves: Collection[Node], transposed: bool) -> _Memory:
    """A factor as a view of memory that exists anyway; by its indices where it reads elements several times, as under
    windows; else as memory of its own. `transposed`: k is its axis before the last."""
    view = operand_view(node, leaves)
    if view is None:
        read = _by_index(name, node, leaves, transposed)
        if read is not None:
            return read
        view = operand_view(node, {node})
    assert view is not None
    across, along = (1, view.leading) if view.transposed != transposed else (view.leading, 1)
    batch = list(zip(node.shape[:-2], view.batch, strict=True))
    return _Memory(strided_operand(name, view.base.dtype, across, along, batch), view.base, view.offset)


def _by_index(name: str, node: Node, leaves: Collection[Node], transposed: bool) -> _Memory | None:
    """A factor that is movement over something smaller, read there; None where it is not."""
    chain, base = [], node
    while base.op in MOVEMENT and base.op != "copy" and base not in leaves and filling(base) == 0:
        chain.append(base)
        base = base.srcs[0]
    if base.size >= node.size:
        return None
    *batch_shape, rows, columns = node.shape
    extents = (columns, rows) if transposed else (rows, columns)

    def locate(number: Index, across: Index, along: Index) -> tuple[Index, Sequence[Condition]]:
        last = (along, across) if transposed else (across, along)
        at: Indices = (*ix.delinearise(number, tuple(batch_shape)), *last)
        conditions: dict[Condition, None] = {}
        for step in chain:
            at, when = source_index(step, at)
            conditions.update(dict.fromkeys(when))
        return address(at, row_major(base.shape), 0), tuple(conditions)

    def contiguous_run(along: bool) -> int:
        """How many consecutive elements along k, or across it, are contiguous in memory."""
        vector = VECTOR // base.dtype.itemsize
        number = ix.axis_index(Axis("number", math.prod(batch_shape)))
        while vector > 1:
            inside = Axis("inside", vector)
            group = Axis("group", -(-extents[along] // vector)) * vector
            moving = group + inside
            other = ix.axis_index(Axis("other", extents[not along]))
            position, conditions = locate(number, other, moving) if along else locate(number, moving, other)
            constant = not any(ix.depends(index, inside) for index, _ in conditions)
            if constant and position.is_linear_in(inside) and position.coefficient(inside) == 1:
                break
            vector //= 2
        return vector

    along = contiguous_run(True) >= contiguous_run(False)
    return _Memory(Operand(name, base.dtype, along, contiguous_run(along), locate), base, 0)
