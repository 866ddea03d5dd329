"""Records of scans, sorts and what is composed from them."""

import weft
from tests.records.oracle import torch
from tests.records.record import ALL, FLOATS, NARROW, NUMBERS, Record, T, sample

nan, inf = float("nan"), float("inf")
TIES = [2.0, 1.0, 2.0, -1.0, 1.0, 2.0, -0.0, 0.0]
ODD = [[2.0, nan, -inf, 1.0], [inf, nan, nan, -2.0], [0.0, -0.0, 3.0, inf]]


def method(name, *samples, dtypes=NUMBERS, errors=(), **kwargs):
    return Record(
        name,
        lambda x, *a, **k: getattr(x, name)(*a, **k),
        lambda x, *a, **k: getattr(x, name)(*a, **k),
        samples,
        dtypes,
        errors=errors,
        **kwargs,
    )


def values_of(name, *samples, **kwargs):
    """Values only, where torch promises no order of equal elements."""
    return Record(
        f"{name}_values",
        lambda x, *a, **k: getattr(x, name)(*a, **k)[0],
        lambda x, *a, **k: getattr(x, name)(*a, **k)[0],
        samples,
        NUMBERS,
        finite_differences=False,
        **kwargs,
    )


SHAPES = [
    sample(T((5,)), 0),
    sample(T((3, 4)), 1),
    sample(T((3, 4)), 0),
    sample(T((2, 3, 4)), -2),
    sample(T((4, 3), layout="transposed"), -1),
    sample(T((3, 5), layout="sliced"), 1),
    sample(T(()), 0),
    sample(T((0, 3)), 0),
    sample(T((3, 0)), 0),
    sample(T((2, 1)), 1),
]
LONG = [sample(T((3, 300)), 1), sample(T((40, 33)), 0), sample(T((40000,), -1, 1), 0), sample(T((2, 33000), -1, 1), 1)]
LOOSE = {"float32": (1e-4, 1e-3), "float64": (1e-10, 1e-10)}


def stable(x, *args, **kwargs):
    return torch.sort(x, *args, stable=True, **kwargs)


def kept(x, dim=-1, descending=False):
    return torch.argsort(x, dim=dim, descending=descending, stable=True)


