"""Records of other functions of `nn.functional`: bilinear forms, distances, fractional pooling, integers in
convolutions and pooling, and arguments that are refused."""

import weft
import weft.nn.functional as F
from tests.records.functional_record import LOOSE, ones, record, refusal
from tests.records.oracle import TF, torch
from tests.records.record import NARROW, Record, T, sample

INF = float("inf")


def integers(name, samples):
    return record(
        name, lambda f, *a, **k: f(*a, **k), samples, f"{name}_integers", dtypes=("int64",), differentiable=False
    )


def fractional(rank):
    name = f"fractional_max_pool{rank}d"
    ours, theirs = getattr(F, name), getattr(TF, name)
    size, counts = (2, 3, 2)[:rank], (4, 3, 3)[:rank]

    def call(f):
        return lambda x, u: f(x, size, output_size=counts, return_indices=True, _random_samples=u)

    def plain():
        return weft.ones(1, 2, *(5,) * rank)

    samples = [
        sample(T((2, 3, *(7, 6, 5)[:rank])), T((2, 3, rank), 0.0, 0.99, grad=False)),
        sample(T((3, *(6, 9, 6)[:rank])), T((1, 3, rank), 0.0, 0.99, grad=False)),
    ]
    return Record(
        name,
        call(ours),
        call(theirs),
        samples,
        without=NARROW,
        errors=[
            refusal(lambda: ours(plain(), 2), "ShapeError", "one of the two"),
            refusal(lambda: ours(plain(), 2, 5), "ShapeError", "windows whose starts differ"),
            refusal(lambda: ours(plain(), 2, output_ratio=1.5), "ShapeError", "between 0 and 1"),
            refusal(lambda: ours(plain()[0, 0], 2, 2), "ShapeError", "without the batch"),
        ],
    )


OTHERS = [
    Record("linear_of_a_vector", F.linear, TF.linear, [sample(T((3, 4)), T((4,))), sample(T((4,)), T((4,)))]),
    Record(
        "bilinear",
        F.bilinear,
        TF.bilinear,
        [
            sample(T((3, 4)), T((3, 5)), T((2, 4, 5)), T((2,))),
            sample(T((4,)), T((5,)), T((2, 4, 5))),
            sample(T((2, 3, 4)), T((2, 3, 1)), T((6, 4, 1))),
            sample(T((0, 4)), T((0, 5)), T((2, 4, 5))),
        ],
        tolerance=LOOSE,
        without=NARROW,
        errors=[
            refusal(lambda: F.bilinear(ones(), ones(), weft.ones(2, 3, 4)), "ShapeError", "[O, I, J]"),
            refusal(lambda: F.bilinear(ones(), ones(), weft.ones(2, 3, 3), weft.ones(3)), "ShapeError", "a bias"),
        ],
    ),
    Record(
        "pdist",
        F.pdist,
        TF.pdist,
        [
            sample(T((5, 3))),
            sample(T((4, 2)), 1.0),
            sample(T((3, 4)), INF),
            sample(T((4, 3)), 1.5),
            sample(T((2, 3))),
            sample(T((40, 2))),
        ],
        without=NARROW,
        errors=[
            refusal(lambda: F.pdist(weft.ones(3)), "ShapeError", r"\[N, M\]"),
            refusal(lambda: F.pdist(ones(), -1.0), "RangeError", "p=-1.0"),
        ],
    ),
    Record(
        "pdist_few", F.pdist, TF.pdist, [sample(T((1, 3))), sample(T((0, 3)))], differentiable=False, without=NARROW
    ),
    Record(
        "softmax_to_float64",
        lambda x: F.softmax(x, 1, dtype=weft.float64),
        lambda x: TF.softmax(x, 1, dtype=torch.float64),
        [sample(T((3, 4)))],
        ("float32", "int64"),
        differentiable=False,
        without=NARROW,
    ),
    Record(
        "softmin_to_float64",
        lambda x: F.softmin(x, 1, dtype=weft.float64),
        lambda x: TF.softmin(x, 1, dtype=torch.float64),
        [sample(T((3, 4)))],
        ("float32", "int64"),
        differentiable=False,
        without=NARROW,
    ),
    Record(
        "log_softmax_to_float64",
        lambda x: F.log_softmax(x, 1, dtype=weft.float64),
        lambda x: TF.log_softmax(x, 1, dtype=torch.float64),
        [sample(T((3, 4)))],
        ("float32",),
        without=NARROW,
        differentiable=False,
    ),
    Record(
        "rrelu",
        lambda x: F.rrelu(x, 0.1, 0.5),
        lambda x: TF.rrelu(x, 0.1, 0.5),
        [sample(T((3, 4)))],
        errors=[refusal(lambda: F.rrelu(ones(), 0.5, 0.1), "RangeError", "lower=0.5 and upper=0.1")],
    ),
    Record(
        "one_hot_counted",
        lambda x: F.one_hot(x, 4),
        TF.one_hot,
        [sample(T(dtype="int64", values=[3, 0, 1]))],
        ("int64",),
        differentiable=False,
    ),
    fractional(2),
    fractional(3),
    integers("conv1d", [sample(T((2, 4, 9)), T((6, 2, 3)), T((6,)), 2, 1, 1, 2)]),
    integers(
        "conv2d",
        [
            sample(T((2, 3, 6, 5)), T((4, 3, 3, 2)), None, (2, 1), (1, 2), (1, 2)),
            sample(T((3, 6, 5)), T((4, 3, 3, 3)), T((4,)), padding="same"),
        ],
    ),
    integers("conv3d", [sample(T((1, 2, 4, 5, 3)), T((3, 2, 2, 2, 1)), T((3,)))]),
    integers(
        "conv_transpose1d",
        [sample(T((2, 4, 5)), T((4, 3, 3)), T((6,)), 2, 1, 1, 2, 1), sample(T((1, 2, 4)), T((2, 1, 2)), None, 3, 3)],
    ),
    integers("conv_transpose2d", [sample(T((1, 2, 3, 4)), T((2, 3, 3, 2)), T((3,)), (2, 1), 1, (1, 0), 1, 2)]),
    integers("conv_transpose3d", [sample(T((2, 2, 2, 3)), T((2, 1, 2, 2, 2)), None, 2)]),
    integers("avg_pool1d", [sample(T((2, 3, 7), -9, 9), 3, 2, 1)]),
    integers(
        "avg_pool2d",
        [sample(T((2, 3, 7, 6), -9, 9), 3, 2, 1, True, False), sample(T((1, 1, 4, 4), -9, 9), 2, divisor_override=-3)],
    ),
    integers("avg_pool3d", [sample(T((1, 2, 4, 5, 3), -9, 9), 2)]),
    integers("local_response_norm", [sample(T((1, 4, 3)), 2, 0.5)]),
    Record(
        "bilinear_integers",
        F.bilinear,
        TF.bilinear,
        [sample(T((3, 4)), T((3, 5)), T((2, 4, 5)), T((2,)))],
        ("int64",),
        differentiable=False,
    ),
    integers("softsign", [sample(T((3, 4)))]),
    integers("tanhshrink", [sample(T((3, 4)))]),
]

