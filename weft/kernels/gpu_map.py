"""Elementwise nests on a GPU: a block takes a tile of points, each thread several neighbours of it in one access.

All loads of a tile come before the first use, so that enough bytes are under way. The last tile, which may be cut off,
and buffers that do not lie at multiples of an access go through the same tile one element after the other.
"""

from __future__ import annotations

from dataclasses import replace

from weft.dtypes import DType
from weft.kernels import index as ix
from weft.kernels.gpu_tile import (
    BEGIN,
    END,
    Near,
    Target,
    Tile,
    aligned,
    at,
    joined,
    kernel,
    loads_in,
    named,
    number,
    scaled,
    test,
    whole,
    with_loads,
)  # fmt: skip
from weft.kernels.index import Axis
from weft.kernels.language import Copy, Expr, Geometry, If, Kernel, Local, Loop, Op, Stmt, Store
from weft.kernels.nest import Nest, together
from weft.kernels.substitute import parts_of, substitute

BLOCK = 256
FEW = 1 << 16  # elements up to which one thread takes one element
IN_FLIGHT = 64  # bytes that a thread asks for before it uses the first
MOST_OPERATIONS = 512  # that are copied out for one thread
MOST_STREAMS = 16  # arrays of one thread, beyond which it takes fewer neighbours


def tiled(nest: Nest, target: Target) -> Kernel | None:
    """A nest without folds as a kernel of tiles; None where nothing in it lies side by side, or there is little."""
    axes = (nest.points,) if nest.lane is None else (nest.points, nest.lane)
    flat, values = joined("i", axes)
    if flat.extent <= FEW or nest.stages or nest.inner:
        return None
    nest = substitute(nest, values) if nest.lane is not None else nest
    tile = _tile(nest, flat, target)
    if tile is None:
        return None
    block = Axis("tile", -(-flat.extent // tile.size))
    place = ix.add(ix.scale(at(block), tile.size), tile.element(at(tile.thread)))
    nest = substitute(nest, {flat: place})
    items = nest.lane.extent if nest.lane is not None else 1
    first, last = scaled(BEGIN, items), scaled(END, items)
    start = ix.scale(at(block), tile.size)
    whole_tile = test("le", whole("add", _wide(start), tile.size), last)
    begun = test("le", first, _wide(start))
    near = Near(tile, tile.slot, tile.each)
    fast, buffers, nbytes = _fast(nest, near)
    slow = _slow(
        nest, tile, ix.add(start, ix.substitute(tile.element(at(tile.thread)), {tile.lane: ix.ZERO})), first, last
    )
    inside = test("and", test("and", aligned(buffers, nbytes), begun), whole_tile)
    shift = tile.size.bit_length() - 1
    tiles = (whole("shr", first, shift), whole("shr", whole("add", last, tile.size - 1), shift))
    loop = Loop(block, *tiles, "task", (If(inside, fast, slow),))
    body = Loop(tile.thread, 0, tile.threads, "threads", (loop,), tile.threads)
    return kernel(nest, (body,), Geometry(tile.threads, items, tile=tile.size))


def _wide(index: ix.Index) -> Expr:
    return replace(number(index), dtype=END.dtype)


def _tile(nest: Nest, flat: Axis, target: Target) -> Tile | None:
    """How many neighbours go in one access of the widest element, and how often, to have enough under way."""
    loads = [load for load in loads_in([store.value for store in nest.point_stores]) if load.mask is None]
    fetched = [load.dtype.itemsize for load in loads if _along(load.index, flat)]
    stored = [
        store.value.dtype.itemsize for store in nest.point_stores if store.mask is None and _along(store.index, flat)
    ]
    if not fetched + stored:
        return None
    near = max(target.vector_bytes // max(fetched + stored), 1)
    while near > 1 and len(fetched + stored) > MOST_STREAMS * 4 // near:
        near //= 2
    work = sum(isinstance(part, Op) for part in parts_of([store.value for store in nest.point_stores]))
    steps = 1
    while steps < 4 and near * steps * max(sum(fetched), 4) < IN_FLIGHT and 2 * near * steps * work <= MOST_OPERATIONS:
        steps *= 2
    return Tile(min(BLOCK, target.threads), steps, near) if near > 1 else None


def _along(index: ix.Index, flat: Axis) -> bool:
    return index.linear_in(flat) and index.coefficient(flat) == 1


def _fast(nest: Nest, near: Near) -> tuple[tuple[Stmt, ...], list[tuple[str, DType]], int]:
    """A whole tile: fetch all, compute, put all. Also the buffers that must be aligned, and to how many bytes."""
    tile, stores = near.tile, nest.point_stores
    arrays: list[Local] = []
    fetches: list[Copy] = []
    known: dict[tuple, Expr] = {}
    buffers: list[tuple[str, DType]] = []
    nbytes = 1

    def moved(buffer: str, dtype: DType, held: DType) -> Local:
        nonlocal nbytes
        nbytes = max(nbytes, tile.near * dtype.itemsize)
        buffers.append((buffer, dtype))
        arrays.append(near.array(buffer, held))
        return arrays[-1]

    for load in loads_in([store.value for store in stores]):
        if load.mask is None and near.moves(load.index):
            array = moved(load.buffer, load.dtype, load.dtype)
            fetches.append(near.fetch(array, load))
            known[load.buffer, load.index] = near.kept(array)
    along = [store.mask is None and near.moves(store.index) for store in stores]
    values = with_loads([store.value for store in stores], known)
    lets, outs = named([near.leaving(v) if moves else v for v, moves in zip(values, along, strict=True)])
    inner: list[Stmt] = list(lets)
    puts: list[Copy] = []
    for store, out, moves in zip(stores, outs, along, strict=True):
        if moves:
            array = moved(store.buffer, store.value.dtype, out.dtype)
            inner.append(Store(array.name, tile.slot, out))
            puts.append(near.put(array, store))
        else:
            inner.append(Store(store.buffer, store.index, out, store.mask))
    body = (*arrays, *tile.each_step(fetches), *tile.each_step(tile.lanes(inner)), *tile.each_step(puts))
    return body, buffers, nbytes


def _slow(nest: Nest, tile: Tile, group: ix.Index, first: Expr, last: Expr) -> tuple[Stmt, ...]:
    """The same elements one by one, from `first` to `last` at most."""
    start = whole("max", whole("sub", first, _wide(group)), 0)
    stop = whole("min", whole("sub", last, _wide(group)), tile.near)
    lanes = Loop(tile.lane, start, stop, "serial", together(nest.point_stores))
    some = If(test("lt", start, stop), (lanes,))  # what is the same for all neighbours is not read for none
    return (some,) if tile.steps == 1 else (Loop(tile.step, 0, tile.steps, "serial", (some,)),)
