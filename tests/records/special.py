"""Records of special functions, inverse trigonometric and hyperbolic functions, and what floats are made of."""

import math
import warnings

import weft
from tests.records.elementwise import SPECIAL, pairs, shapes
from tests.records.oracle import TF, torch
from tests.records.record import ALL, FLOATS, INTEGERS, NARROW, NUMBERS, TOLERANCE, Record, T, sample

NAN, INF = math.nan, math.inf
TINY = [1e-30, -1e-30, 1e-10, 1e-5, -1e-3]
# Two numbers that meet at every edge: zeros of both signs, infinities, NaN.
EDGES = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN]
MEETINGS = sample(T(values=[a for a in EDGES for _ in EDGES]), T(values=[b for _ in EDGES for b in EDGES]))
# torch's trigamma is a series cut early.
ROUGH = {**TOLERANCE, "float64": (1e-8, 1e-12)}
REFUSES_NUMBERS = "given a float; expected tensors only"


def values(*numbers, grad=True):
    return sample(T(values=list(numbers), grad=grad))


def unary(name, low=-2.0, high=2.0, extra=(), place="", **options):
    ours, theirs = (getattr(weft, place), getattr(torch, place)) if place else (weft, torch)
    called = f"{place}.{name}" if place else name
    return Record(called, getattr(ours, name), getattr(theirs, name), [*shapes(low, high)[:2], *extra], **options)


def special(name, *args, **options):
    return unary(name, *args, place="special", without=NARROW, **options)  # torch has no kernels for 16-bit floats


def of_tensors(name, *args, extra=(), dtypes=FLOATS, place="", errors=(), **options):
    """Two tensors; a number is refused, as in torch."""
    ours, theirs = (getattr(weft, place), getattr(torch, place)) if place else (weft, torch)
    errors = [(lambda: getattr(ours, name)(weft.ones(2), 2.0), weft.DTypeError, f"{name}: {REFUSES_NUMBERS}"), *errors]
    samples = [*pairs(*args)[1:3], *extra]
    return Record(name, getattr(ours, name), getattr(theirs, name), samples, dtypes, errors=errors, **options)


ON_INTEGERS = [
    Record(
        f"{name} of integers", getattr(weft, name), getattr(torch, name), [sample(T((7,), 1, 3))], (*INTEGERS, "bool")
    )
    for name in ["asin", "atan", "sinh", "asinh", "erfc", "lgamma", "digamma", "exp2", "sinc", "deg2rad", "logit", "i0"]
]


