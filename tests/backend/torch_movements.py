"""Operations of `torch_programs` that move, pick and write elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tests.backend.view_programs import Numbers, Refused

if TYPE_CHECKING:
    from tests.backend.torch_programs import Program

# ---- movement -------------------------------------------------------------------------------------------------------


def moved(p: Program, n: Numbers) -> Any:
    """Views and copies of elements. Long because it is one branch for each."""
    x, lib, how = p.pick(n), p.library, n.below(22)
    rank, shape = x.ndim, tuple(x.shape)
    if how == 0:
        return x.permute(sorted(range(rank), key=lambda k: (n.below(5), k)))
    if how == 1:
        return x.flip(p.axes(x, n))
    if how == 2:
        axes = p.axes(x, n)
        return lib.roll(x, tuple([n.below(9) - 4 for _ in axes]), axes)
    if how == 3:
        size = math.prod(shape)
        options = [(-1,), (1, size), (2, size // 2), (size // 3, 3), (size // 2, 1, 2), (size // 6, 2, 3)]
        fitting = [one for one in options if -1 in one or math.prod(one) == size]
        if not size:
            raise Refused
        return x.reshape(fitting[n.below(len(fitting))])
    if how == 4:
        return x.unsqueeze(n.below(rank + 1))
    if how == 5:
        return x.expand(*[(2 + n.below(3) if k == 1 else k) for k in shape])
    if how == 6:
        return x[key(x, n)]
    if how == 7:
        return x.squeeze()
    if how == 8:
        return x.diagonal(n.below(3) - 1, p.axis(x, n), p.axis(x, n))
    if how == 9:
        axis = p.axis(x, n)
        return x.unfold(axis, 1 + n.below(3), 1 + n.below(3))
    if how == 10:
        return (lib.tril if n.below(2) else lib.triu)(x, n.below(4) - 1)
    if how == 11:
        return x.repeat(*[1 + n.below(2) for _ in range(rank + n.below(2))])
    if how == 12:
        return lib.repeat_interleave(x, 1 + n.below(3), p.axis(x, n))
    if how == 13:
        return lib.diag_embed(x, n.below(3) - 1)
    if how == 14:
        parts = x.split(1 + n.below(3), p.axis(x, n))
        return list(parts)[:2]
    if how == 15:
        return lib.rot90(x, n.below(4), (p.axis(x, n), p.axis(x, n)))
    if how == 16:
        return x.movedim(p.axis(x, n), p.axis(x, n))
    if how == 17:
        return x.flatten(*sorted((n.below(rank), n.below(rank))))
    if how == 18:
        return x.detach()
    if how == 19:
        return x.clone().contiguous()
    if how == 20:
        return list(x.unbind(p.axis(x, n)))[:2]
    return x.narrow(axis := p.axis(x, n), s := n.below(shape[axis] + 1), n.below(shape[axis] - s + 1))


def key(x: Any, n: Numbers) -> tuple[Any, ...]:
    """A basic index."""
    items: list[Any] = []
    for extent in tuple(x.shape)[: n.below(x.ndim + 1)]:
        low = n.below(extent + 1)
        kinds = [slice(None), slice(low, None, 1 + n.below(3)), slice(low, low + n.below(extent + 1))]
        items.append([*kinds, n.below(2 * extent) - extent if extent else slice(None)][n.below(4)])
    if n.below(4) == 0:
        items.insert(n.below(len(items) + 1), None)
    return tuple(items)


def joined(p: Program, n: Numbers) -> Any:
    x = p.pick(n)
    if n.below(2):
        y = p.partner(x, n)
        return p.library.stack([x, y.expand(x.shape).to(x.dtype)], n.below(x.ndim + 1))
    axis = p.axis(x, n)
    fitting = [y for y in p.pool if y.ndim == x.ndim and without(y, axis) == without(x, axis)]
    return p.library.cat([fitting[n.below(len(fitting))] for _ in range(1 + n.below(3))] + [x], axis)


def without(x: Any, axis: int) -> tuple[int, ...]:
    shape = list(x.shape)
    del shape[axis]
    return tuple(shape)


def padded(p: Program, n: Numbers) -> Any:
    x = p.floating(n)
    mode = ("constant", "constant", "reflect", "replicate", "circular")[n.below(5)]
    if mode == "constant":
        pads = [n.below(4) - 1 for _ in range(2 * (1 + n.below(max(x.ndim, 1))))]
        return p.functional.pad(x, pads, value=0.5)
    return p.functional.pad(x, [n.below(3) for _ in range(2 * max(x.ndim - 2, 1))], mode=mode)


# ---- indices --------------------------------------------------------------------------------------------------------


def gathered(p: Program, n: Numbers) -> Any:
    x, lib, how = p.pick(n), p.library, n.below(7)
    axis = p.axis(x, n)
    extent = x.shape[axis]
    count = (1, 3, 0, 5)[n.below(4)]
    if how == 0:
        return lib.index_select(x, axis, p.indices((count,), extent, n))
    if how == 1:
        shape = list(x.shape)
        shape[axis] = count
        return lib.gather(x, axis, p.indices(tuple(shape), extent, n))
    if how == 2:
        return x[(slice(None),) * (axis % x.ndim) + (p.indices((2, count), extent, n),)]
    if how == 3:
        if x.ndim < 2:
            raise Refused
        return x[p.indices((3,), x.shape[0], n), p.indices((2, 1), x.shape[1], n)]
    if how == 4:
        if x.ndim < 3:
            raise Refused
        return x[p.indices((3,), x.shape[0], n), :, p.indices((3,), x.shape[2], n)]
    if how == 5:
        return lib.take(x, p.indices((2, 3), math.prod(x.shape), n))
    order = lib.argsort(p.grid(x), dim=axis, stable=True)
    return lib.take_along_dim(x, order, axis)


def scattered(p: Program, n: Numbers) -> Any:
    x, lib, how = p.floating(n), p.library, n.below(8)
    axis = p.axis(x, n)
    extent, count = x.shape[axis], (1, 3, 4)[n.below(3)]
    shape = list(x.shape)
    shape[axis] = count
    source = p.array(tuple(shape), n).to(x.dtype) * p.scalar
    fitting = [y for y in p.pool if tuple(y.shape) == tuple(shape) and y.dtype is x.dtype]
    if fitting and n.below(2):
        source = fitting[n.below(len(fitting))]
    line = p.indices((count,), extent, n)
    if how == 0:
        return x.index_add(axis, line, source)
    if how == 1:
        return x.scatter_add(axis, p.indices(tuple(shape), extent, n), source)
    if how == 2:
        return x.index_copy(axis, lib.arange(count), source) if count <= extent else x
    if how == 3:
        return x.index_fill(axis, line, p.scalar)
    if how == 4:
        name = ("sum", "mean", "amax", "amin", "prod")[n.below(5)]
        small = (lib.tanh(x), lib.tanh(source)) if name == "prod" else (x, source)
        return small[0].scatter_reduce(axis, p.indices(tuple(shape), extent, n), small[1], name,
                                       include_self=bool(n.below(2)))  # fmt: skip
    if how == 5:
        y = x.clone()
        y[key(y, n)] = p.scalar
        return y
    if how == 6:
        y, at = x.clone(), key(x, n)
        y[at] *= p.partner(y[at], n).to(y.dtype)
        return y
    y = x.clone()
    first = p.indices((3,), x.shape[0], n)
    return y.index_put((first,), p.array((3, *x.shape[1:]), n).to(x.dtype), accumulate=True)
