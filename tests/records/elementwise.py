"""Records of elementwise operations."""

import math

import weft
from tests.records.oracle import torch
from tests.records.record import ALL, FLOATS, INTEGERS, NUMBERS, Record, T, sample

NAN, INF = math.nan, math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, INF, -INF, NAN]


def shapes(low=-2.0, high=2.0):
    """One tensor in every form: rank 0 to 3, empty, and two layouts with strides."""
    return [
        sample(T((3, 4), low, high)),
        sample(T((), low, high)),
        sample(T((7,), low, high)),
        sample(T((0, 3), low, high)),
        sample(T((2, 1, 5), low, high)),
        sample(T((4, 3), low, high, layout="transposed")),
        sample(T((3, 4), low, high, layout="sliced")),
    ]


def pairs(low=-2.0, high=2.0, low_b=None, high_b=None):
    """Two tensors that broadcast in every way, and a tensor with a number."""
    second = (low if low_b is None else low_b, high if high_b is None else high_b)
    number = int(second[1]) or 1
    return [
        sample(T((3, 4), low, high), T((3, 4), *second)),
        sample(T((3, 4), low, high), T((4,), *second)),
        sample(T((3, 1), low, high), T((1, 4), *second)),
        sample(T((), low, high), T((2, 3), *second)),
        sample(T((2, 0), low, high), T((1,), *second)),
        sample(T((4, 3), low, high, layout="transposed"), T((4, 3), *second, layout="sliced")),
        sample(T((2, 3), low, high), number),
    ]


LARGE_ANGLES = [sample(T(values=[1e4, 1.5e5, -4e5, 1e7, 1e10, -1e20, 1e30, 3.4e38, INF, NAN]))]
# Quotients that a rounded division gets wrong, huge ones, and all ends. Not those that overflow: torch's are NaN.
QUOTIENTS = [
    sample(T(values=[-5.0, 5.0, INF, -INF, 2.0, -0.0, -6.0, NAN]), T(values=[INF, -INF, 2.0, 2.0, NAN, 3.0, 3.0, 1.0])),
    sample(T(values=[1.0, -1.0, 0.0, INF, -0.0]), T(values=[0.0, 0.0, 0.0, INF, INF])),
    sample(
        T(values=[1e8, 1e7, -1e8, 5.5, 1e30, -3e37, 1e-40, -1e-40]), T(values=[3.0, 0.1, 3.0, -2.0, 3.0, 7.0, 3.0, 3.0])
    ),
]


def unary(name, low=-2.0, high=2.0, dtypes=FLOATS, special=False, extra=(), **options):
    samples = [*shapes(low, high), *extra]
    if special:
        samples.append(sample(T(values=SPECIAL)))
    return Record(name, getattr(weft, name), getattr(torch, name), samples, dtypes, **options)


def binary(name, low=-2.0, high=2.0, low_b=None, high_b=None, dtypes=FLOATS, extra=(), **options):
    samples = [*pairs(low, high, low_b, high_b), *extra]
    errors = [
        *options.pop("errors", []),
        (
            lambda: getattr(weft, name)(weft.ones(2), weft.ones(3)),
            weft.ShapeError,
            r"\w+: given shapes \(2,\) and \(3,\)",
        ),
    ]
    return Record(name, getattr(weft, name), getattr(torch, name), samples, dtypes, errors=errors, **options)


def mixed(name, op):
    """An operator between dtypes, and between a tensor and a number of another kind."""
    samples = [
        sample(T((3,), dtype=a, low=1, high=3), T((3,), dtype=b, low=1, high=3))
        for a in ALL
        for b in ALL
        if not a == b == "bool"
    ] + [sample(T((3,), dtype=a, low=1, high=3), number) for a in ALL for number in (2, 1.5)]
    return Record(name, op, op, samples, ("float32",), differentiable=False)


def no_gradient(name, dtypes=NUMBERS, **ranges):
    return binary(
        name, dtypes=dtypes, differentiable=False, **ranges, extra=[sample(T(values=[1, 2, 2]), T(values=[2, 2, 1]))]
    )