RECORDS = [
    method(
        "cumsum",
        *SHAPES,
        *LONG,
        sample(T(values=ODD), 1),
        sample(T(values=ODD), 0),
        dtypes=ALL,
        tolerance=LOOSE,
        errors=[(lambda: weft.ones(2).cumsum(1), weft.ShapeError, "cumsum: given axis 1")],
    ),
    Record(
        "cumsum_dtype",
        lambda x: weft.cumsum(x, 0, dtype=weft.float64),
        lambda x: torch.cumsum(x, 0, dtype=torch.float64),
        [sample(T((4, 3)))],
        NUMBERS,
    ),
    Record(
        "cumsum_of_expression",
        lambda x: ((x * x).exp().cumsum(1) * 0.5).sum(0),
        lambda x: ((x * x).exp().cumsum(1) * 0.5).sum(0),
        [sample(T((3, 300), -1, 1)), sample(T((3, 5, 7), -1, 1))],
        tolerance={"float32": (1e-4, 1e-3), "float64": (1e-10, 1e-10)},
    ),
    method(
        "cumprod",
        *SHAPES,
        sample(T((300,), 0.9, 1.1), 0),
        sample(T(values=[2.0, 0.0, 3.0, 4.0]), 0),
        sample(T(values=[2.0, 0.0, 3.0, 0.0, 5.0]), 0),
        sample(T(values=[[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]]), 0),
        tolerance={"float32": (1e-4, 1e-5), "float64": (1e-9, 1e-12)},
    ),
    method("cummax", *SHAPES, *LONG, sample(T(values=TIES), 0), sample(T(values=ODD), 1), sample(T(values=ODD), 0)),
    method("cummin", *SHAPES, *LONG, sample(T(values=TIES), 0), sample(T(values=ODD), 1), sample(T(values=ODD), 0)),
    method(
        "logcumsumexp",
        *SHAPES,
        sample(T((3, 300)), 1),
        sample(T(values=[1000.0, 0.0, -1000.0, 1001.0]), 0),
        sample(T(values=[-inf, 0.0, inf, 1.0]), 0),
        dtypes=FLOATS,
        tolerance={"float32": (1e-4, 1e-5), "float64": (1e-10, 1e-10)},
        errors=[(lambda: weft.arange(3).logcumsumexp(0), weft.DTypeError, "logcumsumexp: given a int64 tensor")],
    ),
    method(
        "diff",
        sample(T((5,))),
        sample(T((3, 4)), 2, 0),
        sample(T((3, 4)), 5),
        sample(T((3, 0))),
        dtypes=ALL,
        errors=[(lambda: weft.tensor(1.0).diff(), weft.ShapeError, "diff: given a scalar")],
    ),
    Record(
        "diff_joined",
        lambda x, y: weft.diff(x, prepend=y, append=y),
        lambda x, y: torch.diff(x, prepend=y, append=y),
        [sample(T((3, 4)), T((3, 2)))],
    ),
    Record(
        "sort",
        lambda x, *a, **k: weft.sort(x, *a, **k),
        stable,
        [
            sample(T((5,))),
            sample(T((3, 4)), dim=0),
            sample(T((2, 3, 4)), dim=1, descending=True),
            sample(T((4, 100)), dim=-1),
            sample(T((3, 3000)), dim=-1, descending=True),
            sample(T((9000,)), dim=0),
            sample(T((4, 3), layout="transposed"), dim=-1),
            sample(T(())),
            sample(T((0, 3)), dim=0),
            sample(T((3, 0)), dim=0),
            sample(T(values=TIES), dim=0),
            sample(T(values=TIES), dim=0, descending=True),
            sample(T(values=ODD), dim=1),
            sample(T(values=ODD), dim=1, descending=True),
            sample(T(values=ODD), dim=0),
        ],
        ALL,
        errors=[(lambda: weft.sort(weft.ones(2), 1), weft.ShapeError, "sort: given axis 1")],
    ),
    Record(
        "argsort",
        lambda x, *a: weft.argsort(x, *a),
        kept,
        [sample(T((3, 50)), -1, True), sample(T((70, 3)), 0), sample(T((100, 70)), 0, True), sample(T(values=TIES))],
        ALL,
        differentiable=False,
    ),
    method("msort", sample(T((4, 3))), sample(T((5,)))),
    values_of(
        "topk",
        sample(T((9,)), 3),
        sample(T((3, 9)), 2, 0),
        sample(T((2, 9, 3)), 4, 1, False),
        sample(T((3, 1000)), 7),
        sample(T((3, 1000)), 7, -1, False),
        sample(T((70000,)), 5, 0, False),
        sample(T((200, 3)), 3, 0),
        sample(T((3, 70)), 60),
        sample(T((3, 4)), 0),
        sample(T(values=TIES, grad=False), 4),  # torch picks any of equal elements
        sample(T(values=ODD, grad=False), 2, 1),
        sample(T(values=ODD, grad=False), 3, 1, False),
        errors=[(lambda: weft.ones(3).topk(4), weft.RangeError, "topk: given k=4 of 3 elements; expected 0 to 3")],
    ),
    Record(
        "topk_indices",
        lambda x: x.topk(6, 1).indices,
        lambda x: x.topk(6, 1).indices,
        [sample(T((3, 500))), sample(T((2, 40)))],
        FLOATS,
        differentiable=False,
        without=NARROW,  # equal elements
    ),
    values_of(
        "kthvalue",
        sample(T((7,)), 3),
        sample(T((3, 7)), 1, 0, True),
        sample(T((3, 200)), 50),
        sample(T(values=ODD, grad=False), 3, 1),
        errors=[(lambda: weft.ones(3).kthvalue(0), weft.RangeError, "kthvalue: given k=0 of 3 elements")],
    ),
    values_of(
        "median",
        sample(T((7,)), 0),
        sample(T((3, 8)), 1, True),
        sample(T((3, 200)), 0),
        sample(T(values=ODD), 1),
        errors=[(lambda: weft.arange(0).median(), weft.ShapeError, "median: given shape")],
    ),
    Record(
        "median_all",
        lambda x: x.median(),
        lambda x: x.median(),
        [sample(T((3, 5))), sample(T(values=TIES)), sample(T(values=ODD, grad=False))],
        NUMBERS,
    ),
    Record(
        "searchsorted",
        lambda x, v, **k: weft.searchsorted(weft.sort(x).values, v, **k),
        lambda x, v, **k: torch.searchsorted(torch.sort(x).values, v, **k),
        [
            sample(T((9,)), T((4, 3))),
            sample(T((9,)), T((4, 3)), right=True),
            sample(T((3, 8)), T((3, 5))),
            sample(T((3, 8)), T((3, 5)), side="right", out_int32=True),
            sample(T((300,)), T((100,))),
            sample(T((1,)), T((5,))),
            sample(T((0,)), T((5,))),
            sample(T(values=TIES), T(values=[1.0, 2.0, 0.0, 5.0, -9.0])),
            sample(T(values=TIES), T(values=[1.0, 2.0, nan, inf, -inf]), right=True),
        ],
        NUMBERS,
        differentiable=False,
        errors=[
            (
                lambda: weft.searchsorted(weft.ones(2, 3), weft.ones(4, 3)),
                weft.ShapeError,
                "searchsorted: given rows of shape",
            ),
            (lambda: weft.searchsorted(weft.ones(3), 1.0, right=True, side="left"), weft.RangeError, "agreeing"),
        ],
    ),
    Record(
        "bucketize",
        lambda x, right: weft.bucketize(x, weft.tensor([-1.0, 0.0, 0.5], dtype=x.dtype), right=right),
        lambda x, right: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5], dtype=x.dtype), right=right),
        [sample(T((4, 3)), False), sample(T(values=TIES), True)],
        FLOATS,
        differentiable=False,
    ),
    Record(
        "histc",
        lambda x, *a: weft.histc(x, *a),
        lambda x, *a: torch.histc(x, *a),
        [
            sample(T((40,)), 5, -1, 1),
            sample(T((6, 7)), 4),
            sample(T(values=[2.0, 2.0]), 4),
            sample(T(values=[0.0, 1.0, 2.0, 3.0]), 3, 0, 3),
        ],
        FLOATS,
        differentiable=False,
        errors=[(lambda: weft.histc(weft.ones(2), 0), weft.RangeError, "histc: given bins=0")],
    ),
    Record(
        "unique",
        lambda x: weft.unique(x.round(), return_inverse=True, return_counts=True),
        lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
        [sample(T((4, 5))), sample(T((0,))), sample(T(values=TIES))],
        FLOATS,
        differentiable=False,
    ),
    Record(
        "unique_dim",
        lambda x: weft.unique(x.round(), dim=0),
        lambda x: torch.unique(x.round(), dim=0),
        [sample(T((9, 2), -1, 1))],
        FLOATS,
        differentiable=False,
    ),
    Record(
        "unique_consecutive",
        lambda x: weft.unique_consecutive(x.round(), return_inverse=True, return_counts=True),
        lambda x: torch.unique_consecutive(x.round(), return_inverse=True, return_counts=True),
        [sample(T((4, 5))), sample(T(values=[1.0, 1.0, 2.0, 1.0]))],
        FLOATS,
        differentiable=False,
    ),
    Record(
        "nonzero",
        lambda x: weft.nonzero(x),
        lambda x: torch.nonzero(x),
        [sample(T((4, 5), 0, 1)), sample(T((0,))), sample(T(values=TIES)), sample(T(()))],
        ALL,
        differentiable=False,
    ),
    Record(
        "masked_select",
        lambda x, m: weft.masked_select(x, m),
        lambda x, m: torch.masked_select(x, m),
        [sample(T((4, 5)), T((4, 5), dtype="bool")), sample(T((4, 5)), T((5,), dtype="bool"))],
        NUMBERS,
        errors=[
            (lambda: weft.masked_select(weft.ones(2), weft.ones(2)), weft.DTypeError, "masked_select: given a mask"),
        ],
    ),
    Record(
        "bincount",
        lambda x, w, n: weft.bincount(x, w, n),
        lambda x, w, n: torch.bincount(x, w, n),
        [
            sample(T((9,), 0, 6, dtype="int64"), None, 0),
            sample(T((9,), 0, 6, dtype="int64"), T((9,), grad=False), 12),
            sample(T((0,), dtype="int64"), None, 3),
        ],
        FLOATS,
        differentiable=False,
        errors=[(lambda: weft.bincount(weft.tensor([-1])), weft.RangeError, "bincount: given the number -1")],
    ),
]
