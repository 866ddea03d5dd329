"""Padding layers, as in torch: elements are added at the sides of the last one, two or three axes.

`padding` is one number for all sides, or (left, right) for the last axis, then (top, bottom), then (front, back).
Shape: input [B, C, L], [B, C, H, W] or [B, C, D, H, W], or without B (Constant and Zero: any leading axes); the output
is longer by the sum of the two numbers of each axis. Negative numbers cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.base.errors import ShapeError, problem
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.registry import layer


class _Pad(Module):
    """Base of the padding layers: `_axes` is the number of axes, `_mode` that of `F.pad`."""

    _axes: int
    _mode: str

    def __init__(self, padding: int | Sequence[int]):
        super().__init__()
        self.padding = (padding,) * (2 * self._axes) if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != 2 * self._axes:
            raise problem(ShapeError, type(self).__name__, f"padding={padding!r}", f"one number or {2 * self._axes}")

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (self._axes + 1, self._axes + 2):
            sizes = ", ".join(("D", "H", "W")[-self._axes :] if self._axes > 1 else ("L",))
            raise problem(
                ShapeError, type(self).__name__, f"shape {list(input.shape)}", f"[B, C, {sizes}] or [C, {sizes}]"
            )
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """Base of the layers that add one number."""

    value: float = 0.0

    def __init__(self, padding: int | Sequence[int], value: float):
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    """Base of the layers that add zeros."""

    def __init__(self, padding: int | Sequence[int]):
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


@layer(learns="-")
class ConstantPad1d(_ConstantPad):
    """x with `value` around it, along the last axis.

    >>> weft.nn.ConstantPad1d(1, 7.0)(weft.tensor([[1.0, 2.0, 3.0]]))
    tensor([[7., 1., 2., 3., 7.]])
    """

    _axes = 1


@layer(learns="-")
class ConstantPad2d(_ConstantPad):
    """x with `value` around it, along the last two axes.

    >>> weft.nn.ConstantPad2d(1, 7.0)(weft.ones(1, 3, 3)).shape
    (1, 5, 5)
    """

    _axes = 2


@layer(learns="-")
class ConstantPad3d(_ConstantPad):
    """x with `value` around it, along the last three axes.

    >>> weft.nn.ConstantPad3d(1, 7.0)(weft.ones(1, 3, 3, 3)).shape
    (1, 5, 5, 5)
    """

    _axes = 3


@layer(learns="-")
class ZeroPad1d(_ZeroPad):
    """x with zeros around it, along the last axis.

    >>> weft.nn.ZeroPad1d(1)(weft.tensor([[1.0, 2.0, 3.0]]))
    tensor([[0., 1., 2., 3., 0.]])
    """

    _axes = 1


@layer(learns="-")
class ZeroPad2d(_ZeroPad):
    """x with zeros around it, along the last two axes.

    >>> weft.nn.ZeroPad2d(1)(weft.ones(1, 3, 3)).shape
    (1, 5, 5)
    """

    _axes = 2


@layer(learns="-")
class ZeroPad3d(_ZeroPad):
    """x with zeros around it, along the last three axes.

    >>> weft.nn.ZeroPad3d(1)(weft.ones(1, 3, 3, 3)).shape
    (1, 5, 5, 5)
    """

    _axes = 3


@layer(learns="-")
class ReflectionPad1d(_Pad):
    """x with the mirror image of the inside, without the border itself around it, along the last axis.

    >>> weft.nn.ReflectionPad1d(1)(weft.tensor([[1.0, 2.0, 3.0]]))
    tensor([[2., 1., 2., 3., 2.]])
    """

    _axes = 1
    _mode = "reflect"


@layer(learns="-")
class ReflectionPad2d(_Pad):
    """x with the mirror image of the inside, without the border itself around it, along the last two axes.

    >>> weft.nn.ReflectionPad2d(1)(weft.ones(1, 3, 3)).shape
    (1, 5, 5)
    """

    _axes = 2
    _mode = "reflect"


@layer(learns="-")
class ReflectionPad3d(_Pad):
    """x with the mirror image of the inside, without the border itself around it, along the last three axes.

    >>> weft.nn.ReflectionPad3d(1)(weft.ones(1, 3, 3, 3)).shape
    (1, 5, 5, 5)
    """

    _axes = 3
    _mode = "reflect"


@layer(learns="-")
class ReplicationPad1d(_Pad):
    """x with the nearest element of the border around it, along the last axis.

    >>> weft.nn.ReplicationPad1d(1)(weft.tensor([[1.0, 2.0, 3.0]]))
    tensor([[1., 1., 2., 3., 3.]])
    """

    _axes = 1
    _mode = "replicate"


@layer(learns="-")
class ReplicationPad2d(_Pad):
    """x with the nearest element of the border around it, along the last two axes.

    >>> weft.nn.ReplicationPad2d(1)(weft.ones(1, 3, 3)).shape
    (1, 5, 5)
    """

    _axes = 2
    _mode = "replicate"


@layer(learns="-")
class ReplicationPad3d(_Pad):
    """x with the nearest element of the border around it, along the last three axes.

    >>> weft.nn.ReplicationPad3d(1)(weft.ones(1, 3, 3, 3)).shape
    (1, 5, 5, 5)
    """

    _axes = 3
    _mode = "replicate"


@layer(learns="-")
class CircularPad1d(_Pad):
    """x with the elements of the other end around it, along the last axis.

    >>> weft.nn.CircularPad1d(1)(weft.tensor([[1.0, 2.0, 3.0]]))
    tensor([[3., 1., 2., 3., 1.]])
    """

    _axes = 1
    _mode = "circular"


@layer(learns="-")
class CircularPad2d(_Pad):
    """x with the elements of the other end around it, along the last two axes.

    >>> weft.nn.CircularPad2d(1)(weft.ones(1, 3, 3)).shape
    (1, 5, 5)
    """

    _axes = 2
    _mode = "circular"


@layer(learns="-")
class CircularPad3d(_Pad):
    """x with the elements of the other end around it, along the last three axes.

    >>> weft.nn.CircularPad3d(1)(weft.ones(1, 3, 3, 3)).shape
    (1, 5, 5, 5)
    """

    _axes = 3
    _mode = "circular"
