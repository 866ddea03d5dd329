"""Records of the ends that torch defines and that are easily missed: NaN and ties in gradients, tensors without axes,
empty tensors, negative sizes, arguments by position, and dtypes that meet."""

import math

import weft
import weft.nn.functional as F
from tests.records.network import ROUGH_SIXTH
from tests.records.oracle import TF, torch
from tests.records.record import ALL, FLOATS, INTEGERS, NARROW, NUMBERS, Record, T, sample

NAN, INF = math.nan, math.inf
# In threes: at NaN, torch's code for vectors on a CPU gives other slopes than that for single elements and for GPUs.
KINKS = [[NAN, 0.0, -0.0], [0.5, -0.5, 1.0], [-1.0, 3.0, -3.0], [6.0, 20.0, -20.0]]
ZEROS = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
ONE = T(values=2.5)
AT = T(values=0, dtype="int64")
AT_ONE = T(values=[0], dtype="int64")


def both(name, call, *samples, dtypes=FLOATS, **options):
    """One expression of (the module weft or torch, arguments...)."""
    ours, theirs = (lambda *args, **kwargs: call(weft, *args, **kwargs)), (lambda *a, **k: call(torch, *a, **k))
    return Record(name, ours, theirs, samples, dtypes, finite_differences=False, **options)


def kinks(name, **options):
    options.setdefault("without", NARROW)
    return Record(
        f"{name} at kinks", getattr(F, name), getattr(TF, name), [sample(T(values=values)) for values in KINKS],
        finite_differences=False, **options,
    )  # fmt: skip


def promoted(*pairs):
    """Tensors with and without axes, by (dtype, has axes)."""
    return [sample(*[T((2,) if axes else (), 1, 3, dtype=dtype) for dtype, axes in pair]) for pair in pairs]


LISTED = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
PAIRS = [((a, True), (b, False)) for a in LISTED for b in LISTED if a != b]
PAIRS += [((a, False), (b, False)) for a in ("int32", "float16") for b in ("int64", "float32")]

