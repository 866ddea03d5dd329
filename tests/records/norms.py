"""Records of normalisation by channel and group, of similarities, and of margin and divergence losses."""

import weft
import weft.nn.functional as F
from tests.records.oracle import TF, torch
from tests.records.record import NARROW, Record, T, sample

LABELS = T(dtype="int64", values=[0, 2, 1])
SIGNS = T((4,), values=[1.0, -1.0, 1.0, -1.0], grad=False)
WIDER = {"float32": (1e-4, 1e-5), "float64": (1e-9, 1e-10)}


def trained(functional):
    """A normalisation in training, with what it leaves in the running statistics."""

    def call(x, mean, variance, *rest):
        mean, variance = mean.detach().clone(), variance.detach().clone()
        y = functional(x, mean, variance, *rest, True, 0.3)
        return y, mean, variance

    return call


def record(name, *samples, errors=(), theirs=None, **options):
    options = {"without": NARROW, **options}
    return Record(name, getattr(F, name), theirs or getattr(TF, name), samples, errors=errors, **options)


def focal(z, y, alpha=0.25, gamma=2.0, reduction="none"):
    p = torch.sigmoid(z)
    cross = TF.binary_cross_entropy_with_logits(z, y, reduction="none")
    right = p * y + (1 - p) * (1 - y)
    loss = cross * (1 - right) ** gamma
    loss = loss if alpha < 0 else loss * (alpha * y + (1 - alpha) * (1 - y))
    return {"none": loss, "mean": loss.mean(), "sum": loss.sum()}[reduction]


def softmax_focal(z, y, alpha=0.25, gamma=2.0, reduction="mean", ignore_index=-100):
    logs = torch.log_softmax(z, 0 if z.dim() == 1 else 1)
    log_p = -TF.nll_loss(logs, y, reduction="none", ignore_index=ignore_index)
    share = 1.0 if alpha is None else alpha[torch.where(y == ignore_index, 0, y)] if torch.is_tensor(alpha) else alpha
    loss = -share * (1 - log_p.exp()) ** gamma * log_p
    count = (y != ignore_index).sum()
    return {"none": loss, "mean": loss.sum() / count, "sum": loss.sum()}[reduction]


def contrastive(a, b, y, margin=1.0):
    d = (a - b).norm(dim=-1)
    return (0.5 * (y * d**2 + (1 - y) * torch.relu(margin - d) ** 2)).mean()


def gaussian_kl(mean, log_variance):
    normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    standard = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    return torch.distributions.kl_divergence(normal, standard).sum(-1).mean()


def capsules(v, t):
    loss = t * torch.relu(0.9 - v) ** 2 + 0.5 * (1 - t) * torch.relu(v - 0.1) ** 2
    return loss.sum(-1).mean()


def refuses(call, kind, pattern):
    return [(call, kind, pattern)]


