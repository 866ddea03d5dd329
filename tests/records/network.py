"""Records of activations, normalisation, losses and creation."""

import math

import weft
import weft.nn.functional as F
from tests.records.oracle import TF, torch
from tests.records.record import NUMBERS, TOLERANCE, Record, T, sample

INF, NAN = math.inf, math.nan
EXTREMES = [-1e4, -100.0, -20.0, -1e-3, 1e-3, 20.0, 100.0, 1e4]


ROUGH_SIXTH = {"float32": (1e-5, 2e-6), "float64": (1e-7, 1e-8)}  # torch multiplies by 1/6 rounded to float32


def activation(name, *, extremes=EXTREMES, low=-4.0, high=4.0, tolerance=TOLERANCE, **options):
    """An activation on every form of input, and far out, where values and gradients must stay finite."""
    samples = [
        sample(T((3, 4), low, high)),
        sample(T((), low, high)),
        sample(T((0,))),
        sample(T((4, 3), low, high, layout="transposed")),
        sample(T((5, 17), low, high)),
    ]
    samples += [sample(T(values=extremes))] if extremes else []
    samples += [sample(T((6,), low, high), **options)] if options else []
    return Record(name, getattr(F, name), getattr(TF, name), samples, tolerance=tolerance)


def loss(name, target=None, prediction=None, extra=(), errors=()):
    """A loss of two equal shapes under every reduction."""
    a, b = prediction or T((3, 4)), target or T((3, 4))
    call = getattr(F, name)
    samples = [sample(a, b, reduction=reduction) for reduction in ("mean", "sum", "none")]
    refused = [
        (lambda: call(weft.ones(3), weft.ones(4)), weft.ShapeError, rf"{name}: given input \(3,\) and target \(4,\)"),
        (lambda: call(weft.ones(3), weft.ones(3), reduction="middle"), weft.RangeError, "reduction='middle'"),
        *errors,
    ]
    return Record(name, call, getattr(TF, name), [*samples, *extra], errors=refused)


LABELS = T(dtype="int64", values=[1, 0, 4])
LOGITS = T((3, 5), -3.0, 3.0)
IGNORED = T(dtype="int64", values=[1, -100, 4])
WEIGHT = T((5,), 0.5, 2.0, grad=False)


def entropy(name, logits):
    return [sample(logits, LABELS, reduction=reduction) for reduction in ("mean", "sum", "none")] + [
        sample(logits, IGNORED),
        sample(logits, LABELS, ignore_index=0),
        sample(logits, IGNORED, WEIGHT),
        sample(logits, LABELS, WEIGHT, reduction="none"),
        sample(T((2, 4, 3)), T((2, 3), 0, 3, dtype="int64")),
        sample(T((4,)), T(dtype="int64", values=2)),
        sample(T((70, 33)), T((70,), 0, 32, dtype="int64")),
    ]


