"""Transcendental functions, built once from the operations of the kernel language, so that all backends agree.

Each takes expressions of float32 or float64 and returns an expression. NaN gives NaN; an odd function keeps the sign of
zero. The largest errors, in units in the last place (ulp) of the result, as tests/unit/test_kernel_math.py checks them:

| function | float32 | float64 | ends |
|---|---|---|---|
| exp | 1.5 | 2 | 0 and inf as IEEE; results below the normal range are rounded, not flushed |
| expm1 | 3 | 4 | -1 and inf |
| log, log1p | 1.5, 2 | 2, 3 | -inf at 0 (-1), NaN below |
| tanh | 4 | 5 | -1 and 1 |
| erf | 2 | 4 | -1 and 1 |
| sin, cos | 2 | 2 | NaN at inf |
| pow | 3 | 10 | as C99: pow(x, 0) = pow(1, y) = 1, a negative base needs an integer exponent, else NaN |
| mod | exact | exact | C's fmod, plus the divisor where the signs differ; NaN by 0 and of inf |
| floor_divide | exact | exact | as PyTorch: the quotient of what `mod` leaves, a / b by 0 |

`fma` is one rounding on every backend; nothing else here may be contracted or reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import DTypeError, problem
from weft.kernels.ir.language import Expr, Function, Literal, Op
from weft.kernels.math.formats import FORMATS, FloatFormat, bits_of


def build(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """The function called `name` of `args`, all of `dtype`."""
    if dtype not in FORMATS:
        raise problem(DTypeError, name, f"a {dtype.name} argument", "float32 or float64", "cast it first")
    result = FUNCTIONS[name](*args)
    return Function(result.name, result.args, result.dtype, name, args) if isinstance(result, Op) else result


# --- building blocks -------------------------------------------------------------------------------------------------


def _polynomial(coefficients: tuple[float, ...], x: Expr) -> Expr:
    """Horner's rule, highest power first."""
    value: Expr = Literal(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        value = value.fma(x, coefficient)
    return value


def _to_bits(x: Expr) -> Op:
    """The bits of a float, as an integer."""
    return x.bitcast(FORMATS[x.dtype].whole)


def _from_bits(x: Expr, f: FloatFormat) -> Op:
    """The float with these bits."""
    return x.bitcast(f.real)


def _power_of_two(n: Expr, f: FloatFormat) -> Op:
    """2.0**n for an integer n in the range of normal exponents."""
    return _from_bits((n + f.bias) << f.mantissa, f)


def _clamp(x: Expr, low: float, high: float) -> Op:
    """x inside [low, high]; NaN stays NaN."""
    raised = (x < low).select(low, x)
    return (high < raised).select(high, raised)


def _with_sign_of(magnitude: Expr, x: Expr) -> Op:
    """A value that is not negative, with the sign of `x`."""
    f = FORMATS[x.dtype]
    return _from_bits(_to_bits(magnitude) | (_to_bits(x) & f.sign_bit), f)


def _keep_zero(x: Expr, value: Expr) -> Op:
    """`value`, but `x` itself where x is 0 or -0."""
    return x.eq(0.0).select(x, value)


# --- exponentials ----------------------------------------------------------------------------------------------------


def _split_exponent(x: Expr, f: FloatFormat) -> tuple[Op, Op]:
    """n (an integer) and r with x = n * ln2 + r and abs(r) <= ln2 / 2."""
    shifted = x.fma(math.log2(math.e), f.magic)
    rounded = shifted - f.magic
    r = rounded.fma(-f.ln2[1], rounded.fma(-f.ln2[0], x))
    return _to_bits(shifted) - f.magic_bits, r


def _exp_of_sum(x: Expr, low: Expr | None) -> Op:
    """e**(x + low). The power of two is applied in two steps, so that results below the normal range round once."""
    f = FORMATS[x.dtype]
    n, r = _split_exponent(_clamp(x, -f.exp_limit, f.exp_limit), f)
    value = _polynomial((*f.exp, 1.0, 1.0), r if low is None else r + low)
    half = n >> 1
    scaled = value * _power_of_two(half, f)
    return scaled * _power_of_two(n - half, f)


def exp(x: Expr) -> Expr:
    """e**x."""
    return _exp_of_sum(x, None)


def _expm1_inside(x: Expr) -> Op:
    """e**x - 1 for x already in the format's `expm1_range`."""
    f = FORMATS[x.dtype]
    n, r = _split_exponent(x, f)
    value = (r * r).fma(_polynomial(f.expm1, r), r)  # exp(r) - 1
    power = _power_of_two(n - 1, f)  # half of 2**n: n may be one above the largest exponent
    return power.fma(value, power - 0.5) * 2.0


def expm1(x: Expr) -> Expr:
    """e**x - 1, accurate near 0."""
    return _keep_zero(x, _expm1_inside(_clamp(x, *FORMATS[x.dtype].expm1_range)))


def tanh(x: Expr) -> Expr:
    """With t = e**(-2|x|) - 1: tanh|x| = -t / (t + 2), which neither overflows nor cancels."""
    f = FORMATS[x.dtype]
    doubled = abs(x) * -2.0
    t = _expm1_inside((doubled < f.expm1_range[0]).select(f.expm1_range[0], doubled))
    return _with_sign_of(abs(t / (t + 2.0)), x)


def logistic(x: Expr) -> Expr:
    """1 / (1 + e**-x)."""
    return 1.0 / (exp(-x) + 1.0)


def erf(x: Expr) -> Expr:
    """Two polynomials: erf(x)/x for small x, and log(erfc(x)) for large x."""
    f = FORMATS[x.dtype]
    size = abs(x)
    small = _polynomial(f.erf_small, x * x).fma(size, size)
    clipped = (f.erf_end < size).select(f.erf_end, size)
    large = 1.0 - exp(_polynomial(f.erf_large, clipped - f.erf_shift if f.erf_shift else clipped))
    return _with_sign_of((size < f.erf_split).select(small, large), x)


# --- logarithms ------------------------------------------------------------------------------------------------------


def _exponent(x: Expr, f: FloatFormat) -> Op:
    """k with 2**-k * x in [sqrt(1/2), sqrt(2))."""
    return (_to_bits(x) - bits_of(math.sqrt(0.5), f.real)) >> f.mantissa


def _scale_down(x: Expr, k: Expr, f: FloatFormat) -> Op:
    """x * 2**-k, by subtracting from the exponent of x."""
    return _from_bits(_to_bits(x) - (k << f.mantissa), f)


def _log_of(m: Expr, k: Expr, f: FloatFormat) -> Op:
    """log(1 + m) + k * log(2) for m in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    square = m * m
    tail = k * f.ln2[1]
    if f.real is dtypes.float32:
        tail = (m * square).fma(_polynomial(f.log, m), tail)
    else:
        s = m / (m + 2.0)
        z = s * s
        tail = s.fma(z.fma(_polynomial(f.log, z), square * 0.5), tail)
    return k.fma(f.ln2[0], m + square.fma(-0.5, tail))


def _log_ends(x: Expr, zero: float, value: Expr) -> Op:
    """A logarithm whose argument vanishes at x = `zero`: -inf there, NaN below, x itself at inf and NaN."""
    finite = (x < math.inf).select(value, x)
    return (x <= zero).select(x.eq(zero).select(-math.inf, Literal(math.nan, x.dtype)), finite)


def _normalize(x: Expr, f: FloatFormat) -> tuple[Op, Op]:
    """x as (1 + m, k): numbers below the normal range are scaled up first."""
    tiny = x < 2.0 ** (1 - f.bias)
    shift = f.mantissa + 2
    y = tiny.select(x * 2.0**shift, x)
    k = _exponent(y, f)
    return _scale_down(y, k, f), k - tiny.select(shift, Literal(0, f.whole))


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    f = FORMATS[x.dtype]
    m, k = _normalize(x, f)
    return _log_ends(x, 0.0, _log_of(m - 1.0, k.cast(f.real), f))


def log1p(x: Expr) -> Expr:
    """log(1 + x), accurate near 0: x and 1 are scaled down separately, so that 1 + x never rounds."""
    f = FORMATS[x.dtype]
    k = _exponent(x + 1.0, f)
    quarter = _from_bits((f.bias + 2 - k) << f.mantissa, f)  # 4 * 2**-k stays in range
    m = _scale_down(x, k, f) + quarter.fma(0.25, -1.0)
    return _keep_zero(x, _log_ends(x, -1.0, _log_of(m, k.cast(f.real), f)))


# --- circular functions ----------------------------------------------------------------------------------------------


def sine_and_cosine(r: Expr) -> tuple[Op, Op]:
    """Sine and cosine of an angle of at most pi/4, or slightly above."""
    f = FORMATS[r.dtype]
    square = r * r
    sine = (square * r).fma(_polynomial(f.sin, square), r)
    return sine, (square * square).fma(_polynomial(f.cos, square), square.fma(-0.5, 1.0))


def _circular(x: Expr, quadrants: int) -> Op:
    """sin(x + quadrants * pi/2), by the quadrant of x: the sine or cosine of what is left, with a sign. Large angles,
    which few tensors have, are left to `kernels.math.large_arguments`."""
    f = FORMATS[x.dtype]
    shifted = x.fma(2.0 / math.pi, f.magic)
    r: Expr = x
    for part in f.half_pi:
        r = (shifted - f.magic).fma(-part, r)
    sine, cosine = sine_and_cosine(r)
    quadrant = _to_bits(shifted) + quadrants
    value = (quadrant & 1).eq(0).select(sine, cosine)
    minus = (quadrant << (f.whole.itemsize * 8 - 2)) & f.sign_bit
    value = _from_bits(_to_bits(value) ^ minus, f)
    large = f.angle_limit < abs(x)
    return Op("cos_large" if quadrants else "sin_large", (large, value, x), x.dtype)


def sin(x: Expr) -> Expr:
    """The sine of an angle in radians."""
    return _keep_zero(x, _circular(x, 0))


def cos(x: Expr) -> Expr:
    """The cosine of an angle in radians."""
    return _circular(x, 1)


# --- quotients -------------------------------------------------------------------------------------------------------


def _divide(a: Expr, b: Expr) -> tuple[Op, Op, Op, Op]:
    """a / b rounded down, its rest, where both are one off, and where neither is of use: of large quotients, and by
    infinity. Below the limit a rounded quotient is at most one off, and the fused step is exact or rounds as rest +
    b."""
    ratio = a / b
    quotient = ratio.floor()
    rest = (-quotient).fma(b, a)
    off = rest.ne(0.0) & ((rest < 0.0) ^ (b < 0.0))
    limit = FORMATS[a.dtype].quotient_limit
    large = (limit <= abs(ratio)) | abs(b).eq(math.inf)
    return quotient, rest, off, large


def mod(a: Expr, b: Expr) -> Expr:
    """The remainder of a / b with the sign of b, exact: a zero has the sign of a, an infinite b leaves a, or b where
    the signs differ."""
    _, rest, off, large = _divide(a, b)
    rest = off.select(rest + b, rest)
    rest = rest.eq(0.0).select(a * 0.0, rest)
    return Op("mod_large", (large, rest, a, b), a.dtype)


def floor_divide(a: Expr, b: Expr) -> Expr:
    """The exact quotient rounded down (large ones to the nearest float), as in Python and PyTorch."""
    quotient, _, off, large = _divide(a, b)
    quotient = off.select(quotient - 1.0, quotient)
    return Op("floor_divide_large", (large, quotient, a, b), a.dtype)


# --- powers ----------------------------------------------------------------------------------------------------------


def _log_in_two_parts(x: Expr, f: FloatFormat) -> tuple[Op, Op]:
    """log(x) as an unevaluated sum, for x > 0: 2 * atanh(q) + k * log(2) with q = (m - 1) / (m + 1) in two parts."""
    m, k = _normalize(x, f)
    k = k.cast(f.real)
    below = m - 1.0
    inverse = 1.0 / (m + 1.0)
    q = inverse * below
    q_low = inverse * (-q).fma(below, q.fma(-2.0, below))
    s = q * q
    s_low = q.fma(q_low + q_low, q.fma(q, -s))
    cube = s * q
    cube_low = s.fma(q_low, s_low.fma(q, s.fma(q, -cube)))
    series = _polynomial(f.atanh, s)
    low = series.fma(cube, series.fma(cube_low, q_low))
    twice = q + q
    high = k.fma(f.ln2[0], twice)
    carried = k.fma(-f.ln2[0], high)
    low = k.fma(f.ln2[1], low.fma(2.0, twice - carried))
    total = high + low
    return total, high - total + low


def pow(x: Expr, y: Expr) -> Expr:
    """x**y. Exponents 0, 1, 2, 3, 0.5 and -1 given as literals become 1, products, a root, a quotient."""
    if isinstance(y, Literal) and y.value in _SIMPLE_POWERS:
        return _SIMPLE_POWERS[float(y.value)](x)
    if isinstance(y, Literal) and math.isinf(y.value):
        return _infinite_power(x, y.value > 0)
    f = FORMATS[x.dtype]
    size = abs(x)
    high, low = _log_in_two_parts(size, f)
    product = high * y
    rest = low.fma(y, high.fma(y, -product))
    inside = abs(product) < f.exp_limit
    value = _exp_of_sum(product, inside.select(rest, 0.0))
    # |x| at an end of the range, or y infinite: the result is 0 or inf.
    x_ends = size.eq(0.0) | size.eq(math.inf)
    y_ends = abs(y).eq(math.inf)
    grows = (1.0 < size) ^ (y < 0.0)
    value = (x_ends | y_ends).select(grows.select(Literal(math.inf, f.real), 0.0), value)
    # A negative base (or -0): the sign of an odd power, NaN where the exponent is no integer.
    halved = y * 0.5
    whole = y.floor().eq(y)
    odd = whole & halved.floor().ne(halved) & (abs(y) < math.inf)
    negative = _to_bits(x) < 0
    value = (negative & odd).select(-value, value)
    undefined = (x < 0.0) & ~whole & (size < math.inf)
    value = undefined.select(Literal(math.nan, f.real), value)
    is_nan = x.ne(x) | y.ne(y)
    value = is_nan.select(x + y, value)
    minus_one = x.eq(-1.0) & y_ends
    one = x.eq(1.0) | y.eq(0.0) | minus_one
    return one.select(1.0, value)


def _infinite_power(x: Expr, positive: bool) -> Expr:
    """x to the power of plus or minus infinity: 0, 1 or infinity by the size of x."""
    size = abs(x)
    large, small = (math.inf, 0.0) if positive else (0.0, math.inf)
    value = (size < 1.0).select(Literal(small, x.dtype), 1.0)
    value = (1.0 < size).select(Literal(large, x.dtype), value)
    return x.ne(x).select(x, value)


_SIMPLE_POWERS: dict[float, Callable[[Expr], Expr]] = {
    -1.0: lambda x: 1.0 / x,
    0.0: lambda x: Literal(1.0, x.dtype),
    0.5: lambda x: x.sqrt(),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}

FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": exp,
    "exp_rounded": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "logistic": logistic,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "erf": erf,
    "pow": pow,
    "mod": mod,
    "floor_divide": floor_divide,
}