VECTOR, POSITIVE = T((3,)), T((3,), 0.5, 2.0)
RUNNING = (T((3,), grad=False), T((3,), 0.5, 2.0, grad=False))
NORMS = [
    Record(
        f"{name}_training",
        trained(getattr(F, name)),
        trained(getattr(TF, name)),
        [
            sample(T((4, 3, 2)), *RUNNING, VECTOR, VECTOR),
            sample(T((4, 3, 5, 6)), *RUNNING, None, None),
            sample(T((2, 3, 2, 3, 4)), *RUNNING, POSITIVE, None),
        ],
        tolerance=WIDER,
        without=NARROW,
        finite_differences=False,
    )
    for name in ("batch_norm", "instance_norm")
] + [
    Record(
        "batch_norm_of_rows",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: TF.batch_norm(x, None, None, w, b, training=True),
        [sample(T((5, 3)), VECTOR, VECTOR), sample(T((4, 3, 2, 2)), VECTOR, VECTOR)],
        tolerance=WIDER,
        without=NARROW,
        errors=[
            (
                lambda: F.batch_norm(weft.ones(1, 3), None, None, training=True),
                weft.ShapeError,
                "more than one element",
            ),
            (lambda: F.batch_norm(weft.ones(2, 3), None, None), weft.GraphError, "no running statistics"),
            (lambda: F.batch_norm(weft.ones(3), None, None, training=True), weft.ShapeError, r"shape \(3,\)"),
            (
                lambda: F.batch_norm(weft.ones(2, 3), None, None, weft.ones(2), training=True),
                weft.ShapeError,
                "one number per channel",
            ),
        ],
    ),
    Record(
        "batch_norm_inference",
        F.batch_norm,
        TF.batch_norm,
        [
            sample(T((4, 3)), *RUNNING),
            sample(T((4, 3, 2, 3)), *RUNNING, VECTOR, VECTOR),
            sample(T((0, 3, 2)), *RUNNING, VECTOR),
        ],
        tolerance=WIDER,
        without=NARROW,
    ),
    Record(
        "instance_norm",
        lambda x, *rest: F.instance_norm(x, None, None, *rest),
        lambda x, *rest: TF.instance_norm(x, None, None, *rest),
        [sample(T((2, 3, 5))), sample(T((2, 3, 2, 3)), VECTOR, VECTOR)],
        tolerance=WIDER,
        without=NARROW,
        errors=refuses(lambda: F.instance_norm(weft.ones(2, 3, 1)), weft.ShapeError, "more than one element"),
    ),
    record(
        "group_norm",
        sample(T((2, 4, 3)), 2, T((4,)), T((4,))),
        sample(T((2, 6, 3, 5)), 3),
        sample(T((2, 4)), 1, T((4,))),
        errors=refuses(lambda: F.group_norm(weft.ones(2, 3, 4), 2), weft.ShapeError, "num_groups=2 for 3 channels"),
        tolerance=WIDER,
    ),
    record(
        "local_response_norm",
        sample(T((2, 4, 3)), 3, alpha=0.5),
        sample(T((2, 5, 3, 2)), 2, 0.3, 0.5, 2.0),
        sample(T((1, 3, 2, 2, 2)), 5),
        errors=refuses(lambda: F.local_response_norm(weft.ones(2, 3), 2), weft.ShapeError, "at least three axes"),
    ),
    record("normalize", sample(T((3, 4))), sample(T((3, 4)), 1.0, 0), sample(T((2, 3, 2)), 3.0, -1), sample(T((0, 3)))),
    record(
        "cosine_similarity",
        sample(T((3, 4)), T((3, 4))),
        sample(T((3, 4)), T((4,)), dim=-1),
        sample(T((2, 3, 2)), T((2, 3, 2)), 2),
    ),
    record("pairwise_distance", sample(T((3, 4)), T((3, 4))), sample(T((3, 4)), T((4,)), 1.0, keepdim=True)),
]