RECORDS = [
    unary("neg", dtypes=NUMBERS, errors=[(lambda: -weft.tensor([True]), weft.DTypeError, "neg: given a bool tensor")]),
    unary("abs", dtypes=NUMBERS),
    unary("sign", dtypes=NUMBERS, special=True, differentiable=False),
    unary("exp", special=True),
    unary("exp2"),
    unary("expm1", special=True),
    unary("log", 0.1, 3.0, special=False),
    unary("log2", 0.1, 3.0),
    unary("log10", 0.1, 3.0),
    unary("log1p", -0.9, 3.0),
    unary("sqrt", 0.1, 3.0),
    unary("rsqrt", 0.1, 3.0),
    unary("reciprocal", 0.5, 3.0),
    Record("recip", weft.recip, torch.reciprocal, shapes(0.5, 3.0)),
    Record(
        "fill",
        weft.fill,
        torch.fill,
        [sample(T((3, 4)), 2), sample(T((0, 3)), 1.5), sample(T((4, 3), layout="transposed"), T(()))],
        ALL,
        errors=[
            (lambda: weft.fill(weft.ones(2), weft.ones(2)), weft.ShapeError, r"fill: given a value of shape \(2,\)"),
            (lambda: weft.fill(weft.ones(2), "3"), weft.DTypeError, "fill: given a str"),
        ],
    ),
    unary("square", dtypes=NUMBERS),
    unary("sin", -4.0, 4.0, extra=LARGE_ANGLES),
    unary("cos", -4.0, 4.0, extra=LARGE_ANGLES),
    unary("tan", -1.2, 1.2, extra=LARGE_ANGLES),
    Record("tanh_special", weft.tanh, torch.tanh, [sample(T(values=SPECIAL))]),
    unary("erf", special=True),
    Record("sigmoid_special", weft.sigmoid, torch.sigmoid, [sample(T(values=SPECIAL))]),
    unary("floor", -3.0, 3.0, special=True),
    unary("ceil", -3.0, 3.0, special=True),
    unary("trunc", -3.0, 3.0, special=True),
    unary("round", -3.0, 3.0, special=True),
    unary("isnan", dtypes=FLOATS, special=True, differentiable=False),
    unary("isinf", dtypes=FLOATS, special=True, differentiable=False),
    unary("isfinite", dtypes=FLOATS, special=True, differentiable=False),
    unary("logical_not", dtypes=ALL, differentiable=False),
    unary(
        "bitwise_not",
        dtypes=(*INTEGERS, "bool"),
        differentiable=False,
        errors=[(lambda: ~weft.ones(1), weft.DTypeError, "bitwise_not: given a float32 tensor")],
    ),
    binary("add", dtypes=NUMBERS, extra=[sample(T((3,)), T((3,)), alpha=2)]),
    binary(
        "sub",
        dtypes=NUMBERS,
        extra=[sample(T((3,)), T((3,)), alpha=3)],
        errors=[(lambda: weft.tensor([True]) - weft.tensor([True]), weft.DTypeError, "sub: given bool tensors")],
    ),
    binary("mul", dtypes=NUMBERS),
    binary("div", low_b=0.5, high_b=3.0),
    Record("div_int", weft.div, torch.div, pairs(-9, 9, 1, 4), INTEGERS, differentiable=False),
    Record(
        "div_floor",
        lambda a, b: weft.div(a, b, rounding_mode="floor"),
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        pairs(-9, 9, 1, 4),
        NUMBERS,
        differentiable=False,
    ),
    Record(
        "div_trunc",
        lambda a, b: weft.div(a, b, rounding_mode="trunc"),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        pairs(-9, 9, 1, 4),
        NUMBERS,
        differentiable=False,
        errors=[(lambda: weft.div(weft.ones(1), 2, rounding_mode="up"), weft.RangeError, "rounding_mode='up'")],
    ),
    binary("floor_divide", -9, 9, 1, 4, dtypes=NUMBERS, differentiable=False),
    Record("floor_divide of floats", weft.floor_divide, torch.floor_divide, QUOTIENTS, differentiable=False),
    Record("remainder of floats", weft.remainder, torch.remainder, QUOTIENTS, differentiable=False),
    Record("fmod of floats", weft.fmod, torch.fmod, QUOTIENTS, differentiable=False),
    binary(
        "remainder", -9, 9, 1, 4, dtypes=NUMBERS, extra=[sample(T(values=[7, -7, 7, -7]), T(values=[3, 3, -3, -3]))]
    ),
    Record(
        "mod", weft.mod, torch.remainder, [*pairs(-9, 9, 1, 4), sample(T(values=[7, -7]), T(values=[-3, 3]))], NUMBERS
    ),
    binary("fmod", -9, 9, 1, 4, dtypes=NUMBERS, extra=[sample(T(values=[7, -7, 7, -7]), T(values=[3, 3, -3, -3]))]),
    binary(
        "pow",
        0.5,
        2.0,
        -2.0,
        2.0,
        extra=[sample(T((3,)), number) for number in (0, 1, 2, 3, 4)]
        + [sample(T((3,), 0.5), number) for number in (0.5, -1, -0.5, 2.5)]
        + [sample(T(values=[0.0, 0.0]), T(values=[2.0, 0.0]))],
        errors=[(lambda: weft.tensor([2]) ** -1, weft.DTypeError, "pow: given int64 to the power -1")],
    ),
    Record("pow_int", weft.pow, torch.pow, pairs(-3, 3, 0, 3), INTEGERS, differentiable=False),
    Record("rpow", lambda x: 2.0**x, lambda x: 2.0**x, shapes()),
    Record("rsub", lambda x: 2 - x, lambda x: 2 - x, shapes(), NUMBERS),
    Record("rdiv", lambda x: 2 / x, lambda x: 2 / x, shapes(0.5, 2.0)),
    Record("rfloordiv", lambda x: 7 // x, lambda x: 7 // x, shapes(1, 3), NUMBERS, differentiable=False),
    Record("rmod", lambda x: 7 % x, lambda x: 7 % x, shapes(1, 3), NUMBERS, differentiable=False),
    Record(
        "maximum",
        weft.maximum,
        torch.maximum,
        [*pairs()[:-1], sample(T(values=[1.0, 2.0, NAN]), T(values=[1.0, NAN, 0.0]))],
    ),
    Record(
        "minimum",
        weft.minimum,
        torch.minimum,
        [*pairs()[:-1], sample(T(values=[1.0, 2.0, NAN]), T(values=[1.0, NAN, 0.0]))],
    ),
    Record("addcmul", weft.addcmul, torch.addcmul, [sample(T((3,)), T((2, 3)), T((1,)), value=0.5)]),
    Record("addcdiv", weft.addcdiv, torch.addcdiv, [sample(T((3,)), T((2, 3)), T((1,), 1, 2), value=0.5)]),
    Record("lerp", weft.lerp, torch.lerp, [sample(T((3,)), T((3,)), 0.3), sample(T((3,)), T((3,)), T((3,)))]),
    Record("cmplt", weft.cmplt, torch.lt, pairs(), ALL, differentiable=False),
    *[no_gradient(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")],
    Record("logical_and", weft.logical_and, torch.logical_and, pairs()[:-1], ALL, differentiable=False),
    Record("logical_or", weft.logical_or, torch.logical_or, pairs()[:-1], ALL, differentiable=False),
    Record("logical_xor", weft.logical_xor, torch.logical_xor, pairs()[:-1], ALL, differentiable=False),
    binary(
        "bitwise_and",
        0,
        15,
        dtypes=(*INTEGERS, "bool"),
        differentiable=False,
        errors=[(lambda: weft.ones(1) & weft.ones(1), weft.DTypeError, "bitwise_and: given a float32 tensor")],
    ),
    binary("bitwise_or", 0, 15, dtypes=(*INTEGERS, "bool"), differentiable=False),
    binary("bitwise_xor", 0, 15, dtypes=(*INTEGERS, "bool"), differentiable=False),
    binary("bitwise_left_shift", -9, 9, 0, 4, dtypes=INTEGERS, differentiable=False),
    binary("bitwise_right_shift", -99, 99, 0, 4, dtypes=INTEGERS, differentiable=False),
    Record(
        "where",
        weft.where,
        torch.where,
        [
            sample(T((3, 4), dtype="bool"), T((3, 4)), T((4,))),
            sample(T((3, 1), dtype="bool"), T((1, 4)), 0.5),
            sample(T((3,), dtype="bool"), 1.0, T(())),
            sample(T((0,), dtype="bool"), T((1,)), T((1,))),
        ],
        errors=[
            (lambda: weft.where(weft.ones(1), 1.0, 2.0), weft.DTypeError, "where: given a condition of type float32")
        ],
    ),
    Record(
        "masked_fill",
        weft.masked_fill,
        torch.masked_fill,
        [sample(T((3, 4)), T((3, 4), dtype="bool"), -1.0)],
        NUMBERS,
        without=("uint8", "uint16", "uint32", "uint64"),  # torch refuses the number
    ),
    Record(
        "clamp",
        weft.clamp,
        torch.clamp,
        [
            sample(T((3, 4)), -0.5, 1),
            sample(T((3, 4)), min=0.25),
            sample(T((3, 4)), max=0.25),
            sample(T((3,)), T(()), None),
            sample(T(values=[-1.0, 0.0, 1.0, 2.0]), -1.0, 1.0),
        ],
        errors=[(lambda: weft.clamp(weft.ones(1)), weft.DTypeError, "clamp: given neither min nor max")],
    ),
    Record("clamp_nan", weft.clamp, torch.clamp, [sample(T(values=[-1.0, NAN, INF]), -1.0, 1.0)], differentiable=False),
    mixed("promote_add", lambda a, b: a + b),
    mixed("promote_mul", lambda a, b: a * b),
    mixed("promote_div", lambda a, b: a / b),
    mixed("promote_lt", lambda a, b: a < b),
    *[
        Record(
            f"cast_{name}",
            lambda x, name=name: x.to(getattr(weft, name)),
            lambda x, name=name: x.to(getattr(torch, name)),
            shapes(-3, 3),
            ALL,
            differentiable=name in FLOATS,
            finite_differences=name == "float64",
        )
        for name in ALL
    ],
]
