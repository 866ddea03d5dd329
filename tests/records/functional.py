"""Records of functions of `nn.functional` that are more than one operation: sequence and margin losses, bags of
embeddings, attention with its projections, bilinear forms, and integers in convolutions and pooling."""

import warnings

import weft
import weft.nn.functional as F
from tests.records.oracle import TF, torch
from tests.records.record import NARROW, NUMBERS, Record, T, sample

INF = float("inf")
ROUGH = {"float32": (1e-4, 1e-4), "float64": (1e-9, 1e-10)}  # of projections of projections
LOOSE = {"float32": (2e-5, 1e-5), "float64": (1e-9, 1e-10)}


def both(name, arguments):
    """A function here and in torch, called as `arguments(function, *tensors)` says."""
    ours, theirs = getattr(F, name), getattr(TF, name)
    return (
        lambda *args, **kwargs: arguments(ours, *args, **kwargs),
        lambda *args, **kwargs: arguments(theirs, *args, **kwargs),
    )


def record(name, arguments, samples, label="", **options):
    ours, theirs = both(name, arguments)
    return Record(label or name, ours, theirs, samples, **options)


def refusal(call, kind, pattern):
    return (call, getattr(weft, kind), pattern)


# --- ctc -------------------------------------------------------------------------------------------------------------

TARGETS = T(dtype="int64", values=[[1, 1, 3], [2, 4, 0], [3, 0, 0]])
TIMES, SIZES = T(dtype="int64", values=[7, 6, 2]), T(dtype="int64", values=[3, 2, 1])
IN_ONE = T(dtype="int64", values=[1, 1, 3, 2, 4, 3])


def ctc(label, arguments, samples, **options):
    """The gradient goes through `log_softmax`: of normalised probabilities alone finite differences agree with it."""
    ours = lambda x, *args: arguments(F.ctc_loss, weft.log_softmax(x, -1), *args)  # noqa: E731
    theirs = lambda x, *args: arguments(TF.ctc_loss, torch.log_softmax(x, -1), *args)  # noqa: E731
    return Record(label, ours, theirs, samples, tolerance=LOOSE, without=NARROW, **options)


def log_probs():
    return weft.log_softmax(weft.ones(4, 2, 3), -1)


def pair():
    return weft.tensor([[1], [2]])


CTC = [
    ctc(
        "ctc_loss",
        lambda f, *a: f(*a),
        [sample(T((7, 3, 5)), TARGETS, TIMES, SIZES)],
        errors=[
            refusal(lambda: F.ctc_loss(log_probs(), pair(), (4, 5), (1, 1)), "RangeError", "input_lengths from 4 to 5"),
            refusal(
                lambda: F.ctc_loss(log_probs(), pair(), (4, 4), (1, 2)), "RangeError", "target_lengths from 1 to 2"
            ),
            refusal(lambda: F.ctc_loss(log_probs(), pair(), (4, 4), (-1, 1)), "RangeError", "target_lengths from -1"),
            refusal(lambda: F.ctc_loss(log_probs(), pair(), (4,), (1, 1)), "ShapeError", "1 input_lengths"),
            refusal(lambda: F.ctc_loss(log_probs(), pair(), (4, 4), (1, 1), 3), "RangeError", "blank=3 for 3 classes"),
            refusal(lambda: F.ctc_loss(log_probs(), pair().float(), (4, 4), (1, 1)), "ShapeError", "integer targets"),
            refusal(
                lambda: F.ctc_loss(log_probs(), pair(), (4, 4), (1, 1), reduction="x"), "RangeError", "reduction='x'"
            ),
            refusal(lambda: F.ctc_loss(log_probs().long(), pair(), (4, 4), (1, 1)), "DTypeError", "int64"),
        ],
    ),
    ctc("ctc_loss_sum", lambda f, *a: f(*a, (7, 6, 2), (3, 2, 1), reduction="sum"), [sample(T((7, 3, 5)), TARGETS)]),
    ctc(
        "ctc_loss_none",
        lambda f, *a: f(*a, reduction="none"),
        [sample(T((7, 3, 5)), IN_ONE, TIMES, SIZES), sample(T((33, 3, 5)), IN_ONE, TIMES, SIZES)],
    ),
    ctc(
        "ctc_loss_blank",
        lambda f, *a: f(*a, (7, 7), (2, 0), blank=4, reduction="none"),
        [sample(T((7, 2, 5)), T(dtype="int64", values=[[1, 0], [2, 3]]))],
    ),
    ctc(
        "ctc_loss_one",
        lambda f, *a: f(*a, (6,), (2,), reduction="none"),
        [sample(T((6, 4)), T(dtype="int64", values=[1, 3]))],
    ),
    ctc(
        "ctc_loss_too_long",
        lambda f, *a: f(*a, (2, 7), (3, 1), zero_infinity=True),
        [sample(T((7, 2, 5)), T(dtype="int64", values=[[1, 1, 3], [2, 0, 0]]))],
    ),
]