PAIR = (T((3, 4)), T((3, 4)))
HALVES = T((3, 4), values=[[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]], grad=False)
LOSSES = [
    record(
        "sigmoid_focal_loss",
        sample(T((3, 4)), T((3, 4), 0.0, 1.0, grad=False)),
        sample(T((3, 4)), HALVES, reduction="mean"),
        sample(T((3, 4)), HALVES, -1.0, 1.5, reduction="sum"),
        theirs=focal,
    ),
    record(
        "softmax_focal_loss",
        sample(T((3, 4)), LABELS),
        sample(T((3, 4, 2)), T(dtype="int64", values=[[0, 2], [3, 1], [-100, 1]]), None, 1.5),
        sample(T((3, 4)), LABELS, T((4,), 0.1, 1.0), reduction="none"),
        sample(T((3, 4)), T(dtype="int64", values=[0, 1, 1]), T((4,), 0.1, 1.0), ignore_index=0),
        sample(T((4,)), T(dtype="int64", values=2), 0.5, 3.0, reduction="sum"),
        theirs=softmax_focal,
        errors=[
            *refuses(
                lambda: F.softmax_focal_loss(weft.ones(2, 3), weft.tensor([0, 1]), weft.ones(2)),
                weft.ShapeError,
                r"softmax_focal_loss: given alpha of shape \(2,\)",
            ),
            *refuses(
                lambda: F.softmax_focal_loss(weft.ones(2, 3), weft.tensor([0, 3])).numpy(), weft.IndexRangeError, "3"
            ),
            *refuses(
                lambda: F.softmax_focal_loss(weft.ones(2, 3), weft.tensor([0, 1]), reduction="x"),
                weft.RangeError,
                "reduction='x'",
            ),
        ],
    ),
    record(
        "triplet_margin_loss",
        sample(*PAIR, T((3, 4))),
        sample(*PAIR, T((3, 4)), 2.0, 1.0, reduction="none"),
        sample(*PAIR, T((3, 4)), swap=True, reduction="sum"),
    ),
    record(
        "contrastive_loss",
        sample(*PAIR, T((3,), values=[1.0, 0.0, 1.0], grad=False), 3.0),
        theirs=contrastive,
        errors=refuses(
            lambda: F.contrastive_loss(weft.ones(2, 3), weft.ones(2, 3), weft.ones(3)), weft.ShapeError, "each pair"
        ),
    ),
    record("gaussian_kl", sample(*PAIR), theirs=gaussian_kl),
    record("capsule_margin_loss", sample(T((3, 4), 0, 1), HALVES), theirs=capsules),
    record(
        "kl_div",
        sample(T((3, 4)), T((3, 4), 0.1, 1.0), reduction="sum"),
        sample(T((3, 4)), T((3, 4), 0.1, 1.0), reduction="batchmean"),
        sample(T((3, 4)), T((3, 4)), log_target=True, reduction="none"),
        sample(T((3, 4)), HALVES, reduction="sum"),
    ),
    record(
        "gaussian_nll_loss",
        sample(*PAIR, T((3, 4), 0.5, 2.0)),
        sample(*PAIR, T((3, 4), 0.5, 2.0), full=True, reduction="none"),
    ),
    record(
        "poisson_nll_loss",
        sample(T((3, 4)), T((3, 4), 0, 5, grad=False)),
        sample(T((3, 4), 0.5, 2.0), T((3, 4), 0, 5, grad=False), False, True, reduction="sum"),
    ),
    record(
        "margin_ranking_loss", sample(T((4,)), T((4,)), SIGNS), sample(T((4,)), T((4,)), SIGNS, 0.5, reduction="sum")
    ),
    record("hinge_embedding_loss", sample(T((4,)), SIGNS), sample(T((4,)), SIGNS, 2.0, reduction="none")),
    record(
        "cosine_embedding_loss",
        sample(T((4, 3)), T((4, 3)), SIGNS),
        sample(T((4, 3)), T((4, 3)), SIGNS, 0.1, reduction="none"),
        errors=refuses(
            lambda: F.cosine_embedding_loss(weft.ones(2, 3), weft.ones(2, 3), weft.ones(2, 3)),
            weft.ShapeError,
            r"\[N, D\]",
        ),
    ),
    record("soft_margin_loss", sample(T((4,)), SIGNS), sample(T((4,)), SIGNS, reduction="none")),
    record(
        "multilabel_soft_margin_loss",
        sample(T((3, 4)), HALVES),
        sample(T((3, 4)), HALVES, T((4,), grad=False), reduction="none"),
    ),
    record(
        "multi_margin_loss",
        sample(T((3, 4)), LABELS),
        sample(T((3, 4)), LABELS, 2, 0.5, T((4,), 0.5, 2, grad=False), reduction="none"),
        errors=[
            (lambda: F.multi_margin_loss(weft.ones(2, 3), weft.ones(2)), weft.ShapeError, "integer labels"),
            (lambda: F.multi_margin_loss(weft.ones(2, 3), weft.arange(2), 3), weft.RangeError, "p=3"),
        ],
    ),
]

SHRINK = [
    record("celu", sample(T((3, 4))), sample(T((3, 4)), 0.5), sample(T((0,)))),
    record("threshold", sample(T((3, 4)), 0.3, -1.0)),
    record("hardshrink", sample(T((3, 4))), sample(T((3, 4)), 1.2)),
    record("softshrink", sample(T((3, 4))), sample(T((3, 4)), 1.2)),
    record("tanhshrink", sample(T((3, 4)))),
    record("softmin", sample(T((3, 4)), 1), sample(T((3, 4)), 0)),
    record(
        "glu",
        sample(T((3, 4))),
        sample(T((4, 3)), 0),
        errors=refuses(lambda: F.glu(weft.ones(3)), weft.ShapeError, "an even extent"),
    ),
    record(
        "prelu",
        sample(T((3, 4)), T((1,))),
        sample(T((2, 3, 4)), T((3,))),
        errors=refuses(lambda: F.prelu(weft.ones(2, 3), weft.ones(2)), weft.ShapeError, "a weight of shape"),
    ),
]

RECORDS = [*NORMS, *LOSSES, *SHRINK]
