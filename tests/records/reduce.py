"""Records of reductions."""

import math

import weft
from tests.records.oracle import torch
from tests.records.record import ALL, FLOATS, NUMBERS, Record, T, sample

NAN, INF = math.nan, math.inf
TIES = [[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]]


def over(low=-2.0, high=2.0, empty=True, several=True):
    """Every way to name axes, on contiguous and strided inputs."""
    samples = [
        sample(T((3, 4), low, high)),
        sample(T((3, 4), low, high), 0),
        sample(T((3, 4), low, high), -1, True),
        sample(T((2, 3, 4), low, high), 1),
        sample(T((), low, high)),
        sample(T((5, 3), low, high, layout="transposed"), 0),
        sample(T((5, 3), low, high, layout="sliced"), 1),
        sample(T((40, 33), low, high), 1),
        sample(T((40, 33), low, high), 0),
    ]
    if several:
        samples += [sample(T((2, 3, 4), low, high), (0, 2)), sample(T((2, 3, 4), low, high), (-1, 0), keepdim=True)]
    if empty:
        samples += [sample(T((0, 3), low, high), 0), sample(T((3, 0), low, high), 0)]
    return samples


def axis_errors(name):
    call = getattr(weft, name)
    return [
        (
            lambda: call(weft.ones(2, 3), 2),
            weft.ShapeError,
            f"{name}: given axis 2 for a tensor of rank 2; expected -2 to 1",
        ),
        (lambda: call(weft.ones(2, 3), "x"), weft.DTypeError, f"{name}: given 'x' for the axis"),
    ]


def reduction(name, dtypes=FLOATS, samples=None, **options):
    errors = [*axis_errors(name), *options.pop("errors", [])]
    return Record(name, getattr(weft, name), getattr(torch, name), samples or over(), dtypes, errors=errors, **options)


EMPTY = (weft.ShapeError, r"given shape \(0, 3\) over axes")
SINGLE = over(empty=False, several=False)[1:]

