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

`fma` is one rounding on every backend; nothing else here may be contracted or reordered. `random_bits` are random bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from weft import dtypes
from weft.dtypes import DType
from weft.errors import DTypeError, problem
from weft.kernels import index as ix
from weft.kernels.language import Expr, Function, IndexValue, Literal, Op


def build(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """The function called `name` of `args`, all of `dtype`."""
    if dtype not in _FORMATS:
        raise problem(DTypeError, name, f"a {dtype.name} argument", "float32 or float64", "cast it first")
    made = FUNCTIONS[name](*args)
    return Function(made.name, made.args, made.dtype, name, args) if isinstance(made, Op) else made


# --- how a float is made ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Format:
    """Layout and constants of one float dtype. `magic` rounds to an integer when added: 1.5 * 2**mantissa."""

    real: DType
    whole: DType
    mantissa: int
    bias: int
    magic_bits: int
    sign_bit: int
    ln2: tuple[float, float]
    half_pi: tuple[float, float, float]
    angle_limit: float  # up to which `half_pi` is precise enough
    quotient_limit: float  # below which a rounded quotient is less than 1 off
    exp_limit: float  # beyond it exp is 0 or inf; both powers of two that scale the result stay in range
    expm1_range: tuple[float, float]
    exp: tuple[float, ...]  # (exp(r) - 1 - r) / r**2 for abs(r) < 0.35
    expm1: tuple[float, ...]  # the same, weighted for a small relative error of exp(r) - 1
    log: tuple[float, ...]
    atanh: tuple[float, ...]  # (atanh(s) - s) / s**3 in s**2, for pow
    sin: tuple[float, ...]  # (sin(r) - r) / r**3 in r**2 for abs(r) <= 0.8
    cos: tuple[float, ...]  # (cos(r) - 1 + r**2 / 2) / r**4 in r**2
    erf_small: tuple[float, ...]  # erf(x)/x - 1 in x**2
    erf_large: tuple[float, ...]  # log(erfc(x)) in x - erf_shift
    erf_split: float
    erf_shift: float
    erf_end: float

    @property
    def magic(self) -> float:
        return 1.5 * 2.0**self.mantissa


def _bits(value: float, dtype: DType) -> int:
    return int(struct.unpack("<i" if dtype is dtypes.float32 else "<q", _pack(value, dtype))[0])


def _pack(value: float, dtype: DType) -> bytes:
    return struct.pack("<f" if dtype is dtypes.float32 else "<d", value)


_FORMATS = {
    dtypes.float32: _Format(
        real=dtypes.float32,
        whole=dtypes.int32,
        mantissa=23,
        bias=127,
        magic_bits=_bits(1.5 * 2.0**23, dtypes.float32),
        sign_bit=-(2**31),
        ln2=(0.6931471824645996, -1.9046542121259336e-09),
        half_pi=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
        angle_limit=1e5,
        quotient_limit=2.0**22,
        exp_limit=150.0,
        expm1_range=(-20.0, 88.8),
        exp=(0.0013951819, 0.008369599, 0.041666187, 0.16666512, 0.5),
        expm1=(0.00019915654, 0.0013942047, 0.00833327, 0.041666344, 0.16666667, 0.5),
        log=(
            0.069154054, -0.11789809, 0.118729606, -0.12384348, 0.14218661, -0.16669251, 0.20002227, -0.24999987,
            0.3333331,
        ),
        atanh=(0.11791066, 0.14268655, 0.20000167, 0.3333333),
        sin=(-0.00019505239, 0.00833209, -0.16666654),
        cos=(2.4424933e-05, -0.0013887252, 0.041666646),
        erf_small=(8.3451974e-05, -0.0008137431, 0.005200634, -0.02685927, 0.11283694, -0.37612635, 0.12837917),
        erf_large=(
            -2.1162428e-05, 0.0004352243, -0.004174667, 0.025128681, -0.108294025, -0.6333346, -1.1295209,
            0.00017588028,
        ),
        erf_split=0.925,
        erf_shift=0.0,
        erf_end=4.0,
    ),
    dtypes.float64: _Format(
        real=dtypes.float64,
        whole=dtypes.int64,
        mantissa=52,
        bias=1023,
        magic_bits=_bits(1.5 * 2.0**52, dtypes.float64),
        sign_bit=-(2**63),
        ln2=(0.6931471805599453, 2.3190468138462996e-17),
        half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
        angle_limit=1e9,
        quotient_limit=2.0**51,
        exp_limit=1000.0,
        expm1_range=(-45.0, 709.8),
        exp=(
            2.5119202887247054e-08, 2.763275339859911e-07, 2.7557212051874097e-06, 2.4801486027720927e-05,
            0.00019841269922150554, 0.0013888888950554827, 0.008333333333305, 0.041666666666503024,
            0.16666666666666702, 0.5000000000000014,
        ),
        expm1=(
            2.0925427445416795e-09, 2.5110178924718946e-08, 2.7557239555259236e-07, 2.755724116402536e-06,
            2.4801587364330254e-05, 0.00019841269888892866, 0.0013888888888864913, 0.008333333333320654,
            0.041666666666666706, 0.16666666666666677, 0.5,
        ),
        log=(
            0.13251168143544645, 0.13250135756858736, 0.15387089978872454, 0.18181775683268303, 0.222222226465751,
            0.2857142856908736, 0.4000000000000624, 0.6666666666666666,
        ),
        atanh=(
            0.055257338912245005, 0.05208554457105544, 0.05884524766193556, 0.06666613437861883, 0.07692308525456432,
            0.09090909082587402, 0.11111111111162462, 0.14285714285714105, 0.2, 0.3333333333333333,
        ),
        sin=(
            1.5890770291493316e-10, -2.5050655792262466e-08, 2.7557313050788292e-06, -0.00019841269828002413,
            0.008333333333320222, -0.16666666666666624,
        ),
        cos=(
            -1.1355521547097425e-11, 2.08756449355376e-09, -2.755731378773466e-07, 2.480158728757547e-05,
            -0.001388888888887116, 0.04166666666666658,
        ),
        erf_small=(
            -4.233124650461926e-12, 8.710461937312833e-11, -1.21649675634089e-09, 1.4792469453107219e-08,
            -1.636464952888257e-07, 1.6462045978746048e-06, -1.4925647594397373e-05, 0.00012055332903808763,
            -0.0008548327021955926, 0.005223977625423609, -0.026866170645129868, 0.1128379167095512,
            -0.37612638903183754, 0.1283791670955126,
        ),
        erf_large=(
            5.472521850112677e-15, 2.7018542909400737e-14, -7.870650057252259e-14, -5.622219319592156e-13,
            -6.861434878828996e-13, 7.629673858473253e-12, 7.521942009543411e-13, 9.986506508675787e-12,
            -9.473829069886617e-11, -7.668977945178109e-10, 9.75359007677685e-09, -8.052373753623023e-08,
            5.853103849130134e-07, -3.890042374694577e-06, 2.4386414187396908e-05, -0.0001472973021216771,
            0.0008736875680998588, -0.005225658319050314, -0.9667530548645217, -7.266099588398788, -14.112437402150139,
        ),
        erf_split=1.0,
        erf_shift=3.5,
        erf_end=6.0,
    ),
}  # fmt: skip

# --- small words -----------------------------------------------------------------------------------------------------

Operand = Expr | float | int


def _op(name: str, *operands: Operand) -> Op:
    """`name` of operands of one dtype; plain numbers take the dtype of the first expression."""
    dtype = next(operand.dtype for operand in operands if not isinstance(operand, int | float))
    args = tuple(Literal(operand, dtype) if isinstance(operand, int | float) else operand for operand in operands)
    return Op(name, args, dtypes.bool_ if name in ("lt", "le", "eq", "ne") else dtype)


def _select(condition: Expr, a: Operand, b: Operand) -> Op:
    dtype = next(operand.dtype for operand in (a, b) if not isinstance(operand, int | float))
    args = tuple(Literal(operand, dtype) if isinstance(operand, int | float) else operand for operand in (a, b))
    return Op("select", (condition, *args), dtype)


def _fma(a: Operand, b: Operand, c: Operand) -> Op:
    return _op("fma", a, b, c)


def _both(a: Expr, b: Expr) -> Op:
    return Op("and", (a, b), dtypes.bool_)


def _either(a: Expr, b: Expr) -> Op:
    return Op("or", (a, b), dtypes.bool_)


def _polynomial(coefficients: tuple[float, ...], x: Expr) -> Expr:
    """Horner's rule, highest power first."""
    value: Operand = coefficients[0]
    for coefficient in coefficients[1:]:
        value = _fma(value, x, coefficient)
    assert not isinstance(value, int | float)
    return value


def _as_whole(x: Expr) -> Op:
    return Op("bitcast", (x,), _FORMATS[x.dtype].whole)


def _as_real(x: Expr, f: _Format) -> Op:
    return Op("bitcast", (x,), f.real)


def _power_of_two(n: Expr, f: _Format) -> Op:
    """2.0**n for an integer n in the range of normal exponents."""
    return _as_real(_op("shl", _op("add", n, f.bias), f.mantissa), f)


def _clamp(x: Expr, low: float, high: float) -> Op:
    """x inside [low, high]; NaN stays NaN."""
    raised = _select(_op("lt", x, low), low, x)
    return _select(_op("lt", high, raised), high, raised)


def _with_sign_of(magnitude: Expr, x: Expr) -> Op:
    """A value that is not negative, with the sign of `x`."""
    f = _FORMATS[x.dtype]
    return _as_real(_op("or", _as_whole(magnitude), _op("and", _as_whole(x), f.sign_bit)), f)


def _keep_zero(x: Expr, value: Expr) -> Op:
    """`value`, but `x` itself where x is 0 or -0."""
    return _select(_op("eq", x, 0.0), x, value)


# --- exponentials ----------------------------------------------------------------------------------------------------


def _split_exponent(x: Expr, f: _Format) -> tuple[Op, Op]:
    """n (an integer) and r with x = n * ln2 + r and abs(r) <= ln2 / 2."""
    shifted = _fma(x, math.log2(math.e), f.magic)
    rounded = _op("sub", shifted, f.magic)
    r = _fma(rounded, -f.ln2[1], _fma(rounded, -f.ln2[0], x))
    return _op("sub", _as_whole(shifted), f.magic_bits), r


def _exp_of_sum(x: Expr, low: Expr | None) -> Op:
    """e**(x + low). The power of two is applied in two steps, so that results below the normal range round once."""
    f = _FORMATS[x.dtype]
    n, r = _split_exponent(_clamp(x, -f.exp_limit, f.exp_limit), f)
    value = _polynomial((*f.exp, 1.0, 1.0), r if low is None else _op("add", r, low))
    half = _op("shr", n, 1)
    scaled = _op("mul", value, _power_of_two(half, f))
    return _op("mul", scaled, _power_of_two(_op("sub", n, half), f))


def exp(x: Expr) -> Expr:
    """e**x."""
    return _exp_of_sum(x, None)


def _expm1_inside(x: Expr) -> Op:
    """e**x - 1 for x already in the format's `expm1_range`."""
    f = _FORMATS[x.dtype]
    n, r = _split_exponent(x, f)
    value = _fma(_op("mul", r, r), _polynomial(f.expm1, r), r)  # exp(r) - 1
    power = _power_of_two(_op("sub", n, 1), f)  # half of 2**n: n may be one above the largest exponent
    return _op("mul", _fma(power, value, _op("sub", power, 0.5)), 2.0)


def expm1(x: Expr) -> Expr:
    """e**x - 1, accurate near 0."""
    return _keep_zero(x, _expm1_inside(_clamp(x, *_FORMATS[x.dtype].expm1_range)))


def tanh(x: Expr) -> Expr:
    """With t = e**(-2|x|) - 1: tanh|x| = -t / (t + 2), which neither overflows nor cancels."""
    f = _FORMATS[x.dtype]
    doubled = _op("mul", _op("abs", x), -2.0)
    t = _expm1_inside(_select(_op("lt", doubled, f.expm1_range[0]), f.expm1_range[0], doubled))
    return _with_sign_of(_op("abs", _op("div", t, _op("add", t, 2.0))), x)


def logistic(x: Expr) -> Expr:
    """1 / (1 + e**-x)."""
    return _op("div", 1.0, _op("add", exp(_op("neg", x)), 1.0))


def erf(x: Expr) -> Expr:
    """Two polynomials: erf(x)/x near 0, and log(erfc(x)) further out."""
    f = _FORMATS[x.dtype]
    size = _op("abs", x)
    near = _fma(_polynomial(f.erf_small, _op("mul", x, x)), size, size)
    clipped = _select(_op("lt", f.erf_end, size), f.erf_end, size)
    far = _op("sub", 1.0, exp(_polynomial(f.erf_large, _op("sub", clipped, f.erf_shift) if f.erf_shift else clipped)))
    return _with_sign_of(_select(_op("lt", size, f.erf_split), near, far), x)


# --- logarithms ------------------------------------------------------------------------------------------------------


def _exponent(x: Expr, f: _Format) -> Op:
    """k with 2**-k * x in [sqrt(1/2), sqrt(2))."""
    return _op("shr", _op("sub", _as_whole(x), _bits(math.sqrt(0.5), f.real)), f.mantissa)


def _scaled_down(x: Expr, k: Expr, f: _Format) -> Op:
    """x * 2**-k, by subtracting from the exponent of x."""
    return _as_real(_op("sub", _as_whole(x), _op("shl", k, f.mantissa)), f)


def _log_of(m: Expr, k: Expr, f: _Format) -> Op:
    """log(1 + m) + k * log(2) for m in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    square = _op("mul", m, m)
    tail = _op("mul", k, f.ln2[1])
    if f.real is dtypes.float32:
        tail = _fma(_op("mul", m, square), _polynomial(f.log, m), tail)
    else:
        s = _op("div", m, _op("add", m, 2.0))
        z = _op("mul", s, s)
        tail = _fma(s, _fma(z, _polynomial(f.log, z), _op("mul", square, 0.5)), tail)
    return _fma(k, f.ln2[0], _op("add", m, _fma(square, -0.5, tail)))


def _log_ends(x: Expr, zero: float, value: Expr) -> Op:
    """A logarithm whose argument vanishes at x = `zero`: -inf there, NaN below, x itself at inf and NaN."""
    finite = _select(_op("lt", x, math.inf), value, x)
    return _select(_op("le", x, zero), _select(_op("eq", x, zero), -math.inf, Literal(math.nan, x.dtype)), finite)


def _normalised(x: Expr, f: _Format) -> tuple[Op, Op]:
    """x as (1 + m, k): numbers below the normal range are scaled up first."""
    tiny = _op("lt", x, 2.0 ** (1 - f.bias))
    shift = f.mantissa + 2
    y = _select(tiny, _op("mul", x, 2.0**shift), x)
    k = _exponent(y, f)
    return _scaled_down(y, k, f), _op("sub", k, _select(tiny, shift, Literal(0, f.whole)))


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    f = _FORMATS[x.dtype]
    m, k = _normalised(x, f)
    return _log_ends(x, 0.0, _log_of(_op("sub", m, 1.0), Op("cast", (k,), f.real), f))


def log1p(x: Expr) -> Expr:
    """log(1 + x), accurate near 0: x and 1 are scaled down separately, so that 1 + x never rounds."""
    f = _FORMATS[x.dtype]
    k = _exponent(_op("add", x, 1.0), f)
    quarter = _as_real(_op("shl", _op("sub", f.bias + 2, k), f.mantissa), f)  # 4 * 2**-k stays in range
    m = _op("add", _scaled_down(x, k, f), _fma(quarter, 0.25, -1.0))
    return _keep_zero(x, _log_ends(x, -1.0, _log_of(m, Op("cast", (k,), f.real), f)))


# --- circular functions ----------------------------------------------------------------------------------------------


def sine_and_cosine(r: Expr) -> tuple[Op, Op]:
    """Of an angle of at most pi/4 and a bit."""
    f = _FORMATS[r.dtype]
    square = _op("mul", r, r)
    sine = _fma(_op("mul", square, r), _polynomial(f.sin, square), r)
    return sine, _fma(_op("mul", square, square), _polynomial(f.cos, square), _fma(square, -0.5, 1.0))


def _circular(x: Expr, quadrants: int) -> Op:
    """sin(x + quadrants * pi/2), by the quadrant of x: the sine or cosine of what is left, with a sign. Large angles,
    which few tensors have, are left to `kernels.large`."""
    f = _FORMATS[x.dtype]
    shifted = _fma(x, 2.0 / math.pi, f.magic)
    r: Expr = x
    for part in f.half_pi:
        r = _fma(_op("sub", shifted, f.magic), -part, r)
    sine, cosine = sine_and_cosine(r)
    quadrant = _op("add", _as_whole(shifted), quadrants)
    value = _select(_op("eq", _op("and", quadrant, 1), 0), sine, cosine)
    minus = _op("and", _op("shl", quadrant, f.whole.itemsize * 8 - 2), f.sign_bit)
    value = _as_real(_op("xor", _as_whole(value), minus), f)
    large = _op("lt", f.angle_limit, _op("abs", x))
    return Op("cos_large" if quadrants else "sin_large", (large, value, x), x.dtype)


def sin(x: Expr) -> Expr:
    """The sine of an angle in radians."""
    return _keep_zero(x, _circular(x, 0))


def cos(x: Expr) -> Expr:
    """The cosine of an angle in radians."""
    return _circular(x, 1)


# --- quotients -------------------------------------------------------------------------------------------------------


def _divided(a: Expr, b: Expr) -> tuple[Op, Op, Op, Op]:
    """a / b rounded down, its rest, where both are one off, and where neither is of use: of large quotients, and by
    infinity. Below the limit a rounded quotient is at most one off, and the fused step is exact or rounds as rest +
    b."""
    ratio = _op("div", a, b)
    quotient = _op("floor", ratio)
    rest = _fma(_op("neg", quotient), b, a)
    off = _both(_op("ne", rest, 0.0), Op("xor", (_op("lt", rest, 0.0), _op("lt", b, 0.0)), dtypes.bool_))
    limit = _FORMATS[a.dtype].quotient_limit
    large = _either(_op("le", limit, _op("abs", ratio)), _op("eq", _op("abs", b), math.inf))
    return quotient, rest, off, large


def mod(a: Expr, b: Expr) -> Expr:
    """The remainder of a / b with the sign of b, exact: a zero has the sign of a, an infinite b leaves a, or b where
    the signs differ."""
    _, rest, off, large = _divided(a, b)
    rest = _select(off, _op("add", rest, b), rest)
    rest = _select(_op("eq", rest, 0.0), _op("mul", a, 0.0), rest)
    return Op("mod_large", (large, rest, a, b), a.dtype)


def floor_divide(a: Expr, b: Expr) -> Expr:
    """The exact quotient rounded down (large ones to the nearest float), as in Python and PyTorch."""
    quotient, _, off, large = _divided(a, b)
    quotient = _select(off, _op("sub", quotient, 1.0), quotient)
    return Op("floor_divide_large", (large, quotient, a, b), a.dtype)


# --- powers ----------------------------------------------------------------------------------------------------------


def _log_in_two(x: Expr, f: _Format) -> tuple[Op, Op]:
    """log(x) as an unevaluated sum, for x > 0: 2 * atanh(q) + k * log(2) with q = (m - 1) / (m + 1) in two parts."""
    m, k = _normalised(x, f)
    k = Op("cast", (k,), f.real)
    below = _op("sub", m, 1.0)
    inverse = _op("div", 1.0, _op("add", m, 1.0))
    q = _op("mul", inverse, below)
    q_low = _op("mul", inverse, _fma(_op("neg", q), below, _fma(q, -2.0, below)))
    s = _op("mul", q, q)
    s_low = _fma(q, _op("add", q_low, q_low), _fma(q, q, _op("neg", s)))
    cube = _op("mul", s, q)
    cube_low = _fma(s, q_low, _fma(s_low, q, _fma(s, q, _op("neg", cube))))
    series = _polynomial(f.atanh, s)
    low = _fma(series, cube, _fma(series, cube_low, q_low))
    twice = _op("add", q, q)
    high = _fma(k, f.ln2[0], twice)
    carried = _fma(k, -f.ln2[0], high)
    low = _fma(k, f.ln2[1], _fma(low, 2.0, _op("sub", twice, carried)))
    total = _op("add", high, low)
    return total, _op("add", _op("sub", high, total), low)


def pow(x: Expr, y: Expr) -> Expr:
    """x**y. Exponents 0, 1, 2, 3, 0.5 and -1 given as literals become 1, products, a root, a quotient."""
    if isinstance(y, Literal) and y.value in _SIMPLE_POWERS:
        return _SIMPLE_POWERS[float(y.value)](x)
    if isinstance(y, Literal) and math.isinf(y.value):
        return _endless_power(x, y.value > 0)
    f = _FORMATS[x.dtype]
    size = _op("abs", x)
    high, low = _log_in_two(size, f)
    product = _op("mul", high, y)
    rest = _fma(low, y, _fma(high, y, _op("neg", product)))
    inside = _op("lt", _op("abs", product), f.exp_limit)
    value = _exp_of_sum(product, _select(inside, rest, 0.0))
    # |x| at an end of the range, or y infinite: the result is 0 or inf.
    x_ends = _either(_op("eq", size, 0.0), _op("eq", size, math.inf))
    y_ends = _op("eq", _op("abs", y), math.inf)
    grows = Op("xor", (_op("lt", 1.0, size), _op("lt", y, 0.0)), dtypes.bool_)
    value = _select(_either(x_ends, y_ends), _select(grows, Literal(math.inf, f.real), 0.0), value)
    # A negative base (or -0): the sign of an odd power, NaN where the exponent is no integer.
    halved = _op("mul", y, 0.5)
    whole = _op("eq", _op("floor", y), y)
    odd = _both(_both(whole, _op("ne", _op("floor", halved), halved)), _op("lt", _op("abs", y), math.inf))
    negative = _op("lt", _as_whole(x), 0)
    value = _select(_both(negative, odd), _op("neg", value), value)
    broken = _both(_both(_op("lt", x, 0.0), Op("not", (whole,), dtypes.bool_)), _op("lt", size, math.inf))
    value = _select(broken, Literal(math.nan, f.real), value)
    unknown = _either(_op("ne", x, x), _op("ne", y, y))
    value = _select(unknown, _op("add", x, y), value)
    minus_one = _both(_op("eq", x, -1.0), y_ends)
    one = _either(_either(_op("eq", x, 1.0), _op("eq", y, 0.0)), minus_one)
    return _select(one, 1.0, value)


def _endless_power(x: Expr, positive: bool) -> Expr:
    """x to the power of plus or minus infinity: 0, 1 or infinity by the size of x."""
    size = _op("abs", x)
    large, small = (math.inf, 0.0) if positive else (0.0, math.inf)
    value = _select(_op("lt", size, 1.0), Literal(small, x.dtype), 1.0)
    value = _select(_op("lt", 1.0, size), Literal(large, x.dtype), value)
    return _select(_op("ne", x, x), x, value)


_SIMPLE_POWERS: dict[float, Callable[[Expr], Expr]] = {
    -1.0: lambda x: _op("div", 1.0, x),
    0.0: lambda x: Literal(1.0, x.dtype),
    0.5: lambda x: _op("sqrt", x),
    1.0: lambda x: x,
    2.0: lambda x: _op("mul", x, x),
    3.0: lambda x: _op("mul", _op("mul", x, x), x),
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

# --- random bits -----------------------------------------------------------------------------------------------------

PHILOX_FACTOR, PHILOX_KEY_STEP, PHILOX_ROUNDS = 0xD256D193, 0x9E3779B9, 10


def served(width: int) -> int:
    """Neighbours that share a counter where each needs `width` random bits, 16 or 32."""
    return 4 if width == 16 else 1


def random_bits(key: Expr, count: Expr, position: ix.Index, width: int, wide: bool) -> Expr:
    """16 or 32 (`width`) random bits, as uint32, for the element at `position`; `wide` where counters pass 2^32.

    32 bits are word 0 of the counter (position, count). Of 16, both words of one counter serve four neighbours: lanes
    that are written out, and vectors on a CPU, share the work.
    """
    counter = ix.floordiv(position, served(width))
    if wide:
        high = IndexValue(ix.floordiv(counter, 2**32), dtypes.uint32)
        key = _op("add", key, _op("mul", high, PHILOX_KEY_STEP))
    first, second = philox(key, IndexValue(counter, dtypes.uint32), count)
    if width == 32:
        return first
    part = ix.remainder(position, served(width))
    word = _select(_op("lt", IndexValue(part, dtypes.uint32), 2), first, second)
    shift = IndexValue(ix.scale(ix.remainder(part, 2), 16), dtypes.uint32)
    return _op("and", _op("shr", word, shift), 0xFFFF)


def philox(key: Expr, c0: Expr, c1: Expr) -> tuple[Expr, Expr]:
    """Both words of Philox2x32-10 with `key` and counter (c0, c1), all uint32."""
    for round_ in range(PHILOX_ROUNDS):
        high, low = _op("mulhi", c0, PHILOX_FACTOR), _op("mul", c0, PHILOX_FACTOR)
        bumped = _op("add", key, round_ * PHILOX_KEY_STEP % 2**32) if round_ else key
        c0, c1 = _op("xor", _op("xor", high, bumped), c1), low
    return c0, c1
