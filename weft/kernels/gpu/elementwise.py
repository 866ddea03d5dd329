"""Elementwise nests on a GPU: a workgroup takes a tile of points, each lane several contiguous ones in one access.

All loads of a tile come before the first use, so that enough bytes are in flight. The last tile, which may be cut off,
and buffers that are not aligned to an access go through the same tile one element after the other.
"""

from __future__ import annotations

from dataclasses import replace

from weft.base.dtypes import DType
from weft.kernels.gpu.statements import (
    BEGIN,
    END,
    are_aligned,
    at,
    flatten_axes,
    make_kernel,
    name_values,
    number,
    scale_value,
)
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import Tile, VectorAccess, loads_in, replace_loads
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import Copy, Expr, Geometry, If, Kernel, Local, Loop, Op, Stmt, Store
from weft.kernels.ir.nest import Nest, store_after_evaluation
from weft.kernels.ir.rewrite import parts_of, substitute


def schedule_tiles(nest: Nest, target: Target) -> Kernel | None:
    """A nest without reductions as a kernel of tiles; None where nothing in it is contiguous, or there is little."""
    axes = (nest.points,) if nest.lane is None else (nest.points, nest.lane)
    flat, values = flatten_axes("i", axes)
    if flat.extent <= target.tuning.max_single_elements or nest.stages or nest.inner:
        return None
    nest = substitute(nest, values) if nest.lane is not None else nest
    tile = _tile(nest, flat, target)
    if tile is None:
        return None
    tile_axis = Axis("tile", -(-flat.extent // tile.size))
    position = tile_axis * tile.size + tile.element(at(tile.lane))
    nest = substitute(nest, {flat: position})
    items = nest.lane.extent if nest.lane is not None else 1
    first, last = scale_value(BEGIN, items), scale_value(END, items)
    start = tile_axis * tile.size
    whole_tile = _index_value(start) + tile.size <= last
    begun = first <= _index_value(start)
    vectors = VectorAccess(tile, tile.slot, tile.per_lane)
    fast, buffers, nbytes = _whole_tile(nest, vectors)
    slow = _partial_tile(
        nest, tile, start + ix.substitute(tile.element(at(tile.lane)), {tile.vector_axis: ix.ZERO}), first, last
    )
    inside = are_aligned(buffers, nbytes) & begun & whole_tile
    shift = tile.size.bit_length() - 1
    tiles = (first >> shift, last + (tile.size - 1) >> shift)
    loop = Loop(tile_axis, *tiles, "task", (If(inside, fast, slow),))
    body = Loop(tile.lane, 0, tile.lanes, "lanes", (loop,), tile.lanes)
    return make_kernel(nest, (body,), Geometry(tile.lanes, items, tile=tile.size))


def _index_value(index: ix.Index) -> Expr:
    return replace(number(index), dtype=END.dtype)


def _tile(nest: Nest, flat: Axis, target: Target) -> Tile | None:
    """How many contiguous elements of the widest dtype go in one access, and how many accesses a lane has in flight."""
    loads = [load for load in loads_in([store.value for store in nest.point_stores]) if load.mask is None]
    fetched = [load.dtype.itemsize for load in loads if _along(load.index, flat)]
    stored = [
        store.value.dtype.itemsize for store in nest.point_stores if store.mask is None and _along(store.index, flat)
    ]
    if not fetched + stored:
        return None
    tuning, vector_width = target.tuning, max(target.access_bytes // max(fetched + stored), 1)
    while vector_width > 1 and len(fetched + stored) > tuning.max_streams * 4 // vector_width:
        vector_width //= 2
    work = sum(isinstance(part, Op) for part in parts_of([store.value for store in nest.point_stores]))
    steps = 1
    while (
        steps < 4
        and vector_width * steps * max(sum(fetched), 4) < tuning.bytes_in_flight
        and 2 * vector_width * steps * work <= tuning.max_unrolled_operations
    ):
        steps *= 2
    return Tile(target.independent_lanes, steps, vector_width) if vector_width > 1 else None


def _along(index: ix.Index, flat: Axis) -> bool:
    return index.is_linear_in(flat) and index.coefficient(flat) == 1


def _whole_tile(nest: Nest, vectors: VectorAccess) -> tuple[tuple[Stmt, ...], list[tuple[str, DType]], int]:
    """A whole tile: fetch all, compute, put all. Also the buffers that must be aligned, and to how many bytes."""
    tile, stores = vectors.tile, nest.point_stores
    arrays: list[Local] = []
    fetches: list[Copy] = []
    known: dict[tuple, Expr] = {}
    buffers: list[tuple[str, DType]] = []
    nbytes = 1

    def add_array(buffer: str, dtype: DType, register_dtype: DType) -> Local:
        nonlocal nbytes
        nbytes = max(nbytes, tile.vector_width * dtype.itemsize)
        buffers.append((buffer, dtype))
        arrays.append(vectors.array(buffer, register_dtype))
        return arrays[-1]

    for load in loads_in([store.value for store in stores]):
        if load.mask is None and vectors.is_contiguous(load.index):
            array = add_array(load.buffer, load.dtype, load.dtype)
            fetches.append(vectors.load_vector(array, load))
            known[load.buffer, load.index] = vectors.read(array)
    along = [store.mask is None and vectors.is_contiguous(store.index) for store in stores]
    values = replace_loads([store.value for store in stores], known)
    lets, outs = name_values(
        [vectors.defer_rounding(v) if moves else v for v, moves in zip(values, along, strict=True)]
    )
    inner: list[Stmt] = list(lets)
    puts: list[Copy] = []
    for store, out, moves in zip(stores, outs, along, strict=True):
        if moves:
            array = add_array(store.buffer, store.value.dtype, out.dtype)
            inner.append(Store(array.name, tile.slot, out))
            puts.append(vectors.store_vector(array, store))
        else:
            inner.append(Store(store.buffer, store.index, out, store.mask))
    body = (
        *arrays,
        *tile.unroll_steps(fetches),
        *tile.unroll_steps(tile.unroll_vector(inner)),
        *tile.unroll_steps(puts),
    )
    return body, buffers, nbytes


def _partial_tile(nest: Nest, tile: Tile, group: ix.Index, first: Expr, last: Expr) -> tuple[Stmt, ...]:
    """The same elements one by one, from `first` to `last` at most."""
    start = (first - _index_value(group)).max(0)
    stop = (last - _index_value(group)).min(tile.vector_width)
    lanes = Loop(tile.vector_axis, start, stop, "serial", store_after_evaluation(nest.point_stores))
    some = If(start < stop, (lanes,))  # what is the same for all elements is not read for none
    return (some,) if tile.steps == 1 else (Loop(tile.step, 0, tile.steps, "serial", (some,)),)