REFUSED = Record(
    "silent_before",
    F.relu,
    TF.relu,
    [sample(T((2,)))],
    errors=[
        refusal(lambda: F.huber_loss(ones(), ones(), delta=-1.0), "RangeError", "huber_loss: given delta=-1.0"),
        refusal(lambda: F.smooth_l1_loss(ones(), ones(), beta=-1.0), "RangeError", "smooth_l1_loss: given beta=-1.0"),
        refusal(lambda: F.triplet_margin_loss(ones(), ones(), ones(), margin=-1.0), "RangeError", "margin=-1.0"),
        refusal(lambda: F.triplet_margin_loss(ones(), ones(), ones()[0]), "ShapeError", "as many axes"),
        refusal(lambda: F.margin_ranking_loss(ones(), ones(), ones()[0]), "ShapeError", "as many axes"),
        refusal(lambda: F.hardtanh(ones(), 1.0, -1.0), "RangeError", "min_val=1.0 and max_val=-1.0"),
        refusal(lambda: F.celu(ones(), 0), "RangeError", "alpha=0"),
        refusal(lambda: F.softshrink(ones(), -0.5), "RangeError", "lambd=-0.5"),
        refusal(lambda: F.max_pool3d(weft.ones(0, 1, 2, 3), 1), "ShapeError", "elements along every axis"),
        refusal(lambda: F.avg_pool2d(weft.ones(1, 0, 2, 3), 1), "ShapeError", "elements along every axis"),
        refusal(lambda: F.avg_pool2d(weft.ones(1, 1, 2, 3, dtype=weft.int32), 1), "DTypeError", "int32"),
        refusal(lambda: F.dropout1d(weft.ones(3)), "ShapeError", r"\[N, C, L\] or \[C, L\]"),
        refusal(lambda: F.dropout2d(ones(), 1.5), "RangeError", "p=1.5"),
        refusal(lambda: F.one_hot(weft.tensor([-1, 2])), "RangeError", "the class -1"),
        refusal(lambda: F.normalize(ones(), out=ones()), "RangeError", "out="),
    ],
)

RECORDS = [*OTHERS, REFUSED]
