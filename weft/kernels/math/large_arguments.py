"""sin and cos of large angles, and float remainders of large quotients: exact, slow, and needed by few elements.

`kernels.math.functions` computes the common case with a few operations for every element. Where an element lies outside
of it, the operation `NAME(needed, common, *args)` of the kernel language replaces `common` by the function below, one
element at a time: renderers print its body as a scalar function beside the kernel, and call it only where `needed` is
true (on a CPU: in some lane of the vector). A body is straight-line code without memory accesses.

- `sin_large`, `cos_large`: Payne and Hanek's reduction. x = m * 2**e with an integer m; of the product m * (2/pi) only
  the bits from weight 2 downwards matter, and these need only a window of the bits of 2/pi that begins at weight
  2**(1 - e). The integer product of m and that window is the quadrant and the fraction of it, exact to more bits than
  any float's distance to a multiple of pi/2 can cancel.
- `mod_large`, `floor_divide_large`: long division. float32 divides in float64, 47 bits of the quotient at a time;
  float64 52 bits at a time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.kernels.ir import index as ix
from weft.kernels.ir.language import LARGE, Expr, Kernel, Let, Literal, ScalarParam, Store, Var
from weft.kernels.ir.normalize import normalise
from weft.kernels.math.functions import sine_and_cosine


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A function of scalars as renderers print it: its statements, in normal form, and what it returns."""

    name: str
    parameters: tuple[Var, ...]
    body: tuple[Let, ...]
    result: Expr


@functools.cache
def function(name: str, dtype: DType) -> Scalar:
    """The function behind the operation called `name`, for arguments of `dtype`."""
    parameters = tuple([Var(one, dtype) for one in ("a", "b")[: 1 if name in ("sin_large", "cos_large") else 2]])
    value = BODIES[name](*parameters)
    scalars = tuple([ScalarParam(one.name, dtype) for one in parameters])
    kernel = normalise(Kernel(name, (), scalars, (), (Store("result", ix.ZERO, value),)))
    *body, stored = kernel.body
    assert isinstance(stored, Store)
    return Scalar(
        f"{name}_{dtype.name}", parameters, tuple([let for let in body if isinstance(let, Let)]), stored.value
    )


# --- remainder -------------------------------------------------------------------------------------------------------


def _fmod(a: Expr, b: Expr) -> Expr:
    """The remainder of a / b with the sign of a, as C's fmod."""
    is_float32 = a.dtype is dtypes.float32
    step, steps = (47, 6) if is_float32 else (52, 41)  # 2**277 and 2**2098 are the largest quotients
    rest, divisor = (abs(x.cast(dtypes.float64) if is_float32 else x) for x in (a, b))
    finite = rest < math.inf
    divisors = [divisor]  # times powers of two; infinite beyond the range, where the quotient has no digit
    for _ in range(steps - 1):
        divisors.append(divisors[-1] * 2.0**step)
    for part in reversed(divisors):
        # One too many where the quotient was rounded up to the next integer. Both forms of the rest are exact.
        quotient = (rest / part).floor()
        left = (-quotient).fma(part, rest)
        left = (left < 0.0).select(left + part, left)
        rest = part.eq(math.inf).select(rest, left)
    rest = finite.select(rest, Literal(math.nan, dtypes.float64))
    rest = rest.cast(a.dtype) if is_float32 else rest
    rest = (a < 0.0).select(-rest, rest)
    return rest.eq(0.0).select(a * 0.0, rest)  # a zero has the sign of a


def _has_other_sign(rest: Expr, b: Expr) -> Expr:
    """Whether a remainder is not 0 and has not the sign of b."""
    return rest.ne(0.0) & ((rest < 0.0) ^ (b < 0.0))


def _mod(a: Expr, b: Expr) -> Expr:
    """The remainder with the sign of b."""
    rest = _fmod(a, b)
    return _has_other_sign(rest, b).select(rest + b, rest)


def _floor_divide(a: Expr, b: Expr) -> Expr:
    """The quotient rounded down, from the remainder."""
    rest, ratio = _fmod(a, b), a / b
    quotient = (a - rest) / b
    quotient = _has_other_sign(rest, b).select(quotient - 1.0, quotient)
    whole = quotient.floor()
    whole = (0.5 < quotient - whole).select(whole + 1.0, whole)
    whole = quotient.eq(0.0).select(ratio * 0.0, whole)
    return b.eq(0.0).select(ratio, whole)


# --- circular functions ----------------------------------------------------------------------------------------------

# 2/pi * 2**1280, by which 2/pi is known to the last bit that any float64 needs.
_TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d", 16
)  # fmt: skip