# --- embeddings ------------------------------------------------------------------------------------------------------

TABLE = T((6, 5))
BAGS = T(dtype="int64", values=[[0, 2, 2], [5, 1, 0]])
FLAT = T(dtype="int64", values=[0, 2, 2, 5, 1, 0])
OFFSETS, ENDS = T(dtype="int64", values=[0, 2, 2]), T(dtype="int64", values=[0, 2, 2, 6])


def ids():
    return weft.tensor([0, 1, 1])


def table():
    return weft.ones(3, 2)


def bag(label, samples, **kwargs):
    return [
        record("embedding_bag", lambda f, *a, mode=mode: f(*a, mode=mode, **kwargs), samples, f"{label}_{mode}")
        for mode in ("sum", "mean", "max")
    ]


EMBEDDINGS = [
    *bag("embedding_bag", [sample(BAGS, TABLE), sample(FLAT, TABLE, OFFSETS)]),
    *bag("embedding_bag_padding", [sample(BAGS, TABLE), sample(FLAT, TABLE, OFFSETS)], padding_idx=-4),
    *bag("embedding_bag_last", [sample(FLAT, TABLE, ENDS)], include_last_offset=True),
    record(
        "embedding_bag",
        lambda f, i, w, s: f(i, w, mode="sum", per_sample_weights=s, padding_idx=2),
        [sample(BAGS, TABLE, T((2, 3)))],
        "embedding_bag_weighted",
        without=NARROW,
        errors=[
            refusal(lambda: F.embedding_bag(ids(), table()), "ShapeError", "offsets None"),
            refusal(lambda: F.embedding_bag(ids()[None], table(), ids()), "ShapeError", "without offsets"),
            refusal(lambda: F.embedding_bag(ids()[None], table(), mode="min"), "RangeError", "mode='min'"),
            refusal(lambda: F.embedding_bag(ids()[None], table(), padding_idx=3), "RangeError", "padding_idx=3"),
            refusal(
                lambda: F.embedding_bag(ids()[None], table(), mode="max", scale_grad_by_freq=True),
                "RangeError",
                "scale_grad_by_freq",
            ),
            refusal(
                lambda: F.embedding_bag(ids()[None], table(), per_sample_weights=weft.ones(1, 3)),
                "RangeError",
                "per_sample_weights with mode='mean'",
            ),
            refusal(
                lambda: F.embedding_bag(ids()[None], table(), mode="sum", per_sample_weights=weft.ones(3)),
                "ShapeError",
                "per_sample_weights of shape",
            ),
        ],
    ),
    record(
        "embedding",
        lambda f, i, w: f(i, w, scale_grad_by_freq=True, padding_idx=0),
        [sample(BAGS, TABLE)],
        "embedding_frequency",
        finite_differences=False,
    ),
]

# --- attention -------------------------------------------------------------------------------------------------------


def heads(label, samples, arguments, **options):
    """The weights of attention are a second result."""
    return record("multi_head_attention_forward", arguments, samples, label, tolerance=ROUGH, without=NARROW, **options)


SELF = (T((3, 2, 4)), T((12, 4)), T((12,)), T((4, 4)), T((4,)))
MASK = T(dtype="bool", values=[[False, True, False], [False, False, True], [False, False, False]])
PADDING = T(dtype="bool", values=[[False, False, True], [False, False, False]])


