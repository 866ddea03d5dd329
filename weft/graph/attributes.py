"""The attributes of primitives, by name: one small immutable record for each primitive that has any.

A record is a named tuple: it equals, hashes and unpacks as the plain tuple of its values, which keys of caches rely on,
and costs little more to make. `graph.primitives.make_node` makes a plain tuple of all values into the record that the
primitive's row names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.base.dtypes import DType

Shape = tuple[int, ...]


class Serial(NamedTuple):
    """`buffer`, `input`, `variable`: a number that makes each of them its own node."""

    number: int


class Const(NamedTuple):
    """`const`: a Python value of the kind of the dtype."""

    value: Any


class Iota(NamedTuple):
    """`iota`: the axis that is counted along."""

    shape: Shape
    axis: int


class Random(NamedTuple):
    """`random`: which draw of the stream, and whether an element has 16 or 32 bits."""

    shape: Shape
    draw: int
    width: int


class Checkpoint(NamedTuple):
    """`checkpoint`: the `grad.checkpoint.Segment` that is computed again for the gradient."""

    segment: Any


class Call(NamedTuple):
    """`call`: what gives the gradients of its sources from those of its results."""

    rule: Any


class Result(NamedTuple):
    """`result`: its position among the results of a call."""

    number: int


class Custom(NamedTuple):
    """`custom`: the `kernels.custom.definition.Definition`, its digest, and the numbers given to it, in hexadecimal."""

    definition: Any
    digest: str
    numbers: tuple[str, ...]


class InRange(NamedTuple):
    """`in_range`: elements are in 0 to `extent` - 1."""

    extent: int


class Cast(NamedTuple):
    """`cast`, `bitcast`: the dtype of the result."""

    dtype: DType


class Reduce(NamedTuple):
    """`reduce_*`: the axes that disappear, sorted."""

    axes: tuple[int, ...]


class Reshape(NamedTuple):
    """`reshape`: the new shape."""

    shape: Shape


class Permute(NamedTuple):
    """`permute`: axis i of the result is axis `order[i]` of the source."""

    order: tuple[int, ...]


class Expand(NamedTuple):
    """`expand`: the new shape."""

    shape: Shape


class Slice(NamedTuple):
    """`slice`: one entry for each axis; steps are positive."""

    starts: Shape
    stops: Shape
    steps: Shape


class UpdateSlice(NamedTuple):
    """`update_slice`: the window that is written."""

    starts: Shape
    steps: Shape


class Pad(NamedTuple):
    """`pad`: how many elements of `value` are added before and after each axis."""

    lows: Shape
    highs: Shape
    value: Any


class Flip(NamedTuple):
    """`flip`: the axes that are reversed, sorted."""

    axes: tuple[int, ...]


class Unfold(NamedTuple):
    """`unfold`: windows of `size` elements, `dilation` apart, one every `step` along `axis`."""

    axis: int
    size: int
    step: int
    dilation: int


class Fold(NamedTuple):
    """`fold`: the axis of windows, and the extent of the axis that they become."""

    axis: int
    extent: int
    step: int
    dilation: int


class Concat(NamedTuple):
    """`concat`: the axis along which sources follow each other."""

    axis: int


class Gather(NamedTuple):
    """`gather`: the axis that is indexed, and whether the index is known to be in range, so that nothing checks it."""

    axis: int
    known: bool


class Scatter(NamedTuple):
    """`scatter_*`: the number of rows of the result."""

    rows: int


class Segment(NamedTuple):
    """`segment_sum` and its like: whether pointers are known to rise from 0 to the end, so that nothing checks it."""

    known: bool


class SegmentRows(NamedTuple):
    """`segment_rows`: the number of elements in all segments."""

    entries: int


class Geometry(NamedTuple):
    """`conv`: how a kernel moves over space, one number per spatial axis each, and the number of groups of channels."""

    strides: Shape
    lows: Shape
    highs: Shape
    dilations: Shape
    groups: int = 1

    def extents(self, space: Shape, kernel: Shape) -> Shape:
        """The spatial extents of the result; 0 or less where the kernel does not fit."""
        rows = zip(space, kernel, self.strides, self.lows, self.highs, self.dilations, strict=True)
        return tuple([(n + low + high - d * (k - 1) - 1) // s + 1 for n, k, s, low, high, d in rows])


class ConvWeight(NamedTuple):
    """`conv_weight`: the spatial extents of the kernel, and the geometry of the convolution."""

    kernel: Shape
    strides: Shape
    lows: Shape
    highs: Shape
    dilations: Shape
    groups: int

    @property
    def geometry(self) -> Geometry:
        return Geometry(*self[1:])


class ConvInput(NamedTuple):
    """`conv_input`: the spatial extents of the input, and the geometry of the convolution."""

    space: Shape
    strides: Shape
    lows: Shape
    highs: Shape
    dilations: Shape
    groups: int

    @property
    def geometry(self) -> Geometry:
        return Geometry(*self[1:])


class Scan(NamedTuple):
    """`scan`: 'sum', 'prod', 'max', 'min' or 'logaddexp' along `axis`, from its end if `reverse`."""

    op: str
    axis: int
    reverse: bool


class Along(NamedTuple):
    """`along`: the axis that is indexed."""

    axis: int


class AlongAdd(NamedTuple):
    """`along_add`: the axis that is indexed, and its extent in the result."""

    axis: int
    extent: int


class Loop(NamedTuple):
    """`loop`: the `graph.body.Body` of one iteration, how many there are, and whether they go from the last back."""

    body: Any
    length: int
    reverse: bool


class Pick(NamedTuple):
    """`pick`: what is taken of a node with several results: 'result' `number`, or of a loop the 'stack' of value
    `number` of its body over all iterations, the 'final' value of state `number`, or the 'block' of all its values."""

    part: str
    number: int


class Attention(NamedTuple):
    """How attention is computed. Query i sees key j iff j <= i + `diagonal`, or all where that is None: 0 is causal
    from the first query on, Tk - Tq such that the last query sees all. Weights drop with probability `dropout`, by draw
    number `draw` of shape [B, H, Tq, Tk]."""

    scale: float
    diagonal: int | None
    masked: bool
    dropout: float
    draw: int