RECORDS = [
    Record(
        "relu",
        F.relu,
        TF.relu,
        [
            sample(T((3, 4))),
            sample(T(values=[0.0, -0.0, 1.0, -1.0, INF, -INF])),
            sample(T((0,))),
            sample(T((4, 3), layout="transposed")),
        ],
        NUMBERS,
    ),
    activation("relu6", low=-8.0, high=8.0),
    activation("leaky_relu", negative_slope=0.2),
    activation("elu", alpha=0.7),
    activation("selu"),
    activation("gelu", approximate="tanh"),
    activation("silu"),
    activation("mish", extremes=[-30.0, 30.0]),
    activation("softplus", beta=2.0, threshold=5.0),
    activation("softsign"),
    activation("hardswish", low=-2.9, high=2.9, extremes=[-5.0, 5.0]),
    activation("hardsigmoid", low=-2.9, high=2.9, extremes=[-5.0, 5.0], tolerance=ROUGH_SIXTH),
    activation("hardtanh"),
    activation("logsigmoid"),
    activation("sigmoid"),
    activation("tanh", extremes=[-30.0, 30.0]),
    Record("sigmoid_at_zero", weft.sigmoid, torch.sigmoid, [sample(T(values=[0.0, -0.0]))]),
    Record(
        "gelu_errors",
        F.gelu,
        TF.gelu,
        [sample(T((3,)))],
        errors=[
            (lambda: F.gelu(weft.ones(1), "fast"), weft.RangeError, "approximate='fast'"),
            (lambda: F.gelu(weft.arange(2)), weft.DTypeError, "gelu: given a int64 tensor"),
        ],
    ),
    Record(
        "layer_norm",
        F.layer_norm,
        TF.layer_norm,
        [
            sample(T((3, 4)), (4,)),
            sample(T((3, 4)), (4,), T((4,)), T((4,))),
            sample(T((2, 3, 4)), (3, 4), T((3, 4)), T((3, 4)), 1e-3),
            sample(T((5, 33)), (33,), T((33,)), None),
            sample(T((5, 33), layout="sliced"), (33,)),
        ],
        tolerance={"float32": (2e-5, 1e-5), "float64": (1e-10, 1e-11)},
        errors=[
            (
                lambda: F.layer_norm(weft.ones(2, 3), (4,)),
                weft.ShapeError,
                r"layer_norm: given shape \(2, 3\) with normalized_shape \(4,\)",
            ),
            (lambda: F.layer_norm(weft.ones(2, 3), (3,), weft.ones(2)), weft.ShapeError, "a weight or bias"),
        ],
    ),
    Record(
        "rms_norm",
        F.rms_norm,
        TF.rms_norm,
        [sample(T((3, 4)), (4,)), sample(T((3, 4)), (4,), T((4,)), 1e-3), sample(T((2, 3, 4)), (3, 4), T((3, 4)))],
        tolerance={"float32": (2e-5, 1e-5), "float64": (1e-10, 1e-11)},
    ),
    loss("mse_loss"),
    loss("l1_loss"),
    loss("smooth_l1_loss", extra=[sample(T((3, 4)), T((3, 4)), beta=0.5)]),
    loss("huber_loss", extra=[sample(T((3, 4)), T((3, 4)), delta=0.5)]),
    loss(
        "binary_cross_entropy",
        T((3, 4), 0.0, 1.0),
        T((3, 4), 0.1, 0.9),
        [sample(T((3, 4), 0.1, 0.9), T((3, 4), 0.0, 1.0), T((3, 4), 0.5, 2.0, grad=False))],
    ),
    loss(
        "binary_cross_entropy_with_logits",
        T((3, 4), 0.0, 1.0),
        T((3, 4), -5.0, 5.0),
        [
            sample(T((3, 4)), T((3, 4), 0.0, 1.0), T((3, 4), 0.5, 2.0, grad=False)),
            sample(T(values=EXTREMES), T((8,), 0.0, 1.0)),
            sample(T(values=[0.0]), T(values=[0.25])),
        ],
    ),
    Record(
        "bce_pos_weight",
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
        lambda x, y, w: TF.binary_cross_entropy_with_logits(x, y, pos_weight=w),
        [sample(T((3, 4)), T((3, 4), 0.0, 1.0), T((4,), 0.5, 2.0, grad=False))],
    ),
    Record(
        "nll_loss",
        F.nll_loss,
        lambda x, *a, **k: TF.nll_loss(x, *a, **k),
        entropy("nll_loss", LOGITS)[:-2],
        errors=[
            (lambda: F.nll_loss(weft.ones(2, 3), weft.ones(2)), weft.DTypeError, "nll_loss: given a target of float32")
        ],
    ),
    Record(
        "cross_entropy",
        F.cross_entropy,
        TF.cross_entropy,
        [
            *entropy("cross_entropy", LOGITS),
            sample(LOGITS, LABELS, label_smoothing=0.1),
            sample(LOGITS, IGNORED, WEIGHT, None, -100, None, "mean", 0.2),
            sample(LOGITS, T((3, 5), 0.0, 1.0)),
            sample(LOGITS, T((3, 5), 0.0, 1.0), WEIGHT, label_smoothing=0.1),
            sample(T((2, 4, 3)), T((2, 4, 3), 0.0, 1.0)),
            sample(T((3, 5), 900.0, 1000.0), LABELS),
        ],
        errors=[
            (
                lambda: F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 1, 2])),
                weft.ShapeError,
                r"cross_entropy: given input \(2, 3\) and target \(3,\)",
            ),
            (
                lambda: F.cross_entropy(weft.arange(3), weft.tensor(0)),
                weft.DTypeError,
                "cross_entropy: given a int64 tensor",
            ),
            (
                lambda: F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 1]), label_smoothing=2),
                weft.RangeError,
                "label_smoothing=2",
            ),
            (
                lambda: F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 1]), weft.ones(2)),
                weft.ShapeError,
                "a weight of shape",
            ),
        ],
    ),
    Record(
        "cross_entropy_int32",
        F.cross_entropy,
        lambda x, y: TF.cross_entropy(x, y.long()),
        [sample(LOGITS, T(dtype="int32", values=[1, 0, 4]))],
    ),
    Record(
        "arange",
        weft.arange,
        torch.arange,
        [sample(5), sample(2, 9, 3), sample(5, 0, -2), sample(0.0, 1.0, 0.1), sample(0)],
        ("float32",),
        differentiable=False,
        errors=[(lambda: weft.arange(0, 5, -1), weft.ShapeError, "arange: given 0 to 5 by -1")],
    ),
    Record(
        "linspace",
        weft.linspace,
        torch.linspace,
        [sample(0, 1, 5), sample(-3.0, 7.0, 11), sample(0, 1, 1), sample(0, 1, 0)],
        ("float32",),
        differentiable=False,
    ),
    Record("eye", weft.eye, torch.eye, [sample(3), sample(2, 4), sample(0)], ("float32",), differentiable=False),
    Record(
        "full",
        weft.full,
        torch.full,
        [sample((2, 3), 1.5), sample((2,), 7), sample((), True)],
        ("float32",),
        differentiable=False,
        errors=[
            (lambda: weft.full((2,), 2**40, dtype=weft.int32), weft.DTypeError, "full: given the number 1099511627776"),
            (lambda: weft.zeros(-1), weft.ShapeError, "zeros: given shape"),
        ],
    ),
    Record("zeros_like", weft.zeros_like, torch.zeros_like, [sample(T((2, 3)))], NUMBERS, differentiable=False),
    Record("ones_like", weft.ones_like, torch.ones_like, [sample(T((2, 3)))], NUMBERS, differentiable=False),
]