def forward(*args, query=(3, 2, 4), count=2, **kwargs):
    q, x, weight, out = weft.ones(*query), weft.ones(3, 2, 4), weft.ones(12, 4), weft.ones(4, 4)
    return F.multi_head_attention_forward(
        q, x, x, 4, count, weight, None, None, None, False, 0.0, out, None, *args, **kwargs
    )


ATTENTION = [
    heads(
        "multi_head_attention",
        [sample(*SELF)],
        lambda f, x, w, b, o, c: f(x, x, x, 4, 2, w, b, None, None, False, 0.0, o, c),
        errors=[
            refusal(lambda: forward(count=3), "ShapeError", "num_heads=3"),
            refusal(lambda: forward(query=(3, 4)), "ShapeError", r"query \(3, 4\)"),
            refusal(lambda: forward(is_causal=True), "RangeError", "is_causal=True without attn_mask"),
            refusal(lambda: forward(attn_mask=weft.ones(2, 3)), "ShapeError", "an attn_mask of shape"),
            refusal(lambda: forward(key_padding_mask=weft.ones(3, 2)), "ShapeError", "a key_padding_mask of shape"),
            refusal(lambda: forward(use_separate_proj_weight=True), "RangeError", "no weight for a projection"),
        ],
    ),
    heads(
        "multi_head_attention_masked",
        [sample(*SELF, MASK, PADDING)],
        lambda f, x, w, b, o, c, m, p: f(
            x, x, x, 4, 2, w, b, None, None, True, 0.5, o, c, False, p, attn_mask=m, average_attn_weights=False
        ),
    ),
    heads(
        "multi_head_attention_biased",
        [sample(*SELF, T((1, 1, 4)), T((1, 1, 4)), T((4, 3, 3)))],
        lambda f, x, w, b, o, c, k, v, m: f(x, x, x, 4, 2, w, b, k, v, False, 0.0, o, c, attn_mask=m),
    ),
    heads(
        "multi_head_attention_fused",
        [sample(*SELF, MASK, PADDING)],
        lambda f, x, w, b, o, c, m, p: f(x, x, x, 4, 2, w, b, None, None, False, 0.0, o, c, True, p, False, m)[0],
    ),
    heads(
        "multi_head_attention_causal",
        [sample(*SELF, T(dtype="bool", values=[[False, True, True], [False, False, True], [False, False, False]]))],
        lambda f, x, w, b, o, c, m: f(
            x, x, x, 4, 2, w, b, None, None, False, 0.0, o, c, need_weights=False, attn_mask=m, is_causal=True
        )[0],
    ),
    heads(
        "multi_head_attention_separate",
        [sample(T((3, 4)), T((5, 6)), T((5, 2)), T((4, 4)), T((4, 6)), T((4, 2)), T((12,)), T((4, 4)))],
        lambda f, q, k, v, wq, wk, wv, b, o: f(
            q,
            k,
            v,
            4,
            2,
            None,
            b,
            None,
            None,
            False,
            0.0,
            o,
            None,
            use_separate_proj_weight=True,
            q_proj_weight=wq,
            k_proj_weight=wk,
            v_proj_weight=wv,
        ),
    ),
    heads(
        "multi_head_attention_static",
        [sample(*SELF, T((4, 6, 2)), T((4, 6, 2)))],
        lambda f, x, w, b, o, c, k, v: f(x, x, x, 4, 2, w, b, None, None, False, 0.0, o, c, static_k=k, static_v=v),
    ),
    Record(
        "attention_ranks",
        F.scaled_dot_product_attention,
        TF.scaled_dot_product_attention,
        [sample(T((4, 3, 8)), T((2, 4, 6, 8)), T((2, 4, 6, 8)))],
        tolerance=LOOSE,
        without=NARROW,
    ),
]

# --- losses ----------------------------------------------------------------------------------------------------------

LABELS = T(dtype="int64", values=[[3, 0, -1, 1], [1, 2, 3, 0], [-1, 0, 0, 0]])
ROWS = T((3, 4))


def ones():
    return weft.ones(2, 3)


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


LOSSES = [
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

# --- the rest --------------------------------------------------------------------------------------------------------


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

RECORDS = [*CTC, *EMBEDDINGS, *ATTENTION, *LOSSES, *OTHERS, REFUSED]