def _sine(x: Expr, quadrants: int) -> Expr:
    """sin(x + quadrants * pi/2) for abs(x) of at least 1 (float64: 2**22); NaN of infinity."""
    small = x.dtype is dtypes.float32
    mantissa, bias, limbs = (23, 127, 3) if small else (52, 1023, 6)
    whole = dtypes.uint64
    bits = abs(x).bitcast(dtypes.int32 if small else dtypes.int64)
    bits = bits if bits.dtype is dtypes.int64 else bits.cast(dtypes.int64)
    m = ((bits & (2**mantissa - 1)) | 2**mantissa).cast(whole)
    # The window begins `skipped` bits after the point of 2/pi, where m * 2**exponent has bits of weight 2 and less.
    exponent = (bits >> mantissa) - (bias + mantissa)
    skipped = (exponent + (32 - 2)).cast(whole)  # a limb of zeros stands before the point
    window = _window(skipped, bias + 1 + 32 - mantissa, limbs)
    factors = [m & (2**32 - 1), *([] if small else [m >> 32])]
    top, bottom = _product(factors, window)  # the quadrant in the two upper bits, its fraction below
    # To the nearest quadrant: what is left is a signed fraction of at most 1/2.
    quadrant = ((top + 2**61) >> 62) + quadrants
    fraction = (top << 2).cast(dtypes.int64)  # in units of 2**-64, wrapped around to its sign
    fraction = fraction | (bottom >> 62).cast(dtypes.int64)
    below = ((bottom << 2) >> 11).cast(dtypes.int64)  # the next 53 bits
    high, low = _radians(fraction, below)
    sine, cosine = _polynomials(high, low)
    value = (quadrant & 1).eq(0).select(sine, cosine)
    value = (quadrant & 2).eq(0).select(value, -value)
    value = abs(x).eq(math.inf).select(Literal(math.nan, dtypes.float64), value)
    if not quadrants:  # the sine is odd
        value = (x < 0.0).select(-value, value)
    return value.cast(x.dtype) if small else value


def _window(skipped: Expr, most: int, limbs: int) -> list[Expr]:
    """`limbs` words of 32 bits of 2/pi, after the first `skipped` bits (`most` at most) of a zero word and these."""
    count = most // 32 + limbs + 1
    words: list[Expr] = [
        Literal((_TWO_OVER_PI >> (1280 - 32 * number)) & (2**32 - 1), skipped.dtype) for number in range(count)
    ]
    first = skipped >> 5
    jump = 1 << (count - limbs - 1).bit_length() - 1
    while jump:  # by halves: whether the window begins so many words later
        later = (first & jump).ne(0)
        ahead = [words[min(number + jump, len(words) - 1)] for number in range(len(words))]
        words = [later.select(after, word) for word, after in zip(words, ahead, strict=True)]
        words = words[: limbs + jump]
        jump //= 2
    shift = skipped & 31
    double_words = [(word << 32) | after for word, after in itertools.pairwise(words)]
    return [(double_word >> (32 - shift)) & (2**32 - 1) for double_word in double_words]


def _product(factors: Sequence[Expr], window: Sequence[Expr]) -> tuple[Expr, Expr]:
    """The upper 128 bits of `factors` (words of 32 bits, the lowest first) times `window` (the highest first), modulo
    2**(32 * len(window)). Every partial sum fits 64 bits."""
    words = window[::-1]
    sums: list[Expr] = [Literal(0, dtypes.uint64)] * len(words)
    for shift, factor in enumerate(factors):
        carry: Expr = Literal(0, dtypes.uint64)
        for number, word in enumerate(words[: len(words) - shift]):
            total = word * factor + sums[number + shift] + carry
            sums[number + shift], carry = total & (2**32 - 1), total >> 32
    first, second, third, fourth = [*sums[::-1], Literal(0, dtypes.uint64)][:4]
    return (first << 32) | second, (third << 32) | fourth


def _radians(fraction: Expr, below: Expr) -> tuple[Expr, Expr]:
    """(fraction + below * 2**-53) * 2**-64 quadrants, as a sum of two float64 in radians."""
    real = dtypes.float64
    first = fraction.cast(real)
    back = first.cast(dtypes.int64)  # saturates at 2**63, which `fraction` is less than by 512 at most
    edge = first.eq(2.0**63)
    rest = (fraction - back).cast(real)
    rest = edge.select(rest - 1.0, rest)
    rest = below.cast(real).fma(2.0**-53, rest)
    total = first + rest
    rest = rest - (total - first)
    scale = math.pi / 2 * 2.0**-64, 6.123233995736766e-17 * 2.0**-64
    high = total * scale[0]
    low = total.fma(scale[0], -high)
    return high, rest.fma(scale[0], total.fma(scale[1], low))


def _polynomials(high: Expr, low: Expr) -> tuple[Expr, Expr]:
    """Sine and cosine of high + low, of which abs(high) <= pi/4."""
    sine, cosine = sine_and_cosine(high)
    half = (high * high).fma(-0.5, 1.0)
    return low.fma(half, sine), (-high).fma(low, cosine)


BODIES: dict[str, Callable[..., Expr]] = {
    "sin_large": lambda x: _sine(x, 0),
    "cos_large": lambda x: _sine(x, 1),
    "mod_large": _mod,
    "floor_divide_large": _floor_divide,
}
assert set(BODIES) == set(LARGE)
