"""Convolution as nodes: channels last, any number of spatial axes.

x is [N, *space, C] and w is [*kernel, C // groups, O]; along each spatial axis out[o] = sum over k of
x[o * stride + k * dilation - low] * w[k], with zeros outside. The gradients in the weight and in the input are
primitives of their own; the latter is also composed: a convolution with the kernel flipped, one per phase of the
stride.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from weft.graph.attributes import ConvInput, ConvWeight, Geometry
from weft.graph.build import Shape, concat, flip, full, pad, permute, reshape, slice_
from weft.graph.node import Node
from weft.graph.primitives import make_node


def conv(x: Node, w: Node, how: Geometry) -> Node:
    return make_node("conv", (x, w), how)


def conv_weight(x: Node, g: Node, kernel: Shape, how: Geometry) -> Node:
    """The gradient of `conv` in w, given the gradient g of its result."""
    return make_node("conv_weight", (x, g), ConvWeight(kernel, *how))


def conv_input(g: Node, w: Node, space: Shape, how: Geometry) -> Node:
    """The gradient of `conv` in x (of spatial extents `space`), given the gradient g of its result."""
    return make_node("conv_input", (g, w), ConvInput(space, *how))


def compose_input(g: Node, w: Node, space: Shape, how: Geometry) -> Node:
    """The value of `conv_input` by convolutions of stride 1."""
    flipped = _flip(w, how.groups)
    axes = range(len(space))
    if any(how.strides[k] > 1 and how.dilations[k] > 1 for k in axes):
        g = _spread(g, how.strides)
        how = Geometry((1,) * len(space), how.lows, how.highs, how.dilations, how.groups)
    phases = [_phases(g.shape[1 + k], w.shape[k], space[k], how, k) for k in axes]
    parts = [_phase(g, flipped, chosen, how) for chosen in itertools.product(*phases)]
    if len(parts) == 1 and all(stride == 1 for stride in how.strides):
        return parts[0]
    return _interleave(parts, space, how)


@dataclass(frozen=True, slots=True)
class _Phase:
    """The results at positions `first + step * q`: which taps reach them, and how much zeros g needs on both sides."""

    taps: slice
    low: int
    high: int
    extent: int


def _phases(have: int, size: int, extent: int, how: Geometry, k: int) -> list[_Phase]:
    """One phase per remainder of the stride along axis `k`. Position p is reached from o by tap t where
    p + low = o * stride + t * dilation; with a stride there is no dilation."""
    stride, low, dilation = how.strides[k], how.lows[k], how.dilations[k]
    if stride == 1:
        reach = dilation * (size - 1)
        return [_Phase(slice(0, size), reach - low, extent - have + low, extent)]
    first, last = low // stride, (low + extent - 1) // stride
    count = last - first + 1
    found = []
    for remainder in range(stride):
        taps = max(-(-(size - remainder) // stride), 0)
        ahead = taps - 1 - first
        found.append(_Phase(slice(remainder, size, stride), ahead, count + taps - 1 - have - ahead, count))
    return found


def _phase(g: Node, flipped: Node, chosen: tuple[_Phase, ...], how: Geometry) -> Node:
    """One phase of the input gradient. `flipped` is the kernel, flipped, with its channels exchanged."""
    rank = len(chosen)
    sizes = [len(range(flipped.shape[k])[phase.taps]) for k, phase in enumerate(chosen)]
    if not all(sizes):
        return full((g.shape[0], *[phase.extent for phase in chosen], flipped.shape[-1]), 0.0, g.dtype, g.device)
    starts, stops, steps = [], [], []
    for k, phase in enumerate(chosen):  # taps of the flipped kernel, in flipped order
        kept = [flipped.shape[k] - 1 - tap for tap in range(flipped.shape[k])[phase.taps]][::-1]
        starts.append(kept[0])
        stops.append(kept[-1] + 1)
        steps.append(phase.taps.step or 1)
    ends = flipped.shape[rank:]
    kernel = slice_(flipped, (*starts, 0, 0), (*stops, *ends), (*steps, 1, 1))
    g = _crop(g, [min(phase.low, 0) for phase in chosen], [min(phase.high, 0) for phase in chosen])
    lows, highs = tuple([max(phase.low, 0) for phase in chosen]), tuple([max(phase.high, 0) for phase in chosen])
    return conv(g, kernel, Geometry((1,) * rank, lows, highs, how.dilations, how.groups))


def _flip(w: Node, groups: int) -> Node:
    """[*kernel, C / groups, O] as [*kernel, O / groups, C], flipped along the kernel."""
    *kernel, inside, outside = w.shape
    rank = len(kernel)
    apart = reshape(flip(w, range(rank)), (*kernel, inside, groups, outside // groups))
    swapped = permute(apart, (*range(rank), rank + 2, rank + 1, rank))
    return reshape(swapped, (*kernel, outside // groups, groups * inside))


def _crop(g: Node, lows: list[int], highs: list[int]) -> Node:
    """g without `-low` and `-high` elements at the ends of its spatial axes."""
    starts = (0, *[-low for low in lows], 0)
    stops = (g.shape[0], *[extent + high for extent, high in zip(g.shape[1:-1], highs, strict=True)], g.shape[-1])
    return slice_(g, starts, tuple(map(max, starts, stops)))


def _spread(g: Node, strides: Shape) -> Node:
    """g with `stride - 1` zeros between adjacent elements along its spatial axes."""
    n, *space, channels = g.shape
    rank = len(space)
    between = reshape(g, (n, *itertools.chain(*[(extent, 1) for extent in space]), channels))
    highs = (0, *itertools.chain(*[(0, stride - 1) for stride in strides]), 0)
    flat = tuple([extent * stride for extent, stride in zip(space, strides, strict=True)])
    wide = reshape(pad(between, (0,) * len(highs), highs), (n, *flat, channels))
    stops = (n, *[extent - stride + 1 for extent, stride in zip(flat, strides, strict=True)], channels)
    return slice_(wide, (0,) * (rank + 2), stops)


def _interleave(parts: list[Node], space: Shape, how: Geometry) -> Node:
    """Phases [N, *count, C], one per combination of remainders, as one [N, *space, C]."""
    n, *counts, channels = parts[0].shape
    rank, strides = len(counts), how.strides
    alone = [number for number, part in enumerate(parts) if part.op == "conv"]
    if len(alone) == 1:
        return _window(_among_zeros(parts[alone[0]], alone[0], strides), space, how)
    joined = concat([reshape(part, (n, 1, *counts, channels)) for part in parts], 1)
    stacked = reshape(joined, (n, *strides, *counts, channels))  # samples outermost, so any batch has one kernel
    order = (0, *itertools.chain(*[(1 + rank + k, 1 + k) for k in range(rank)]), 2 * rank + 1)
    merged = tuple([count * stride for count, stride in zip(counts, strides, strict=True)])
    return _window(reshape(permute(stacked, order), (n, *merged, channels)), space, how)


def _among_zeros(part: Node, number: int, strides: Shape) -> Node:
    """The only phase that is not zero, at its positions between the zeros of the others."""
    n, *counts, channels = part.shape
    phases = [number // math.prod(strides[k + 1 :]) % stride for k, stride in enumerate(strides)]
    between = reshape(part, (n, *itertools.chain(*[(count, 1) for count in counts]), channels))
    lows = (0, *itertools.chain(*[(0, phase) for phase in phases]), 0)
    rests = [stride - 1 - phase for phase, stride in zip(phases, strides, strict=True)]
    highs = (0, *itertools.chain(*[(0, rest) for rest in rests]), 0)
    merged = [count * stride for count, stride in zip(counts, strides, strict=True)]
    return reshape(pad(between, lows, highs), (n, *merged, channels))


def _window(whole: Node, space: Shape, how: Geometry) -> Node:
    """The part of the interleaved phases that x covers."""
    starts = tuple([low % stride for low, stride in zip(how.lows, how.strides, strict=True)])
    stops = tuple([start + extent for start, extent in zip(starts, space, strict=True)])
    return slice_(whole, (0, *starts, 0), (whole.shape[0], *stops, whole.shape[-1]))