RECORDS = [
    Record("abs at NaN", weft.abs, torch.abs, [sample(T(values=values)) for values in KINKS], finite_differences=False),
    *[
        kinks(name)
        for name in (
            "elu",
            "celu",
            "selu",
            "relu",
            "relu6",
            "hardtanh",
            "hardswish",
            "hardshrink",
            "softshrink",
            "leaky_relu",
            "softplus",
            "silu",
            "logsigmoid",
            "softsign",
            "tanhshrink",
        )
    ],
    kinks("hardsigmoid", tolerance=ROUGH_SIXTH),
    *[
        both(
            f"{name} of all with NaN",
            lambda m, x, name=name: getattr(m, name)(x),
            sample(T(values=[NAN, 1.0, 2.0])),
            sample(T(values=[[1.0, NAN], [NAN, 0.0]])),
            sample(T(values=[2.0, 2.0, 2.0])),
        )
        for name in ("max", "min", "median")
    ],
    both(
        "max along an axis with NaN", lambda m, x: m.max(x, 1)[0], sample(T(values=[[1.0, NAN, NAN], [3.0, 3.0, 1.0]]))
    ),
    both(
        "var by position",
        lambda m, x, *args, **kwargs: x.var(*args, **kwargs),
        sample(T((3, 4)), False),
        sample(T((3, 4)), True),
        sample(T((3, 4)), 1, False),
        sample(T((3, 4)), 0, True, True),
        sample(T((3, 4)), (0, 1), unbiased=False),
    ),
    both(
        "std by position",
        lambda m, x, *args: x.std(*args),
        sample(T((3, 4)), False),
        sample(T((3, 4)), 1, False, True),
        sample(T((3, 4)), None),
    ),
    both(
        "std of constants",
        lambda m, x, *args: x.std(*args),
        sample(T(values=[2.0, 2.0, 2.0])),
        sample(T(values=[[1.0, 1.0], [1.0, 3.0]]), 1),
    ),
    *[
        both(
            f"matrix norm {order} of zeros and of equal singular values",
            lambda m, x, order=order: m.linalg.matrix_norm(x, order),
            sample(T(values=ZEROS)),
            sample(T(values=[[2.0, 0.0], [0.0, 2.0]])),
            without=NARROW,
        )
        for order in ("nuc", 2, -2, "fro")
    ],
    both(
        "eigenvalues that are equal",
        lambda m, x: m.linalg.eigvalsh(x),
        sample(T(values=[[2.0, 0.0], [0.0, 2.0]])),
        without=NARROW,
    ),
    both(
        "gaussian_nll_loss, one variance for each row",
        lambda m, *a: m.nn.functional.gaussian_nll_loss(*a),
        sample(T((3, 4)), T((3, 4)), T((3,), 0.5, 2.0)),
        sample(T((2, 3, 4)), T((2, 3, 4)), T((2, 3), 0.5, 2.0)),
        sample(T((3, 4)), T((3, 4)), T((3, 1), 0.5, 2.0)),
        without=NARROW,
    ),
    *[
        both(
            f"{mode} pad that cuts",
            lambda m, x, pad, mode=mode: m.nn.functional.pad(x, pad, mode=mode),
            sample(T((1, 2, 6)), (-1, 2)),
            sample(T((1, 2, 6)), (3, -2)),
            sample(T((1, 2, 6)), (-2, -1)),
            sample(T((1, 2, 3, 4)), (-1, 2, 1, -1)),
        )
        for mode in ("circular", "reflect", "replicate")
    ],
    both(
        "diff of order 0",
        lambda m, x, **kwargs: m.diff(x, n=0, **kwargs),
        sample(T((4,))),
        sample(T((2, 3)), dim=0),
        dtypes=ALL,
    ),
    both("squeeze of no axis", lambda m, x: x.squeeze(()), sample(T((1, 2, 1))), sample(T(()))),
    both(
        "unfold without axes",
        lambda m, x, *args: x.unfold(*args),
        sample(T(()), 0, 1, 1),
        sample(T(()), 0, 1, 3),
        sample(T(()), 0, 0, 1),
        sample(T((2, 3)), 1, 0, 2),
        dtypes=NUMBERS,
    ),
    both(
        "arange of whole numbers from floats",
        lambda m, *args: m.arange(*args, dtype=m.int64) + 0,
        *[sample(*args) for args in ((3.1,), (0.5, 3.1), (0, 5, 1.5), (-0.5, 3), (5, 0, -1.5), (2.9, 7.2, 2))],
        differentiable=False,
    ),
    both(
        "a product that promotes", lambda m, a, b: a * b, *promoted(*PAIRS), dtypes=("float32",), differentiable=False
    ),
    both(
        "where that promotes",
        lambda m, a, b: m.where(a == a, a, b),
        *promoted(*PAIRS),
        dtypes=("float32",),
        differentiable=False,
    ),
    both(
        "a sum that promotes",
        lambda m, a, b: a + b * 0.5,
        sample(T((3,), dtype="float16"), T((), dtype="float32")),
        sample(T((), dtype="float64"), T((3,), dtype="float32")),
        dtypes=("float32",),
        differentiable=False,
    ),
    both(
        "linspace of whole numbers",
        lambda m, *args: m.linspace(*args, dtype=m.int64) + 0,
        sample(4.3, -3, 50),
        sample(4.3, 50, 50),
        sample(-2.9, 2.9, 7),
        differentiable=False,
    ),
    both(
        "addmm of integers",
        lambda m, *args: m.addmm(*args, beta=1.7, alpha=2.9),
        sample(T((3, 5)), T((3, 4)), T((4, 5))),
        dtypes=INTEGERS,
        differentiable=False,
    ),
    both(
        "addr of bools",
        lambda m, *args: m.addr(*args, beta=3, alpha=2),
        sample(T((3, 4)), T((3,)), T((4,))),
        dtypes=("bool",),
        differentiable=False,
    ),
    # --- what crashed ---
    both(
        "products of integers",
        lambda m, a, b: a @ b,
        sample(T((32, 32), -9, 9), T((32, 32), -9, 9)),
        sample(T((33, 65), -9, 9), T((65, 31), -9, 9)),
        sample(T((3, 40, 50), -9, 9), T((3, 50, 60), -9, 9)),
        sample(T((40,), -9, 9), T((40, 50), -9, 9)),
        sample(T((2, 3, 33, 34), -9, 9), T((34, 35), -9, 9)),
        sample(T((5, 2000), -9, 9), T((2000, 3), -9, 9)),
        dtypes=INTEGERS,
        differentiable=False,
    ),
    both("sign of bools", lambda m, x: m.sign(x), sample(T((7,))), dtypes=("bool",), differentiable=False),
    *[
        both(
            f"{name} without axes",
            lambda m, *args, name=name: getattr(m, name)(*args),
            sample(ONE, 0, AT, T(values=4.0)),
            sample(ONE, 0, AT_ONE, T(values=[4.0])),
            sample(T(values=[1.5]), 0, AT, T(values=4.0)),
            dtypes=NUMBERS,
        )
        for name in ("scatter", "scatter_add")
    ],
    *[
        both(
            f"scatter_reduce {reduce} without axes",
            lambda m, *args, reduce=reduce: m.scatter_reduce(
                *args, reduce, include_self=args[0].dtype.is_floating_point
            ),
            sample(ONE, 0, AT, T(values=4.0)),
            sample(ONE, -1, AT_ONE, T(values=[4.0])),
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
    ],
    both(
        "gather without axes",
        lambda m, *args: m.gather(*args),
        sample(ONE, 0, AT),
        sample(ONE, 0, AT_ONE),
        sample(ONE, 0, T(values=[0, 0], dtype="int64")),
        dtypes=NUMBERS,
    ),
    both(
        "index_select without axes",
        lambda m, *args: m.index_select(*args),
        sample(ONE, 0, AT),
        sample(ONE, 0, AT_ONE),
        dtypes=NUMBERS,
        errors=[
            (lambda: weft.tensor(1.0).index_select(0, weft.tensor([0, 0])), weft.ShapeError, "index_select: given")
        ],
    ),
    both(
        "cat with empty vectors",
        lambda m, a, b, dim: m.cat([a, b, a], dim),
        sample(T((0,)), T((2, 3)), 1),
        sample(T((0,)), T((2, 3)), -2),
        sample(T((0,), dtype="float64"), T((2, 3)), 0),
        sample(T((0,)), T((0,)), 0),
    ),
    both(
        "index_put of bools",
        lambda m, x, i, v: x.index_put((i,), v, accumulate=True),
        sample(T((4,)), T(values=[0, 2, 2], dtype="int64"), T((3,))),
        dtypes=("bool",),
        differentiable=False,
    ),
    both(
        "index_put by a mask",
        lambda m, x, i, v: x.index_put((i,), v, accumulate=True),
        sample(T((3,)), T(values=[True, False, True], dtype="bool"), T((2,))),
        sample(T((3,)), T(values=[True, False, True], dtype="bool"), T(())),
        sample(T((2, 3)), T(values=[True, False], dtype="bool"), T((3,))),
        dtypes=NUMBERS,
    ),
    both(
        "take_along_dim from the end",
        lambda m, *args: m.take_along_dim(*args),
        sample(T((2, 3)), T(values=[[-1, 0], [1, -3]], dtype="int64"), 1),
        sample(T((2, 3)), T(values=[[-1, -2, 0]], dtype="int64"), 0),
        dtypes=NUMBERS,
        errors=[(lambda: weft.take_along_dim(weft.tensor(1.0), weft.tensor(0), 0), weft.ShapeError, "the same rank")],
    ),
    both(
        "max_unpool2d of windows that overlap",
        lambda m, x: m.nn.functional.max_unpool2d(
            *m.nn.functional.max_pool2d(x, 3, 1, 1, return_indices=True), 3, 1, 1
        ),
        sample(T((1, 2, 5, 4))),
    ),
    both(
        "replicate pad that cuts all",
        lambda m, x, pad: m.nn.functional.pad(x, pad, mode="replicate"),
        sample(T((1, 2, 4)), (-4, 5)),
        sample(T((1, 2, 4, 4)), (2, -4, -4, 3)),
    ),
    both("square of bools", lambda m, x: m.square(x), sample(T((5,))), dtypes=("bool",), differentiable=False),
]
