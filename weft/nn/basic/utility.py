"""Layers without parameters that combine, cut and reshape tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.names.functions import cat, where
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.registry import layer


@layer(aliases=("IdentityLayer",), learns="-")
class Identity(Module):
    """y = x. Arguments of the constructor are taken and not used.

    >>> weft.nn.Identity()(weft.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


@layer("L006", aliases=("FlattenLayer",), learns="-")
class Flatten(Module):
    """y = x with the axes from start_dim to end_dim as one.

    >>> weft.nn.Flatten()(weft.ones(2, 3, 4)).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


@layer(learns="-")
class Unflatten(Module):
    """y = x with the axis `dim` as several, of the extents `unflattened_size`; one of them may be -1.

    >>> weft.nn.Unflatten(1, (3, -1))(weft.ones(2, 12)).shape
    (2, 3, 4)
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


def _need_two(who: str, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Several inputs, or one list of them."""
    if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
        inputs = tuple(inputs[0])
    if len(inputs) < 2:
        raise problem(ShapeError, who, f"{len(inputs)} inputs", "two or more")
    return inputs


@layer("L002", aliases=("AddLayer",), learns="-", oracle="a chain of torch.add")
class Add(Module):
    """y = x₁ + x₂ + ... with broadcasting; the gradient of each input is summed over its broadcast axes.

    >>> weft.nn.Add()(weft.ones(2), weft.full((1,), 2.0))
    tensor([3., 3.])
    """

    def forward(self, *inputs: Any) -> Tensor:
        first, *rest = _need_two("Add", inputs)
        for other in rest:
            first = first + other
        return first


@layer("L011", aliases=("MultiplyLayer",), learns="-", oracle="a chain of torch.mul")
class Multiply(Module):
    """y = x₁ · x₂ · ... with broadcasting. The gradient of an input is the product of the others, by multiplication
    only: exact where inputs are 0.

    >>> weft.nn.Multiply()(weft.full((2,), 3.0), weft.full((1,), 2.0))
    tensor([6., 6.])
    """

    def forward(self, *inputs: Any) -> Tensor:
        first, *rest = _need_two("Multiply", inputs)
        for other in rest:
            first = first * other
        return first


@layer("L003", aliases=("ConcatenateLayer", "Concatenate"), learns="-", oracle="torch.cat")
class Concat(Module):
    """y = the inputs one after the other along `dim`; their other axes are the same.

    >>> weft.nn.Concat()(weft.ones(2, 1), weft.zeros(2, 3)).shape
    (2, 4)
    """

    def __init__(self, dim: int = 1):
        super().__init__()
        self.dim = dim

    def forward(self, *inputs: Any) -> Tensor:
        return cat(_need_two("Concat", inputs), self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


@layer("L010", aliases=("MeanLayer",), learns="-", oracle="torch.mean")
class Mean(Module):
    """y = the mean of x along `dim`, an axis or several.

    >>> weft.nn.Mean(1)(weft.ones(2, 3))
    tensor([1., 1.])
    """

    def __init__(self, dim: int | Sequence[int], keepdim: bool = False):
        super().__init__()
        self.dim, self.keepdim = dim if isinstance(dim, int) else tuple(dim), keepdim

    def forward(self, input: Tensor) -> Tensor:
        return input.mean(self.dim, self.keepdim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, keepdim={self.keepdim}"


@layer(learns="-", oracle="slicing")
class Crop(Module):
    """y = x without the first and last elements of its trailing axes: `pairs` has (before, after) for each of them, the
    last pair for the last axis. The gradient is padded with zeros.

    >>> weft.nn.Crop([(1, 0), (0, 2)])(weft.ones(2, 3, 4)).shape
    (2, 2, 2)
    """

    def __init__(self, pairs: Sequence[Sequence[int]]):
        super().__init__()
        self.pairs = tuple((int(before), int(after)) for before, after in pairs)
        if any(number < 0 for pair in self.pairs for number in pair):
            raise problem(RangeError, type(self).__name__, f"pairs={self.pairs}", "numbers from 0 on")

    def forward(self, input: Tensor) -> Tensor:
        sizes = input.shape[max(input.ndim - len(self.pairs), 0) :]
        if len(sizes) < len(self.pairs) or any(
            size < before + after for size, (before, after) in zip(sizes, self.pairs, strict=True)
        ):
            expected = f"at least {len(self.pairs)} axes, no shorter than what is cut off: {self.pairs}"
            raise problem(ShapeError, type(self).__name__, f"shape {list(input.shape)}", expected)
        kept = [slice(before, size - after) for size, (before, after) in zip(sizes, self.pairs, strict=True)]
        return input[(..., *kept)]

    def extra_repr(self) -> str:
        return f"pairs={self.pairs}"


@layer("L004", aliases=("CroppingLayer", "Cropping"), learns="-", oracle="slicing")
class Crop2d(Crop):
    """y = x[..., top : H - bottom, left : W - right]. The gradient is padded with zeros.

    Shape: input [B, C, H, W], output [B, C, H - top - bottom, W - left - right].

    >>> weft.nn.Crop2d(1, 0, 0, 2)(weft.ones(1, 1, 3, 4)).shape
    (1, 1, 2, 2)
    """

    def __init__(self, top: int, bottom: int, left: int, right: int):
        super().__init__([(top, bottom), (left, right)])


@layer("L012", aliases=("PaddingLayer", "Padding"), learns="-", oracle="torch.nn.functional.pad")
class Pad(Module):
    """y = x with elements added at its sides. `padding` is (before, after) for the last axis, then for the one before
    it, and so on; mode is 'constant' (with `value`), 'reflect', 'replicate' or 'circular'.

    >>> weft.nn.Pad((1, 2), value=7.0)(weft.zeros(2))
    tensor([7., 0., 0., 7., 7.])
    """

    def __init__(self, padding: Sequence[int], mode: str = "constant", value: float = 0.0):
        super().__init__()
        if mode not in ("constant", "reflect", "replicate", "circular"):
            expected = "'constant', 'reflect', 'replicate' or 'circular'"
            raise problem(RangeError, "Pad", f"mode={mode!r}", expected)
        self.padding, self.mode, self.value = tuple(padding), mode, value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode, self.value if self.mode == "constant" else None)

    def extra_repr(self) -> str:
        return f"{self.padding}, mode={self.mode!r}" + (f", value={self.value}" if self.mode == "constant" else "")


@layer("L013", aliases=("ReshapeLayer",), learns="-", oracle="numpy.reshape")
class Reshape(Module):
    """y = x of shape [B, *shape]: the first axis stays; one extent may be -1.

    >>> weft.nn.Reshape(2, -1)(weft.ones(5, 6)).shape
    (5, 2, 3)
    """

    def __init__(self, *shape: Any):
        super().__init__()
        given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        self.shape = tuple(int(size) for size in given)
        if self.shape.count(-1) > 1 or any(size < -1 for size in self.shape):
            raise problem(RangeError, "Reshape", f"shape {self.shape}", "extents from 0 on, at most one of them -1")

    def forward(self, input: Tensor) -> Tensor:
        inside = math.prod(input.shape[1:])
        known = math.prod(size for size in self.shape if size != -1)
        fits = (known and inside % known == 0) if -1 in self.shape else inside == known
        if not input.ndim or not fits:
            expected = f"[B, *] that fits [B, {', '.join(map(str, self.shape))}]"
            raise problem(ShapeError, "Reshape", f"shape {list(input.shape)}", expected)
        return input.reshape(input.shape[0], *[inside // known if size == -1 else size for size in self.shape])

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.shape))


@layer("L014", aliases=("SequenceLastLayer",), learns="-", oracle="indexing")
class SequenceLast(Module):
    """y[b] = x[b, T - 1], or x[b, lengths[b] - 1] where lengths are given. The gradient of all other steps is 0.

    Shape: input [B, T, *] ([T, B, *] with batch_first=False), lengths [B], output [B, *].

    >>> weft.nn.SequenceLast()(weft.arange(6.0).reshape(2, 3, 1), weft.tensor([1, 3])).flatten()
    tensor([0., 5.])
    """

    def __init__(self, batch_first: bool = True):
        super().__init__()
        self.batch_first = batch_first

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if x.ndim < 2:
            expected = "[B, T, *]" if self.batch_first else "[T, B, *]"
            raise problem(ShapeError, "SequenceLast", f"shape {list(x.shape)}", expected)
        steps = x if self.batch_first else x.transpose(0, 1)  # [B, T, *]
        if lengths is None:
            return steps[:, -1]
        if tuple(lengths.shape) != (steps.shape[0],):
            given = f"lengths of shape {list(lengths.shape)} for {steps.shape[0]} sequences"
            raise problem(ShapeError, "SequenceLast", given, f"[{steps.shape[0]}]")
        index = (lengths - 1).reshape(-1, *[1] * (steps.ndim - 1)).expand(-1, 1, *steps.shape[2:])
        return steps.gather(1, index).squeeze(1)

    def extra_repr(self) -> str:
        return f"batch_first={self.batch_first}"


@layer("L009", aliases=("MaskingLayer",), learns="-", oracle="Keras' rule in NumPy")
class Masking(Module):
    """y = x · mask; a step is masked (False) where all its features equal mask_value, as in Keras. With
    elementwise=True single elements are masked.

    Shape: x [B, T, F], y the same; mask(x) [B, T] ([B, T, F] with elementwise=True), True = kept. The layer returns y
    alone, so that it fits into Sequential; hand `layer.mask(x)` to layers that take a mask (`mask=`).

    >>> layer = weft.nn.Masking()
    >>> layer.mask(weft.tensor([[[0.0, 0.0], [0.0, 1.0]]]))
    tensor([[False,  True]])
    """

    def __init__(self, mask_value: float = 0.0, elementwise: bool = False):
        super().__init__()
        self.mask_value, self.elementwise = mask_value, elementwise

    def mask(self, x: Tensor) -> Tensor:
        """Which steps (or elements) are kept."""
        if x.ndim < 2:
            raise problem(ShapeError, "Masking", f"shape {list(x.shape)}", "[B, T, F]")
        kept = x.detach() != self.mask_value
        return kept if self.elementwise else kept.any(-1)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.mask(x)
        return where(kept if self.elementwise else kept.unsqueeze(-1), x, 0.0)

    def extra_repr(self) -> str:
        return f"mask_value={self.mask_value}" + (", elementwise=True" if self.elementwise else "")


@layer("L015", aliases=("SplitLayer",), learns="-", oracle="torch.split and torch.chunk")
class Split(Module):
    """y₁, y₂, ... = the parts of x along `dim`: of the extents given, or n equal ones. With stack=True the n parts are
    a new axis before `dim` instead of a tuple. The gradient is the concatenation.

    >>> [tuple(y.shape) for y in weft.nn.Split(2)(weft.ones(3, 4))]
    [(3, 2), (3, 2)]
    """

    def __init__(self, sizes_or_n: int | Sequence[int], dim: int = -1, stack: bool = False):
        super().__init__()
        is_count = isinstance(sizes_or_n, int)
        self.sizes_or_n = sizes_or_n if isinstance(sizes_or_n, int) else tuple(sizes_or_n)
        if self.sizes_or_n < 1 if isinstance(self.sizes_or_n, int) else min(self.sizes_or_n, default=-1) < 0:
            raise problem(RangeError, "Split", f"{sizes_or_n!r}", "a number of parts from 1 on, or their extents")
        if stack and not is_count:
            raise problem(RangeError, "Split", f"stack=True with the extents {sizes_or_n!r}", "a number of parts")
        self.dim, self.stack = dim, stack

    def forward(self, input: Tensor) -> Any:
        if not -input.ndim <= self.dim < input.ndim:
            raise problem(ShapeError, "Split", f"shape {list(input.shape)}", f"an axis {self.dim}")
        size, parts = input.shape[self.dim], self.sizes_or_n
        if size % parts if isinstance(parts, int) else sum(parts) != size:
            expected = f"an extent that {parts} divides" if isinstance(parts, int) else f"{sum(parts)} elements"
            given = f"shape {list(input.shape)} with {size} elements along axis {self.dim}"
            raise problem(ShapeError, "Split", given, expected)
        if isinstance(parts, int):
            if self.stack:
                return input.unflatten(self.dim, (parts, size // parts))
            parts = (size // parts,) * parts
        return tuple(input.split(list(parts), self.dim))

    def extra_repr(self) -> str:
        return f"{self.sizes_or_n}, dim={self.dim}" + (", stack=True" if self.stack else "")
