"""Records of statistics: moments in pairs, quantiles, modes, what ignores NaN, covariances, membership."""

import weft
from tests.records.oracle import torch
from tests.records.record import ALL, FLOATS, NUMBERS, Record, T, sample

nan, inf = float("nan"), float("inf")
UNKNOWN = [[1.0, nan, 3.0, -2.0], [nan, nan, nan, nan], [4.0, 0.5, -1.0, nan]]
SOME = [UNKNOWN[0], UNKNOWN[2]]  # torch's gradients of a row without numbers differ by dtype
TIES = [[2.0, 1.0, 2.0, 1.0, 0.0], [3.0, 3.0, 3.0, 0.0, 0.0], [5.0, 4.0, 3.0, 2.0, 1.0]]
MODES = ("linear", "lower", "higher", "midpoint", "nearest")


def both(name, samples, dtypes=FLOATS, **options):
    return Record(name, getattr(weft, name), getattr(torch, name), samples, dtypes, **options)


QUANTILES = [
    sample(T((3, 7)), T((4,), 0, 1, grad=False), 1),
    sample(T(values=UNKNOWN), T(values=[0.0, 0.5, 1.0], grad=False), 1, True),
    sample(T((3, 7)), 0.3),
    sample(T((3, 7)), T((), 0, 1, grad=False), 0, True),
    sample(T(()), 0.5),
]


def quantiles(name, mode):
    return Record(
        f"{name}_{mode}",
        lambda x, q, *a, **k: getattr(weft, name)(x, q, *a, interpolation=mode, **k),
        lambda x, q, *a, **k: getattr(torch, name)(x, q, *a, interpolation=mode, **k),
        QUANTILES if mode == "linear" else QUANTILES[:2],
        FLOATS,
        without=("float16", "bfloat16"),
        finite_differences=False,
    )


def values_of(name, samples):
    return Record(
        f"{name}_values",
        lambda x, *a: getattr(weft, name)(x, *a).values,
        lambda x, *a: getattr(torch, name)(x, *a).values,
        samples,
        NUMBERS,
        finite_differences=False,
    )


def _spaced(coordinates, keywords):
    return {**keywords, "spacing": coordinates} if coordinates else keywords


