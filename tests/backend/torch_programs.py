"""Random programs of operations, written once and run by PyTorch and by Weft: what `test_torch_programs.py` compares.

A program is a list of (operation, numbers). What a step does depends on its numbers and on the shapes and dtypes of
what there is, so both libraries do the same. PyTorch goes first: what it refuses is left out in both. Operations with
jumps look at numbers on a grid, off which rounding does not lead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.backend.torch_movements import gathered, joined, moved, padded, scattered
from tests.backend.view_programs import Numbers, Refused

EXTENTS = (2, 3, 1, 4, 5, 7, 0, 33)
LARGEST = 4000  # elements of one value
UNARY = (
    "sin", "cos", "tanh", "sigmoid", "relu", "abs", "square", "neg", "erf", "atan", "asinh", "sign", "exp2", "sinc",
    "positive", "logit", "rsqrt", "reciprocal", "sqrt", "log", "log1p", "log2", "exp", "expm1", "sinh", "lgamma",
    "digamma", "frac", "floor", "ceil", "round", "trunc", "deg2rad", "nan_to_num", "acos", "asin", "atanh", "erfinv",
    "isfinite", "signbit", "logical_not",
)  # fmt: skip
POSITIVE = ("rsqrt", "reciprocal", "sqrt", "log", "log1p", "log2", "lgamma", "digamma")
BETWEEN_ONES = ("exp", "expm1", "exp2", "sinh", "tan", "acos", "asin", "atanh", "erfinv")
ON_GRID = ("floor", "ceil", "round", "trunc", "frac", "sign", "signbit", "logical_not")
# Without hardsigmoid: its slope in torch is the 1/6 of float32, also for float64.
ACTIVATIONS = ("gelu", "silu", "elu", "softplus", "mish", "selu", "hardtanh", "leaky_relu", "softsign", "logsigmoid",
               "hardswish", "relu6", "tanhshrink", "softshrink", "celu")  # fmt: skip


class Program:
    """The values of a program in one library, and the steps on them; `scalar` is a number that a caller gives."""

    def __init__(self, library: Any, leaves: list[Any], scalar: float):
        self.library, self.functional = library, library.nn.functional
        self.pool, self.scalar = list(leaves), scalar

    # ---- operands ------------------------------------------------------------------------------------------

    def pick(self, n: Numbers) -> Any:
        """One of the values, the later ones more often."""
        if n.below(3) == 0:
            return self.pool[n.below(len(self.pool))]
        return self.pool[-1 - n.below(min(3, len(self.pool)))]

    def floating(self, n: Numbers) -> Any:
        x = self.pick(n)
        return x if x.is_floating_point() else x.to(self.library.float64) * 0.125

    def grid(self, x: Any) -> Any:
        """Multiples of 1/64 near `x`, the same where `x` differs by rounding."""
        return self.library.floor(x.detach() * 64.0 + 0.3) / 64.0 if x.is_floating_point() else x

    def array(self, shape: tuple[int, ...], n: Numbers, dtype: str = "float64") -> Any:
        """New numbers: the same in both libraries."""
        size = math.prod(shape)
        seed = n.below(64)
        made = ((np.arange(size) * (2 * seed + 7) + seed) % 61 / 16 - 1.9).reshape(shape)
        if not dtype.startswith("float"):
            made = made * 4
        return self.library.tensor(made.astype(dtype))

    def indices(self, shape: tuple[int, ...], extent: int, n: Numbers) -> Any:
        if not extent:
            raise Refused
        numbers = np.arange(math.prod(shape)) * (n.below(7) + 1) + n.below(5)
        return self.library.tensor(numbers.reshape(shape) % extent)

    def partner(self, x: Any, n: Numbers) -> Any:
        """Another operand that broadcasts with `x`: a value of the program, or new."""
        shape = tuple(x.shape)
        if n.below(2):
            fitting = [y for y in self.pool if broadcasts(tuple(y.shape), shape)]
            if fitting:
                return fitting[n.below(len(fitting))]
        mine = tuple([1 if n.below(3) == 0 else extent for extent in shape])[n.below(len(shape) + 1) :]
        if n.below(6) == 0 and math.prod(shape) < 400:
            mine = (2, *mine) if len(mine) == len(shape) else mine
        return self.array(mine, n, ("float64", "float64", "float64", "int64", "float32", "bool", "int32")[n.below(7)])

    def axis(self, x: Any, n: Numbers) -> int:
        if not x.ndim:
            raise Refused
        return n.below(2 * x.ndim) - x.ndim

    def axes(self, x: Any, n: Numbers) -> tuple[int, ...]:
        chosen = tuple([axis for axis in range(x.ndim) if n.below(2)])
        if not chosen:
            raise Refused
        return chosen

    def step(self, operation: str, given: list[int]) -> None:
        """One operation. What it makes is kept where it is small, and scaled where its numbers are large."""
        n = Numbers(given)
        made = OPERATIONS[operation](self, n)
        for one in made if isinstance(made, (tuple, list)) else (made,):
            if math.prod(one.shape) > LARGEST:
                raise Refused
            self.pool.append(one)


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) <= len(target) and all(a in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False))


# ---- elementwise ----------------------------------------------------------------------------------------------------


def unary(p: Program, n: Numbers) -> Any:
    name = UNARY[n.below(len(UNARY))]
    x = p.floating(n)
    if name in POSITIVE:
        x = x.abs() + 0.5
    elif name in BETWEEN_ONES:
        x = p.library.tanh(x) * 0.9
    elif name in ON_GRID:
        x = p.grid(x)
    elif name == "logit":
        x = p.library.sigmoid(x) * 0.9 + 0.05
    return getattr(p.library, name)(x)


def activation(p: Program, n: Numbers) -> Any:
    return getattr(p.functional, ACTIVATIONS[n.below(len(ACTIVATIONS))])(p.floating(n))


def clamped(p: Program, n: Numbers) -> Any:
    x = p.floating(n)
    low, high = (-0.7, 0.9) if n.below(2) else (None, 0.3)
    return x.clamp(low, high) if n.below(2) else x.clamp(max=p.partner(x, n).to(x.dtype))


def binary(p: Program, n: Numbers) -> Any:
    names = ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "hypot", "logaddexp", "pow", "xlogy",
             "copysign", "true_divide", "fmax", "fmin", "float_power")  # fmt: skip
    name, x = names[n.below(len(names))], p.pick(n)
    y = p.partner(x, n)
    if n.below(2):
        x, y = y, x
    lib = p.library
    if name in ("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin"):
        if name == "sub" and lib.bool in (x.dtype, y.dtype):
            raise Refused
        return getattr(lib, name)(x, y)
    wide = lib.float64
    if name in ("div", "true_divide"):
        return getattr(lib, name)(x, y.abs() + 1 if y.dtype is not lib.bool else y + 1)
    if name in ("pow", "float_power"):
        return getattr(lib, name)(x.to(wide).abs() + 0.5, lib.tanh(y.to(wide)))
    if name == "xlogy":
        return lib.xlogy(x, y.to(wide).abs() + 0.5)
    if name in ("atan2", "hypot"):
        return getattr(lib, name)(x.to(wide) + 0.01, y.to(wide).abs() + 0.3)
    return getattr(lib, name)(x.to(wide), y.to(wide) + 0.001)


def scalar(p: Program, n: Numbers) -> Any:
    x, s = p.pick(n), p.scalar
    if n.below(2):
        s = (2, -3, 0.5, True, 1)[n.below(5)]
    how = n.below(8)
    if x.dtype is p.library.bool and how in (2, 3, 6):
        raise Refused
    if how == 4 and not x.is_floating_point() and s == 0:
        raise Refused
    return [
        lambda: x * s, lambda: x + s, lambda: s - x, lambda: x - s, lambda: x / (s + 3), lambda: s * x + x,
        lambda: -x * s, lambda: p.library.where(p.grid(x) > s, x, s),
    ][how]()  # fmt: skip


def whole(p: Program, n: Numbers) -> Any:
    """Integers and truths."""
    lib = p.library
    x = p.pick(n)
    if x.is_floating_point():
        x = lib.floor(p.grid(x) * 8.0).clamp(-1000, 1000).to((lib.int64, lib.int32, lib.int16, lib.uint8)[n.below(3)])
    y = p.partner(x, n)
    if y.is_floating_point():
        y = lib.floor(p.grid(y) * 8.0).clamp(-1000, 1000).to(lib.int64)
    how = n.below(9)
    if x.dtype is lib.bool and y.dtype is lib.bool and how in (0, 1, 2, 3):
        x = x.to(lib.int64)
    return [
        lambda: x // (y.abs() + 1 if y.dtype is not lib.bool else y + 1), lambda: x % (y.to(lib.int64).abs() + 1),
        lambda: lib.div(x, y.to(lib.int64) * 2 + 1, rounding_mode="trunc"),
        lambda: lib.fmod(x, y.to(lib.int64) * 2 + 1),
        lambda: x & y, lambda: x | y, lambda: x ^ y, lambda: x.to(lib.int64) << (y.to(lib.int64) & 7),
        lambda: lib.gcd(x.to(lib.int64), y.to(lib.int64)),
    ][how]()  # fmt: skip


def compare(p: Program, n: Numbers) -> Any:
    x = p.grid(p.pick(n))
    y = p.grid(p.partner(x, n))
    name = ("lt", "le", "eq", "ne", "gt", "ge", "logical_and", "logical_or", "logical_xor")[n.below(9)]
    return getattr(p.library, name)(x, y)


def where(p: Program, n: Numbers) -> Any:
    x = p.pick(n)
    condition = p.grid(p.partner(x, n)) > 0
    how = n.below(3)
    if how == 0:
        return p.library.where(condition, x, p.partner(x, n))
    if how == 1:
        if len(condition.shape) > x.ndim:
            raise Refused
        return x.masked_fill(condition, p.scalar if x.is_floating_point() else 1)
    return p.library.where(condition, p.scalar, x)


def ternary(p: Program, n: Numbers) -> Any:
    x = p.floating(n).to(p.library.float64)
    y, z = (p.partner(x, n).to(p.library.float64) for _ in range(2))
    name = ("lerp", "addcmul", "addcdiv")[n.below(3)]
    return getattr(p.library, name)(x, y, z.abs() + 1.0)


def cast(p: Program, n: Numbers) -> Any:
    lib = p.library
    return p.grid(p.pick(n)).to((lib.float32, lib.float64, lib.int64, lib.int32, lib.bool, lib.int8)[n.below(5)])


# ---- reductions -----------------------------------------------------------------------------------------------------


def reduction(p: Program, n: Numbers) -> Any:
    names = ("sum", "mean", "amax", "amin", "prod", "var", "std", "logsumexp", "norm", "nansum", "any", "all",
             "count_nonzero", "argmax", "argmin")  # fmt: skip
    name, x, keep = names[n.below(len(names))], p.pick(n), bool(n.below(2))
    lib = p.library
    if name in ("sum", "mean", "nansum", "var", "std", "logsumexp", "norm"):
        x = x if x.is_floating_point() or name == "sum" else x.to(lib.float64)
        if name in ("var", "std"):
            axes = p.axes(x, n)
            correction = n.below(2)
            if math.prod([x.shape[axis] for axis in axes]) <= 1:
                raise Refused
            noisy = x + p.array((x.shape[axes[0]],) + (1,) * (x.ndim - axes[0] - 1), n)
            return getattr(lib, name)(noisy, axes, correction=correction, keepdim=keep)
        if name == "norm":
            return lib.linalg.vector_norm(x + 0.01, (2, 1, 3)[n.below(3)], p.axes(x, n), keepdim=keep)
        return getattr(lib, name)(x, p.axes(x, n), keepdim=keep) if n.below(4) else x.sum()
    if name in ("amax", "amin"):
        return getattr(lib, name)(x, p.axes(x, n), keepdim=keep)
    if name == "count_nonzero":
        return lib.count_nonzero(p.grid(x), p.axes(x, n))
    if name == "prod":
        x = lib.tanh(x.to(lib.float64)) + 0.5 if n.below(2) else p.grid(lib.tanh(x.to(lib.float64)))
        return lib.prod(x, p.axis(x, n), keepdim=keep) if n.below(3) else lib.prod(x)
    return getattr(lib, name)(p.grid(x), p.axis(x, n), keepdim=keep)


def scan(p: Program, n: Numbers) -> Any:
    x, name = p.pick(n), ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff")[n.below(6)]
    lib, axis = p.library, p.axis(x, n)
    if name == "cumprod":
        return lib.cumprod(lib.tanh(x.to(lib.float64)) * (1.0 if n.below(2) else 0.0) + p.grid(lib.tanh(x)), axis)
    if name in ("logcumsumexp", "diff"):
        return getattr(lib, name)(x.to(lib.float64), dim=axis)
    if name == "cumsum":
        return lib.cumsum(x, axis)
    return getattr(lib, name)(x if x.dtype is not lib.bool else x.to(lib.int32), axis)[0]


def ordered(p: Program, n: Numbers) -> Any:
    """Sorts and what is made of them; equal numbers keep their order."""
    x, lib, how = p.pick(n), p.library, n.below(8)
    axis = p.axis(x, n)
    count = x.shape[axis]
    if how == 0:
        return lib.sort(x, dim=axis, descending=bool(n.below(2)), stable=True)[0]
    if how == 1:
        return lib.sort(p.grid(x), dim=axis, descending=bool(n.below(2)), stable=True)[1]
    if how == 2:
        return lib.topk(x, n.below(count + 1), axis, largest=bool(n.below(2)))[0]
    if how == 3:
        if not count:
            raise Refused
        return lib.kthvalue(x, 1 + n.below(count), axis, keepdim=bool(n.below(2)))[0]
    if how == 4:
        return (lib.max if n.below(2) else lib.min)(x, axis)[0]
    if how == 5:
        return lib.median(x, axis)[0]
    if how == 6:
        line = lib.sort(p.grid(p.array((5,), n)))[0]
        return lib.searchsorted(line, p.grid(x.to(lib.float64)), right=bool(n.below(2)))
    return lib.quantile(x.to(lib.float64), (0.25, 0.5, 0.8)[n.below(3)], dim=axis)


# ---- products and layers --------------------------------------------------------------------------------------------


def product(p: Program, n: Numbers) -> Any:
    x, lib, how = p.floating(n).to(p.library.float64), p.library, n.below(9)
    if not x.ndim:
        raise Refused
    inner, shape = x.shape[-1], tuple(x.shape)
    if how == 0:
        return x @ p.array((inner,), n)
    if how == 1:
        return x @ p.array((inner, 3), n)
    if how == 2:
        return x @ x.transpose(-1, -2)
    if how == 3:
        return p.functional.linear(x, p.array((4, inner), n), p.array((4,), n))
    if how == 4:
        return lib.einsum("...i,...i->...", x, p.partner(x, n).to(lib.float64))
    if how == 5:
        return lib.tensordot(x, p.array((inner, 2), n), 1)
    if how == 6:
        return lib.matmul(p.array((2, *[1] * max(x.ndim - 2, 0), 3, shape[-2] if x.ndim > 1 else inner), n), x)
    if how == 7:
        return lib.einsum("ij,kj->ik" if x.ndim == 2 else "...i,...j->...ij", x, x)
    return lib.outer(x.flatten()[:7], x.flatten()[:5])


def layer(p: Program, n: Numbers) -> Any:
    """Functions of layers. Long because it is one branch for each."""
    x, lib, f, how = p.floating(n).to(p.library.float64), p.library, p.functional, n.below(15)
    axis = p.axis(x, n)
    if how == 0:
        return f.softmax(x, axis)
    if how == 1:
        return f.log_softmax(x, axis)
    if how == 2:
        return f.layer_norm(x + p.array((x.shape[-1],), n), (x.shape[-1],), eps=0.1)
    if how == 3:
        return f.normalize(x, dim=axis, eps=0.5)
    if how == 4:
        return f.cosine_similarity(x, p.partner(x, n).to(lib.float64) + 0.1, dim=axis)
    if how == 5:
        if x.ndim != 3:
            x = x.reshape(1, 1, -1)
        w = p.array((2, x.shape[1], 1 + n.below(3)), n)
        return f.conv1d(x, w, p.array((2,), n), stride=1 + n.below(2), padding=n.below(2), dilation=1 + n.below(2))
    if how == 6:
        x = x.reshape(1, *x.shape[:1], -1, x.shape[-1]) if x.ndim != 4 and x.ndim > 1 else x
        w = p.array((3, x.shape[1], 2, 1 + n.below(3)), n)
        return f.conv2d(x, w, stride=1 + n.below(2), padding=n.below(2))
    if how == 7:
        pool = (f.max_pool1d, f.avg_pool1d)[n.below(2)]
        return pool(x, 2 + n.below(2), 1 + n.below(2), n.below(2))
    if how == 8:
        labels = p.indices((x.shape[0],), x.shape[1], n)
        return f.cross_entropy(x, labels, reduction=("mean", "sum", "none")[n.below(3)],
                               label_smoothing=(0.0, 0.1)[n.below(2)])  # fmt: skip
    if how == 9:
        name = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")[n.below(4)]
        y = p.partner(x, n).to(lib.float64).expand(x.shape)
        return getattr(f, name)(x, y, reduction=("mean", "sum", "none")[n.below(3)])
    if how == 10:
        q = x.reshape(1, 1, -1, x.shape[-1])
        return f.scaled_dot_product_attention(q, q * 0.5, q + 0.1, is_causal=bool(n.below(2)))
    if how == 11:
        square = x.reshape(-1)[:9].reshape(3, 3)
        eye = lib.eye(3, dtype=lib.float64)
        safe = lib.tanh(square) * 0.3 + eye * 2.0
        name = n.below(4)
        if name == 0:
            return lib.linalg.inv(safe)
        if name == 1:
            return lib.linalg.det(safe)
        if name == 2:
            return lib.linalg.solve(safe, square)
        return lib.linalg.cholesky(safe @ safe.mT + eye)
    if how == 12:
        return f.interpolate(x.reshape(1, 1, -1), scale_factor=2, mode=("nearest", "linear")[n.below(2)])
    if how == 13:
        return f.glu(x, axis)
    return lib.cdist(x.reshape(-1, x.shape[-1])[:5], p.array((3, x.shape[-1]), n))


def checkpointed(p: Program, n: Numbers) -> Any:
    """Two or three operations that are computed again for the gradient."""
    inside = (activation, reduction, moved, scan, product, layer, binary, ternary)
    chosen = [inside[n.below(len(inside))] for _ in range(2 + n.below(2))]
    given = [[n.below(64) for _ in range(12)] for _ in chosen]

    def run(*values: Any) -> Any:
        part = Program(p.library, list(values), p.scalar)
        for function, numbers in zip(chosen, given, strict=True):
            made = function(part, Numbers(numbers))
            part.pool.append(made[0] if isinstance(made, (tuple, list)) else made)
        return part.pool[-1]

    values = [p.floating(n) for _ in range(1 + n.below(2))]
    return p.library.utils.checkpoint.checkpoint(run, *values, use_reentrant=False)


OPERATIONS: dict[str, Callable[[Program, Numbers], Any]] = {
    one.__name__: one
    for one in (
        unary, activation, clamped, binary, scalar, whole, compare, where, ternary, cast, reduction, scan, ordered,
        moved, joined, padded, gathered, scattered, product, layer, checkpointed,
    )
}  # fmt: skip
OFTEN = ("binary", "moved", "moved", "reduction", "gathered", "scattered")

numbers = st.lists(st.integers(0, 63), min_size=12, max_size=12)
operations = st.sampled_from((*OPERATIONS, *OFTEN))
programs = st.lists(st.tuples(operations, numbers), min_size=1, max_size=10)
