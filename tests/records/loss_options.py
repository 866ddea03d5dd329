"""Records of losses with their options: margins, weights, the flags that `reduction` replaced, distances of users."""

import warnings

import weft
import weft.nn.functional as F
from tests.records.functional_record import LOOSE, ones, record, refusal
from tests.records.oracle import TF
from tests.records.record import NARROW, NUMBERS, Record, T, sample

LABELS = T(dtype="int64", values=[[3, 0, -1, 1], [1, 2, 3, 0], [-1, 0, 0, 0]])
ROWS = T((3, 4))


def weighted(name):
    return record(
        name,
        lambda f, x, y, w, reduction: f(x, y, weight=w, reduction=reduction),
        [sample(ROWS, ROWS, T((3, 4), 0.5, 2.0), reduction) for reduction in ("mean", "sum", "none")],
        f"{name}_weighted",
        errors=[
            refusal(lambda: getattr(F, name)(ones(), ones(), weight=weft.ones(3)), "ShapeError", "a weight of shape")
        ],
    )


FIXED = T((3, 4), grad=False)


def old_flags(name, target=FIXED, input=ROWS):
    """`size_average` and `reduce` by name, of which torch warns."""
    flags = [(None, None), (True, None), (False, None), (None, False), (True, True)]
    ours, theirs = getattr(F, name), getattr(TF, name)

    def quiet(x, y, average, reduce):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return theirs(x, y, size_average=average, reduce=reduce)

    return Record(
        f"{name}_flags",
        lambda x, y, average, reduce: ours(x, y, size_average=average, reduce=reduce),
        quiet,
        [sample(input, target, *pair) for pair in flags],
        without=NARROW,
        errors=[refusal(lambda: ours(ones(), ones(), size_average="sum"), "RangeError", "size_average='sum'")],
    )


def triplet(label, samples, **kwargs):
    distances = {F: lambda x, y: (x - y).abs().sum(-1)}
    ours = lambda *a: F.triplet_margin_with_distance_loss(*a, distance_function=distances[F], **kwargs)  # noqa: E731
    theirs = lambda *a: TF.triplet_margin_with_distance_loss(*a, distance_function=distances[F], **kwargs)  # noqa: E731
    return Record(
        label,
        ours,
        theirs,
        samples,
        errors=[
            refusal(
                lambda: F.triplet_margin_with_distance_loss(ones(), ones(), ones(), margin=0), "RangeError", "margin=0"
            ),
            refusal(
                lambda: F.triplet_margin_with_distance_loss(ones(), ones(), ones()[0]), "ShapeError", "as many axes"
            ),
        ],
    )


RECORDS = [
    record(
        "multilabel_margin_loss",
        lambda f, *a, **k: f(*a, **k),
        [sample(ROWS, LABELS), sample(T((4,)), T(dtype="int64", values=[3, 1, -1, 0]))],
        without=NARROW,
        errors=[
            refusal(lambda: F.multilabel_margin_loss(ones(), ones()), "ShapeError", "integer labels"),
            refusal(lambda: F.multilabel_margin_loss(weft.ones(2, 0), weft.ones(2, 0).long()), "ShapeError", "C"),
            refusal(
                lambda: F.multilabel_margin_loss(ones(), weft.tensor([[3, 0, 0], [1, 0, 0]])).item(),
                "IndexRangeError",
                "the index 3",
            ),
        ],
    ),
    record(
        "multilabel_margin_loss",
        lambda f, *a: f(*a, reduction="none"),
        [sample(ROWS, LABELS)],
        "multilabel_margin_loss_none",
        without=NARROW,
    ),
    record(
        "multi_margin_loss",
        lambda f, x, y: f(x, y),
        [sample(T((5,)), T(dtype="int64", values=2))],
        "multi_margin_loss_one",
        without=NARROW,
        errors=[
            refusal(lambda: F.multi_margin_loss(ones(), weft.tensor([0, 3])).item(), "IndexRangeError", "the label 3"),
            refusal(
                lambda: F.multi_margin_loss(ones(), weft.tensor([0, 1]), weight=ones()),
                "ShapeError",
                "one number per class",
            ),
        ],
    ),
    weighted("mse_loss"),
    weighted("l1_loss"),
    weighted("huber_loss"),
    *[
        old_flags(name)
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "soft_margin_loss",
            "hinge_embedding_loss",
            "binary_cross_entropy_with_logits",
            "poisson_nll_loss",
        )
    ],
    old_flags("kl_div", T((3, 4), 0.1, 1.0)),
    old_flags("cross_entropy", T((3,), 0, 3, dtype="int64")),
    old_flags("nll_loss", T((3,), 0, 3, dtype="int64")),
    old_flags("multi_margin_loss", T((3,), 0, 3, dtype="int64")),
    old_flags("multilabel_soft_margin_loss", T((3, 4), 0.0, 1.0)),
    old_flags("binary_cross_entropy", T((3, 4), 0.0, 1.0), T((3, 4), 0.1, 0.9)),
    triplet("triplet_with_distance", [sample(ROWS, ROWS, ROWS)]),
    triplet("triplet_with_distance_swap", [sample(ROWS, ROWS, ROWS)], swap=True, margin=0.5, reduction="none"),
    record(
        "linear_cross_entropy",
        lambda f, x, w, y, b: f(x, w, y, linear_bias=b),
        [
            sample(T((3, 5)), T((4, 5)), T((3,), 0, 3, dtype="int64"), T((4,))),
            sample(T((3, 5)), T((4, 2, 5)), T((3, 2), 0, 3, dtype="int64"), T((4, 2))),
        ],
        errors=[
            refusal(
                lambda: F.linear_cross_entropy(ones(), weft.ones(4, 2), weft.tensor([0, 1])),
                "ShapeError",
                "linear_weight",
            )
        ],
        tolerance=LOOSE,
    ),
    record(
        "margin_ranking_loss",
        lambda f, *a: f(*a, margin=0.5),
        [sample(T((5,)), T((5,)), T(dtype="int64", values=[1, -1, 1, 1, -1]))],
        "margin_ranking_loss_integers",
        dtypes=NUMBERS,
        without=("int8", "int16", "uint8", "uint16", "uint32", "uint64"),
    ),
    record(
        "gaussian_nll_loss",
        lambda f, x, y: f(x, y, 0.5),
        [sample(ROWS, ROWS)],
        "gaussian_nll_loss_number",
        errors=[
            refusal(lambda: F.gaussian_nll_loss(ones(), ones(), -0.5), "RangeError", "var=-0.5"),
            refusal(lambda: F.gaussian_nll_loss(ones(), ones(), weft.ones(1, 1)), "ShapeError", "var of shape"),
        ],
    ),
    record(
        "cosine_embedding_loss",
        lambda f, *a: f(*a),
        [
            sample(
                T(values=[[0.0, 0.0], [1.0, 2.0]]),
                T(values=[[1.0, 1.0], [2.0, 1.0]]),
                T(dtype="float32", values=[1.0, -1.0], grad=False),
            )
        ],
        "cosine_embedding_loss_zero",
        dtypes=("float32",),
        without=NARROW,
        differentiable=False,
    ),
]