RECORDS = [
    both("var_mean", [sample(T((3, 4))), sample(T((3, 4)), 1, False), sample(T((2, 3, 4)), (0, 2), True, True)]),
    both("std_mean", [sample(T((3, 4))), sample(T((3, 4)), False), sample(T((40, 33)), 0)]),
    both(
        "aminmax",
        [sample(T((3, 4))), sample(T((3, 4)), dim=1, keepdim=True), sample(T(values=TIES), dim=0), sample(T(()))],
        ALL,
        finite_differences=False,
        errors=[(lambda: weft.aminmax(weft.ones(0, 2)), weft.ShapeError, "at least one element per result")],
    ),
    both("nansum", [sample(T(values=UNKNOWN)), sample(T(values=UNKNOWN), 1, True), sample(T((3, 0)), 1)], ALL),
    both(
        "nanmean",
        [sample(T(values=SOME)), sample(T(values=SOME), 1), sample(T((3, 4)), (0, 1), True)],
        errors=[(lambda: weft.arange(3).nanmean(), weft.DTypeError, "nanmean: given a int64 tensor")],
        finite_differences=False,
    ),
    values_of("nanmedian", [sample(T(values=SOME), 1), sample(T((4, 5)), 0, True), sample(T(()), 0)]),
    values_of("mode", [sample(T(values=TIES), 1), sample(T(values=TIES), 0, True), sample(T((3, 300)), 1)]),
    *[quantiles("quantile", mode) for mode in MODES],
    *[quantiles("nanquantile", mode) for mode in ("linear", "nearest")],
    both(
        "cov",
        [sample(T((3, 5))), sample(T((5,))), sample(T((3, 5)), correction=0), sample(T((1, 4)))],
        without=("float16", "bfloat16"),
        errors=[
            (lambda: weft.cov(weft.ones(2, 2, 2)), weft.ShapeError, "cov: given float32"),
            (lambda: weft.cov(weft.ones(2, 3), aweights=weft.ones(2)), weft.ShapeError, "aweights float32"),
        ],
    ),
    Record(
        "cov_weighted",
        lambda x, f, a: weft.cov(x, fweights=f, aweights=a),
        lambda x, f, a: torch.cov(x, fweights=f, aweights=a),
        [sample(T((3, 4)), T(values=[1, 2, 3, 1], dtype="int64"), T((4,), 0.1, 1))],
        without=("float16", "bfloat16"),
    ),
    both("corrcoef", [sample(T((3, 5))), sample(T((5,)))], without=("float16", "bfloat16")),
    both(
        "isin",
        [
            sample(T((3, 4)), T((2,))),
            sample(T((3, 4)), 1),
            sample(T((3, 40)), T((7, 9)), invert=True),
            sample(T((3, 4)), T((0,))),
        ],
        NUMBERS,
        differentiable=False,
    ),
    both(
        "trapezoid",
        [sample(T((3, 5))), sample(T((3, 5)), dx=0.5, dim=0), sample(T((3, 5)), T((5,))), sample(T((3, 0)))],
        without=("float16", "bfloat16"),
    ),
    both(
        "cumulative_trapezoid",
        [sample(T((3, 5))), sample(T((3, 5)), T((3, 5)), dim=0)],
        without=("float16", "bfloat16"),
    ),
    Record(
        "gradient",
        lambda x, *coordinates, **k: weft.gradient(x, **_spaced(coordinates, k)),
        lambda x, *coordinates, **k: torch.gradient(x, **_spaced(coordinates, k)),
        [
            sample(T((5,))),
            sample(T((3, 5)), spacing=0.5, edge_order=2),
            sample(T((5, 3), layout="transposed"), dim=1, spacing=[2.0]),
            sample(T((3, 4, 5)), dim=(2, 0)),
            sample(T((2, 3)), spacing=(0.5, 2)),
            sample(T((5,)), T(values=[0.0, 1.0, 3.0, 3.5, 6.0]), edge_order=2),
            sample(T((3, 5)), T(values=[0.0, 1.0, 3.0]), T(values=[0.0, 1.0, 3.0, 3.5, 6.0])),
        ],
        NUMBERS,
        without=("float16", "bfloat16", "int8", "int16", "uint8", "uint16", "uint32", "uint64"),
        tolerance={"float32": (1e-5, 5e-6), "float64": (1e-10, 1e-12)},
        errors=[
            (lambda: weft.gradient(weft.ones(3), edge_order=3), weft.RangeError, "gradient: given edge_order=3"),
            (lambda: weft.gradient(weft.ones(2), edge_order=2), weft.ShapeError, "at least 3 elements along axis 0"),
            (lambda: weft.gradient(weft.ones(2, 3), dim=(0, 0)), weft.ShapeError, "each axis once"),
            (lambda: weft.gradient(weft.ones(2, 3), spacing=[1.0]), weft.ShapeError, "spacing for 1 axes"),
            (lambda: weft.gradient(weft.ones(3), spacing=[weft.ones(2)]), weft.ShapeError, r"coordinates \(2,\)"),
            (lambda: weft.gradient(weft.ones(3) > 0), weft.DTypeError, "gradient: given a bool"),
        ],
    ),
    both("dist", [sample(T((3, 4)), T((3, 4))), sample(T((3, 4)), T((4,)), 1)], without=("float16", "bfloat16")),
    both(
        "renorm",
        [sample(T((3, 4)), 2, 0, 1.5), sample(T((2, 3, 4)), 1, 1, 3.0)],
        errors=[(lambda: weft.renorm(weft.ones(2, 2), 0, 0, 1), weft.RangeError, "renorm: given p=0")],
    ),
]