def _quietly(function, *args):
    """A call of which PyTorch says that it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


RECORDS = [
    unary("asin", -0.95, 0.95, [values(*TINY, 0.999999, -0.999999), values(1.5, -1.0, 1.0, NAN, -0.0, grad=False)]),
    unary("acos", -0.95, 0.95, [values(*TINY, 0.999999, -0.999999), values(1.5, -1.0, 1.0, NAN, grad=False)]),
    unary("atan", -3.0, 3.0, [values(*TINY, 1e10, -1e30), values(*SPECIAL)]),
    unary("sinh", extra=[values(*TINY, 20.0, -30.0, 88.9), values(*SPECIAL)]),
    unary("cosh", extra=[values(*TINY, 20.0, -30.0, 88.9), values(*SPECIAL)]),
    unary("asinh", extra=[values(*TINY, 1e10, -1e18), values(*SPECIAL)]),
    unary("acosh", 1.1, 4.0, [values(1.0 + 1e-6, 1e18), values(1.0, 0.5, INF, NAN, grad=False)]),
    unary("atanh", -0.95, 0.95, [values(*TINY, 0.999999), values(1.0, -1.0, 2.0, NAN, -0.0, grad=False)]),
    of_tensors("atan2", extra=[MEETINGS]),
    of_tensors("hypot", 0.5, 2.0, extra=[sample(T(values=[3e30, 1e-30, INF, NAN]), T(values=[4e30, 0.0, NAN, 1.0]))]),
    unary("sinc", extra=[values(0.0, 1.0, -3.0, 2.5, 0.3)]),
    unary("deg2rad", -180.0, 180.0),
    unary("rad2deg", -4.0, 4.0),
    unary(
        "logit",
        0.05,
        0.95,
        [values(0.0, 1.0, 2.0, -1.0, NAN), values(1e-20, 0.5), sample(T((5,), -1.0, 2.0), 0.1)],
        without=NARROW,
    ),  # torch rounds on the way
    of_tensors("logaddexp", extra=[sample(T(values=[1e30, INF, -INF, NAN]), T(values=[-1e30, 1.0, 2.0, 0.0]))]),
    of_tensors("logaddexp2", extra=[sample(T(values=[1e30, INF, -INF, NAN]), T(values=[-1e30, 1.0, 2.0, 0.0]))]),
    Record(
        "xlogy",
        weft.xlogy,
        torch.xlogy,
        [*pairs(0.5, 2.0)[1:3], MEETINGS, sample(2.0, T((3,), 0.5)), sample(0, T((3,)))],
    ),
    Record("special.xlog1py", weft.special.xlog1py, torch.special.xlog1py, [*pairs(0.5, 2.0)[1:3], MEETINGS]),
    special("entr", 0.1, 3.0, [values(0.0, -1.0, 1.0, NAN, grad=False)]),
    unary("erfinv", -0.95, 0.95, [values(*TINY, 0.999999, -0.9999), values(1.0, -1.0, 2.0, NAN, -0.0, grad=False)]),
    unary("erfc", -3.0, 5.0, [values(8.5, 9.3, 0.5, -6.0, 1e30), values(*SPECIAL)]),
    special("erfcx", -3.0, 5.0, [values(25.0, 1e10, -5.0), values(*SPECIAL[:-3], INF, NAN)]),
    special("ndtr", -4.0, 4.0, [values(-8.0, 6.0, INF, -INF, NAN)]),
    special("ndtri", 0.05, 0.95, [values(1e-30, 1e-5, 0.999), values(0.0, 1.0, 2.0, -1.0, NAN, grad=False)]),
    special("log_ndtr", -6.0, 4.0, [values(-9.0, 5.0), values(INF, -INF, NAN, grad=False)]),
    unary("lgamma", 0.1, 12.0, [values(1e-20, 0.9999, 1.0, 1.0001, 1.9999, 2.0001, 7.9, 8.1, 1e10, -0.5, -2.3, -20.7)]),
    Record("lgamma at poles", weft.lgamma, torch.lgamma, [values(0.0, -0.0, -1.0, -7.0, INF, -INF, NAN, grad=False)]),
    unary("digamma", 0.1, 12.0, [values(1e-20, 0.5, 7.9, 8.1, 1e10, -0.5, -2.3, -9.7)], tolerance=ROUGH),
    Record("digamma at poles", weft.digamma, torch.digamma, [values(0.0, -0.0, -1.0, INF, -INF, NAN, grad=False)]),
    Record(
        "polygamma",
        weft.polygamma,
        torch.polygamma,
        [sample(n, T((5,), 0.2, 9.0)) for n in (0, 1, 2, 4)],
        tolerance=ROUGH,
        errors=[(lambda: weft.polygamma(-1, weft.ones(1)), weft.RangeError, "polygamma: given n=-1")],
    ),
    Record(
        "mvlgamma",
        weft.mvlgamma,
        torch.mvlgamma,
        [sample(T((5,), 3.0, 9.0), 1), sample(T((2, 3), 3.0, 9.0), 4)],
        errors=[(lambda: weft.mvlgamma(weft.ones(1), 0), weft.RangeError, "mvlgamma: given p=0")],
    ),
    unary("i0", -6.0, 6.0, [values(8.0, -20.0, 60.0, 0.0)]),
    special("i0e", -6.0, 6.0, [values(8.0, -20.0, 1e5, 0.0)]),
    special("i1", -6.0, 6.0, [values(8.0, -20.0, 60.0, 0.0, 1e-20)]),
    special("i1e", -6.0, 6.0, [values(8.0, -20.0, 1e5, 0.0, 1e-20)]),
    *ON_INTEGERS,
    unary("signbit", dtypes=ALL, extra=[values(*SPECIAL[:-1])], differentiable=False),
    unary("sgn", dtypes=ALL, extra=[values(*SPECIAL)], differentiable=False),
    unary("isposinf", dtypes=ALL, extra=[values(*SPECIAL)], differentiable=False),
    unary("isneginf", dtypes=ALL, extra=[values(*SPECIAL)], differentiable=False),
    unary("isreal", dtypes=ALL, differentiable=False),
    unary("positive", dtypes=NUMBERS, errors=[(lambda: weft.positive(weft.tensor(True)), weft.DTypeError, "positive")]),
    unary("frac", extra=[values(1.5, -1.5, 3.0)]),
    Record(
        "nan_to_num",
        weft.nan_to_num,
        torch.nan_to_num,
        [values(*SPECIAL), sample(T(values=SPECIAL), nan=2.0, posinf=3.0, neginf=-4.0), sample(T((3,)))],
        ALL,
    ),
    Record("copysign", weft.copysign, torch.copysign, [*pairs(), sample(T((7,)), T(values=EDGES))], ALL),
    Record(
        "heaviside",
        weft.heaviside,
        torch.heaviside,
        [*pairs()[:4], sample(T(values=EDGES), T((1,)))],
        ALL,
        differentiable=False,
        errors=[
            (
                lambda: weft.heaviside(weft.ones(1), weft.ones(1, dtype=weft.int64)),
                weft.DTypeError,
                "heaviside: given float32 and int64",
            )
        ],
    ),
    Record("float_power", weft.float_power, torch.float_power, [*pairs(0.5, 2.0), sample(T((3,), 1, 2), 2)], NUMBERS),
    of_tensors("ldexp", extra=[sample(T((3,)), T((3,), 0, 9, dtype="int32"))]),
    Record("frexp", weft.frexp, torch.frexp, [*shapes(-50.0, 50.0)[:4], values(0.0, -0.0, 1e-38, 3e38, 1.0, -0.5)]),
    Record("frexp of no number", weft.frexp, torch.frexp, [values(INF, -INF, NAN, grad=False)], differentiable=False),
    of_tensors(
        "nextafter",
        extra=[
            sample(T(values=[*SPECIAL, 1e-45, 3.4028234e38, 1.0, 1.0]), T(values=[1.0])),
            sample(T(values=[*SPECIAL, 1e-45, -1e-45, 1.0, INF]), T(values=[-1.0])),
            sample(T(values=SPECIAL), T(values=[INF, -0.0, NAN, -INF, 0.5, 0.0, 0.0, 1.0])),
        ],
        finite_differences=False,
        errors=[
            (lambda: weft.nextafter(weft.tensor([1]), weft.tensor([2])), weft.DTypeError, "nextafter: given a int64")
        ],
    ),
    of_tensors("fmax", extra=[MEETINGS], dtypes=NUMBERS, finite_differences=False),
    of_tensors("fmin", extra=[MEETINGS], dtypes=NUMBERS, finite_differences=False),
    of_tensors(
        "gcd", -60, 60, extra=[sample(T(values=[0, 0, 9]), T(values=[0, -4, 6]))], dtypes=INTEGERS, differentiable=False
    ),
    of_tensors(
        "lcm", -10, 10, extra=[sample(T(values=[0, 0, 9]), T(values=[0, -4, 6]))], dtypes=INTEGERS, differentiable=False
    ),
    Record(
        "gcd of large numbers",
        weft.gcd,
        torch.gcd,
        [sample(T(values=[7540113804746346429, 2**62, 4660046610375530309]), T(values=[4660046610375530309, 6, 1]))],
        ("int64",),
        differentiable=False,
    ),
    Record(
        "isclose",
        weft.isclose,
        torch.isclose,
        [
            *pairs(1, 3)[:4],
            MEETINGS,
            sample(*MEETINGS.args, equal_nan=True),
            sample(T(values=[1.0, 2.0, 3.0]), T(values=[1.0, 2.1, 3.5]), rtol=0.1, atol=0.0),
            sample(T((3,), 1, 3), T((3,), 1, 3), rtol=0.0, atol=0.0),
        ],
        ALL,
        differentiable=False,
        errors=[
            (lambda: weft.isclose(weft.ones(1), weft.ones(1), rtol=-1.0), weft.RangeError, "isclose: given rtol=-1.0"),
            (lambda: weft.isclose(weft.ones(1), weft.ones(1, dtype=weft.int32)), weft.DTypeError, "float32 and int32"),
        ],
    ),
    Record("clamp_min", weft.clamp_min, torch.clamp_min, [sample(T((3, 4)), 0.5), sample(T((3, 4)), T((4,)))]),
    Record("clamp_max", weft.clamp_max, torch.clamp_max, [sample(T((3, 4)), 0.5), sample(T((3, 4)), T((4,)))]),
    Record("clamp with min above max", weft.clamp, torch.clamp, [sample(T((7,)), 1.0, -1.0)], NUMBERS),
    Record(
        "round with decimals",
        weft.round,
        torch.round,
        [sample(T((20,), -3, 3), decimals=2), sample(T((20,), -3000, 3000), decimals=-2), sample(T((3,)), decimals=0)],
        errors=[(lambda: weft.round(weft.tensor([1]), decimals=1), weft.DTypeError, "round: given a int64 tensor")],
    ),
    Record("rsub with alpha", weft.rsub, torch.rsub, [sample(T((3,)), T((3,)), alpha=2), sample(T((3,)), 1)], NUMBERS),
    Record(
        "reflected shifts",
        lambda x: (3 << x, 300 >> x, 5 & x, 5 | x, 5 ^ x),
        lambda x: (3 << x, 300 >> x, 5 & x, 5 | x, 5 ^ x),
        [sample(T((5,), 0, 4))],
        INTEGERS,
        differentiable=False,
        without=("int8", "uint8"),
    ),
    *[
        Record(
            f"{name} with a dtype",
            lambda x, dim, dtype, name=name: getattr(weft, name)(x, dim, dtype=getattr(weft, dtype)),
            lambda x, dim, dtype, name=name: getattr(torch, name)(x, dim, dtype=getattr(torch, dtype)),
            [sample(T((3, 4)), -1, "float64"), sample(T((3, 4)), 0, "float32")],
            ("float32", *INTEGERS, "bool"),  # float64 would lose digits in the second sample
            finite_differences=False,
        )
        for name in ("softmax", "log_softmax")
    ],
    *[
        Record(
            f"{name} without dim",
            lambda x, name=name: getattr(weft.nn.functional, name)(x),
            lambda x, name=name: _quietly(getattr(TF, name), x),
            [sample(T((3,) * rank)) for rank in (0, 1, 2, 3, 4)],
        )
        for name in ("softmax", "log_softmax", "softmin")
    ],
    Record(
        "Tensor.where",
        lambda x, c, y: x.where(c, y),
        lambda x, c, y: x.where(c, y),
        [sample(T((3, 4)), T((4,), dtype="bool"), T((3, 1))), sample(T((3,)), T((3,), dtype="bool"), 0.5)],
    ),
]
