"""Fractional max pooling: windows of one size that start at random, a given number of them along each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.dtypes import float32, int64
from weft.base.errors import ShapeError, problem
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import Sizes, need_float, same_device, sizes
from weft.ops.pool import Windows, largest
from weft.ops.reduce import ValuesIndices
from weft.ops.registry import operation
from weft.random.generator import Generator, rand


@operation("functional", of_tensors=True)
def fractional_max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
    *,
    generator: Generator | None = None,
) -> Any:
    """The maxima of `output_size` windows along each of the last two axes of [N, C, H, W] or [C, H, W], or of
    `output_ratio` times the extents. Windows have the size `kernel_size`; where they start is drawn for each channel,
    or follows from `_random_samples` [N, C, 2] in [0, 1).

    >>> weft.nn.functional.fractional_max_pool2d(weft.ones(1, 4, 5), 2, output_size=(2, 3)).shape
    (1, 2, 3)
    """
    return _pool("fractional_max_pool2d", 2, input, kernel_size, output_size, output_ratio, return_indices,
                 _random_samples, generator)  # fmt: skip


@operation("functional", of_tensors=True)
def fractional_max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
    *,
    generator: Generator | None = None,
) -> Any:
    """The maxima of windows along each of the last three axes; see `fractional_max_pool2d`."""
    return _pool("fractional_max_pool3d", 3, input, kernel_size, output_size, output_ratio, return_indices,
                 _random_samples, generator)  # fmt: skip


@operation("functional", of_tensors=True)
def fractional_max_pool2d_with_indices(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
    *,
    generator: Generator | None = None,
) -> ValuesIndices:
    """`fractional_max_pool2d` with the positions of the maxima, whatever `return_indices` says."""
    return _pool("fractional_max_pool2d", 2, input, kernel_size, output_size, output_ratio, True, _random_samples,
                 generator)  # fmt: skip


@operation("functional", of_tensors=True)
def fractional_max_pool3d_with_indices(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
    *,
    generator: Generator | None = None,
) -> ValuesIndices:
    """`fractional_max_pool3d` with the positions of the maxima, whatever `return_indices` says."""
    return _pool("fractional_max_pool3d", 3, input, kernel_size, output_size, output_ratio, True, _random_samples,
                 generator)  # fmt: skip


def _pool(
    who: str,
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    output_size: Sizes | None,
    output_ratio: float | Sequence[float] | None,
    return_indices: bool,
    samples: Tensor | None,
    generator: Generator | None,
) -> Any:
    need_float(who, input.node)
    if input.ndim not in (rank + 1, rank + 2) or 0 in input.shape[-rank - 1 :]:
        raise problem(ShapeError, who, f"shape {input.shape}", f"[N, C, {rank} axes], or without the batch")
    kernel = sizes(who, kernel_size, rank, "kernel_size")
    counts = _counts(who, input.shape[-rank:], kernel, output_size, output_ratio)
    planes = input.shape[:-rank]
    wanted = (*((1,) * (2 - len(planes))), *planes, rank)
    if samples is None:
        dtype = float32 if input.dtype.is_16_bit else input.dtype
        samples = rand(wanted, generator=generator, dtype=dtype, device=input.device)
    elif samples.shape != wanted or samples.dtype is not input.dtype:
        given = f"_random_samples {samples.dtype.name}{list(samples.shape)}"
        raise problem(ShapeError, who, given, f"{input.dtype.name}{list(wanted)}")
    same_device(who, [input.node, samples.node])
    result = _windows_maxima(input, samples.detach(), kernel, counts)
    return result if return_indices else result.values


def _counts(
    who: str,
    extents: Sequence[int],
    kernel: Sequence[int],
    output_size: Sizes | None,
    output_ratio: float | Sequence[float] | None,
) -> tuple[int, ...]:
    rank = len(kernel)
    if (output_size is None) == (output_ratio is None):
        given = f"output_size={output_size} and output_ratio={output_ratio}"
        raise problem(ShapeError, who, given, "one of the two")
    if output_size is not None:
        counts = sizes(who, output_size, rank, "output_size")
    else:
        several = isinstance(output_ratio, (tuple, list))
        ratios: list[Any] = list(output_ratio) if several else [output_ratio] * rank  # type: ignore[arg-type]
        if len(ratios) != rank or not all(0 < ratio < 1 for ratio in ratios):
            raise problem(ShapeError, who, f"output_ratio={output_ratio}", "numbers between 0 and 1")
        counts = tuple([int(n * ratio) for n, ratio in zip(extents, ratios, strict=True)])
    spare = 1 if rank == 3 else 0  # PyTorch asks for one element more in three dimensions
    fits = [
        count >= 1 and count + size - 1 + spare <= n for count, size, n in zip(counts, kernel, extents, strict=True)
    ]
    if not all(fits):
        given = f"{counts} windows of {tuple(kernel)} over {tuple(extents)}"
        raise problem(ShapeError, who, given, "windows whose starts differ, inside the input")
    return counts


@lift
def _windows_maxima(x: Node, samples: Node, kernel: tuple[int, ...], counts: tuple[int, ...]) -> ValuesIndices:
    """Maxima and their positions in the flattened plane."""
    rank, extents = len(kernel), x.shape[-len(kernel) :]
    lead = x.shape[:-rank]
    planes, plane = math.prod(lead), math.prod(extents)
    draws = build.reshape(samples, (planes, rank))
    shape = (planes, *[n for pair in zip(counts, kernel, strict=True) for n in pair])  # [planes, count, size, ...]
    flat = build.full(shape, 0, int64, x.device)
    for axis, (count, size, n) in enumerate(zip(counts, kernel, extents, strict=True)):
        column = rank - 1 - axis if rank == 2 else axis  # of a plane, the first number is for the last axis
        own = build.reshape(build.narrow(draws, 1, column, column + 1), (planes, 1))
        start = _starts(own, planes, count, n, size)
        ones = tuple([planes if k == 0 else count if k == 1 + 2 * axis else 1 for k in range(len(shape))])
        wide = build.expand(build.reshape(start, ones), shape)
        flat = build.add(build.mul(flat, n), build.add(wide, build.iota(shape, 2 + 2 * axis, x.device)))
    element = build.add(flat, build.mul(build.iota(shape, 0, x.device), plane))
    views = build.gather(build.reshape(x, (x.size,)), element, 0, known=True)
    where = Windows(extents, kernel, (1,) * rank, (1,) * rank, (0,) * rank, counts)
    best, number = largest(where, x, views)
    is_best = make_canonical("eq", (where.numbers(views), where.spread(number)))
    found = build.reduce("reduce_sum", build.select(is_best, flat, 0), tuple(range(2, len(shape), 2)))
    out = (*lead, *counts)
    return ValuesIndices(build.reshape(best, out), build.reshape(found, out))


def _starts(draw: Node, planes: int, count: int, extent: int, size: int) -> Node:
    """Where the windows along one axis start: int64 [planes, count]. The last one ends with the axis."""
    shape = (planes, count)
    last = build.full(shape, extent - size, int64, draw.device)
    if count == 1:
        return last
    step = (extent - size) / (count - 1)
    wide = build.expand(draw, shape)
    number = build.cast(build.iota(shape, 1, draw.device), draw.dtype)
    begin = build.cast(build.mul(build.add(number, wide), step), int64)
    start = build.sub(begin, build.cast(build.mul(wide, step), int64))
    return build.select(build.lt(build.iota(shape, 1, draw.device), count - 1), start, last)
