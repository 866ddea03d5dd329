"""Records of functions of sequences: the loss of connectionist temporal classification, bags of embeddings, attention
with its projections."""

import weft
import weft.nn.functional as F
from tests.records.functional_record import LOOSE, record, refusal
from tests.records.oracle import TF, torch
from tests.records.record import NARROW, Record, T, sample

ROUGH = {"float32": (1e-4, 1e-4), "float64": (1e-9, 1e-10)}  # of projections of projections

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

RECORDS = [*CTC, *EMBEDDINGS, *ATTENTION]