RECORDS = [
    reduction("sum", ALL),
    reduction("mean", errors=[(lambda: weft.arange(3).mean(), weft.DTypeError, "mean: given a int64 tensor")]),
    Record(
        "prod",
        weft.prod,
        torch.prod,
        [
            sample(T((3, 4), 0.5, 1.5)),
            sample(T((3, 4), 0.5, 1.5), 0),
            sample(T((3, 4), 0.5, 1.5), 1, True),
            sample(T((0, 2)), 0),
            sample(T(values=[[0.0, 2.0, 3.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]]), 1),
            sample(T(())),
        ],
        NUMBERS,
    ),
    Record(
        "var",
        weft.var,
        torch.var,
        [
            sample(T((3, 4))),
            sample(T((3, 4)), 1),
            sample(T((3, 4)), (0, 1), correction=0, keepdim=True),
            sample(T((30, 17)), 0),
        ],
        errors=[(lambda: weft.arange(3).var(), weft.DTypeError, "var: given a int64 tensor")],
    ),
    Record(
        "std",
        weft.std,
        torch.std,
        [sample(T((3, 4))), sample(T((3, 4)), 1, keepdim=True), sample(T((3, 4)), 0, correction=0)],
    ),
    reduction(
        "amax",
        NUMBERS,
        [*over(empty=False), sample(T(values=TIES), 1), sample(T((3, 0)), 0)],
        errors=[(lambda: weft.amax(weft.ones(0, 3), 0), *EMPTY)],
    ),
    reduction(
        "amin",
        NUMBERS,
        [*over(empty=False), sample(T(values=TIES), 1), sample(T(values=TIES))],
        errors=[(lambda: weft.amin(weft.ones(0, 3), 0), *EMPTY)],
    ),
    reduction(
        "max",
        NUMBERS,
        [
            *SINGLE[:3],
            *SINGLE[4:],
            sample(T((3, 4))),
            sample(T(values=TIES), 1),
            sample(T(values=[1.0, NAN, 3.0]), 0),
            sample(T((3,)), T((3,))),
            sample(T(values=[INF, -INF, 0.0]), 0),
        ],
        errors=[(lambda: weft.max(weft.ones(0, 3), 0), weft.ShapeError, "max: given shape")],
    ),
    reduction(
        "min",
        NUMBERS,
        [
            *SINGLE[:3],
            *SINGLE[4:],
            sample(T((3, 4))),
            sample(T(values=TIES), 1),
            sample(T(values=[1.0, NAN, 3.0]), 0),
            sample(T((3,)), T((3,))),
        ],
    ),
    reduction(
        "argmax",
        NUMBERS,
        [*over(empty=False, several=False), sample(T(values=TIES), 1), sample(T(values=[1.0, NAN, 3.0, NAN]))],
        differentiable=False,
        errors=[(lambda: weft.argmax(weft.ones(0, 3), 0), weft.ShapeError, "argmax: given shape")],
    ),
    reduction(
        "argmin",
        NUMBERS,
        [*over(empty=False, several=False), sample(T(values=TIES), 1), sample(T(values=[1.0, NAN, 3.0, NAN]))],
        differentiable=False,
    ),
    reduction("any", ALL, over(0, 1), differentiable=False, without=("uint8",)),  # torch gives uint8 for it
    reduction("all", ALL, over(0, 1), differentiable=False, without=("uint8",)),  # torch gives uint8 for it
    Record(
        "count_nonzero",
        weft.count_nonzero,
        torch.count_nonzero,
        [sample(T((3, 4), 0, 1)), sample(T((3, 4), 0, 1), 1)],
        ALL,
        differentiable=False,
    ),
    Record(
        "logsumexp",
        weft.logsumexp,
        torch.logsumexp,
        [
            sample(T((3, 4)), 1),
            sample(T((3, 4)), (0, 1), True),
            sample(T((2, 0)), 1),
            sample(T((4, 3), layout="transposed"), -1),
        ],
        errors=[(lambda: weft.logsumexp(weft.ones(3), 1), weft.ShapeError, "logsumexp: given axis 1")],
    ),
    Record(
        "logsumexp_large",
        weft.logsumexp,
        torch.logsumexp,
        [sample(T((3, 4), 900.0, 1000.0), 0)],
        tolerance={"float32": (1e-4, 1e-6), "float64": (1e-10, 1e-12)},
    ),  # torch subtracts the rounded result
    Record(
        "logsumexp_infinite",
        weft.logsumexp,
        torch.logsumexp,
        [
            sample(T(values=[[-INF, -INF], [-INF, 1.0], [INF, 1.0], [NAN, 1.0]]), 1),
        ],
        differentiable=False,
    ),
    Record(
        "softmax",
        weft.softmax,
        torch.softmax,
        [
            sample(T((3, 4)), -1),
            sample(T((3, 4)), 0),
            sample(T((2, 3, 4)), 1),
            sample(T((3, 4), 900.0, 1000.0), 1),
            sample(T((5, 33), layout="sliced"), 1),
            sample(T((0, 3)), 1),
            sample(T(()), 0),
        ],
        errors=[
            (lambda: weft.softmax(weft.arange(3), 0), weft.DTypeError, "softmax: given a int64 tensor"),
            (lambda: weft.softmax(weft.ones(3), 1), weft.ShapeError, "softmax: given axis 1"),
        ],
    ),
    Record(
        "log_softmax",
        weft.log_softmax,
        torch.log_softmax,
        [
            sample(T((3, 4)), -1),
            sample(T((3, 4)), 0),
            sample(T((2, 3, 4)), 1),
            sample(T((3, 4), 900.0, 1000.0), 1),
            sample(T((4, 3), layout="transposed"), 1),
            sample(T((0, 3)), 1),
        ],
    ),
]
