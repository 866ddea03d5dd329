"""Records of the losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, of_torch
from tests.layers.record import Bad, Case, Draw, LayerRecord

REDUCTION = Bad(call=lambda layer: type(layer)(reduction="average"), match="reduction='average'", error=weft.RangeError)

LABELS_OUT_OF_RANGE = Bad(
    call=lambda layer: layer(weft.zeros(2, 4), weft.tensor([1, 9])), match="9", error=weft.WeftError
)


def _shapes(count: int) -> Bad:
    """Inputs that do not fit each other."""
    inputs = [weft.ones(3, 4), weft.ones(5, 7), weft.ones(2, 9)][:count]
    return Bad(call=lambda layer: layer(*inputs), match=r"\(3, 4\)|\(5, 7\)", error=weft.WeftError)


def _signs(draw: Draw, *shape: int) -> np.ndarray:
    return np.where(draw.bools(*shape), 1.0, -1.0)


def _probabilities(draw: Draw, *shape: int) -> np.ndarray:
    return draw.uniform(*shape, low=0.1, high=0.9)


def _as_argument(value: Any) -> Any:
    return weft.tensor(value, dtype=weft.float32) if isinstance(value, np.ndarray) else value


def _word(value: Any) -> str:
    return str(value) if isinstance(value, (int, float, str)) else "..."


def _like_torch(
    name: str,
    inputs: Callable[[Draw], tuple[Any, ...]],
    options: tuple[dict[str, Any], ...] = ({},),
    count: int = 2,
    **more: Any,
) -> list[LayerRecord]:
    """A record for every set of arguments of a loss that torch has, and one without a reduction."""
    found = []
    for chosen in (*options, {"reduction": "sum"}, {"reduction": "none"}):
        theirs = {key: torch.tensor(value) if isinstance(value, np.ndarray) else value for key, value in chosen.items()}

        def make(chosen: Mapping[str, Any] = chosen) -> Any:
            return getattr(nn, name)(
                **{key: _as_argument(value) for key, value in chosen.items()}
            )  # on the default device

        def torchs(theirs: Mapping[str, Any] = theirs) -> Any:
            return getattr(torch.nn, name)(**theirs)

        found.append(
            LayerRecord(
                name=name,
                variant=",".join(f"{key}={_word(value)}" for key, value in chosen.items()),
                make=make,
                inputs=inputs,
                oracle=of_torch(torchs),
                bad=[REDUCTION, _shapes(count) if count else LABELS_OUT_OF_RANGE],
                **more,
            )
        )
    return found


WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])
SKIPS_NAN = {
    "nan": "torch's comparison with the margin is false for NaN, which it takes for no loss; ours lets it through"
}


def _classes(draw: Draw) -> tuple[Any, ...]:
    return draw.normal(5, 4), draw.integers(4, 5)


def _ignored(draw: Draw) -> tuple[Any, ...]:
    return draw.normal(5, 4), np.array([0, -100, 3, -100, 1])


def _focal(state: Any, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-z))
    right = np.where(y == 1, p, 1 - p)
    return (-np.where(y == 1, 0.25, 0.75) * (1 - right) ** 2 * np.log(right)).mean()


def _focal_classes(state: Any, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(1, keepdims=True))
    right = (p / p.sum(1, keepdims=True))[np.arange(len(y)), y]
    return (-0.25 * (1 - right) ** 2 * np.log(right)).mean()


def _contrastive(state: Any, a: np.ndarray, b: np.ndarray, y: np.ndarray) -> np.ndarray:
    d = np.sqrt(((a - b) ** 2).sum(-1))
    return (0.5 * (y * d**2 + (1 - y) * np.maximum(0, 2.0 - d) ** 2)).mean()


def _divergence(state: Any, mean: np.ndarray, log_variance: np.ndarray) -> np.ndarray:
    theirs = torch.distributions.Normal(torch.tensor(mean), torch.tensor(np.exp(0.5 * log_variance)))
    unit = torch.distributions.Normal(torch.zeros(mean.shape), torch.ones(mean.shape))
    return torch.distributions.kl_divergence(theirs, unit).sum(-1).mean().numpy()


def _capsules(state: Any, v: np.ndarray, y: np.ndarray) -> np.ndarray:
    lengths, right = np.sqrt((v**2).sum(-1)), np.eye(v.shape[1])[y]
    parts = right * np.maximum(0, 0.9 - lengths) ** 2 + 0.5 * (1 - right) * np.maximum(0, lengths - 0.1) ** 2
    return parts.sum(-1).mean()


def _triplet_squared(state: Any, a: np.ndarray, p: np.ndarray, n: np.ndarray) -> np.ndarray:
    near, far = ((a - p + 1e-6) ** 2).sum(-1), ((a - n + 1e-6) ** 2).sum(-1)
    return np.maximum(0, near - far + 1.0).mean()


class _FromLogits(nn.Module):
    """The gradient of this loss is that in logits: log-probabilities that do not add up to 1 have none."""

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, logits: weft.Tensor, *rest: Any) -> weft.Tensor:
        return self.loss(logits.log_softmax(-1), *rest)


def _equal_embeddings_have_a_finite_gradient() -> None:
    x = weft.ones(2, 3, requires_grad=True)
    nn.ContrastiveLoss()(x, weft.ones(2, 3), weft.tensor([1.0, 0.0])).backward()
    assert (x.grad.numpy() == 0).all()


TARGET, THIRD = frozenset({1}), frozenset({2})
NO_BFLOAT16 = "small differences of large numbers: the loss is to be computed in float32"

RECORDS = [
    *_like_torch("L1Loss", lambda draw: (draw.normal(3, 4), draw.normal(3, 4))),
    *_like_torch("MSELoss", lambda draw: (draw.normal(3, 4), draw.normal(3, 4))),
    *_like_torch("SmoothL1Loss", lambda draw: (draw.normal(3, 4), draw.normal(3, 4)), ({}, {"beta": 0.5})),
    *_like_torch("HuberLoss", lambda draw: (draw.normal(3, 4), draw.normal(3, 4)), ({}, {"delta": 0.5})),
    *_like_torch("SoftMarginLoss", lambda draw: (draw.normal(3, 4), _signs(draw, 3, 4)), constants=TARGET),
    *_like_torch(
        "KLDivLoss",
        lambda draw: (draw.normal(3, 4), _probabilities(draw, 3, 4)),
        ({}, {"reduction": "batchmean"}, {"log_target": True}),
    ),
    *_like_torch(
        "BCELoss",
        lambda draw: (_probabilities(draw, 3, 4), _probabilities(draw, 3, 4)),
        ({}, {"weight": WEIGHTS}),
        edges={"nan": "torch refuses numbers outside 0 to 1, NaN among them"},
    ),
    *_like_torch(
        "BCEWithLogitsLoss",
        lambda draw: (draw.normal(3, 4), _probabilities(draw, 3, 4)),
        ({}, {"pos_weight": WEIGHTS, "weight": WEIGHTS}),
    ),
    *_like_torch(
        "PoissonNLLLoss",
        lambda draw: (_probabilities(draw, 3, 4), draw.uniform(3, 4, high=5.0)),
        ({}, {"log_input": False, "full": True}),
    ),
    *_like_torch(
        "GaussianNLLLoss",
        lambda draw: (draw.normal(3, 4), draw.normal(3, 4), draw.uniform(3, 4, low=0.1)),
        ({}, {"full": True}),
        3,
    ),
    *_like_torch("CrossEntropyLoss", _classes, ({}, {"weight": WEIGHTS, "label_smoothing": 0.1}), 2),
    *[
        LayerRecord(
            name="CrossEntropyLoss",
            variant=variant,
            make=nn.CrossEntropyLoss,
            inputs=inputs,
            oracle=of_torch(torch.nn.CrossEntropyLoss),
            bad=[LABELS_OUT_OF_RANGE],
        )
        for variant, inputs in (
            ("ignored", _ignored),
            ("probabilities", lambda draw: (draw.normal(5, 4), _probabilities(draw, 5, 4))),
            ("pixels", lambda draw: (draw.normal(2, 4, 3, 3), draw.integers(4, 2, 3, 3))),
        )
    ],
    *_like_torch("NLLLoss", _classes, ({}, {"weight": WEIGHTS}), count=0),
    *_like_torch("MultiMarginLoss", _classes, ({}, {"p": 2, "margin": 0.5, "weight": WEIGHTS}), edges=SKIPS_NAN),
    *_like_torch(
        "MultiLabelMarginLoss",
        lambda draw: (draw.normal(3, 4), np.array([[3, 0, -1, 1], [1, -1, 0, 0], [2, 1, 0, 3]])),
        edges=SKIPS_NAN,
    ),
    *_like_torch(
        "MultiLabelSoftMarginLoss",
        lambda draw: (draw.normal(3, 4), draw.bools(3, 4).astype(float)),
        ({}, {"weight": WEIGHTS}),
        constants=TARGET,
    ),
    *_like_torch(
        "HingeEmbeddingLoss",
        lambda draw: (draw.normal(3, 4), _signs(draw, 3, 4)),
        ({}, {"margin": 0.5}),
        constants=TARGET,
    ),
    *_like_torch(
        "MarginRankingLoss",
        lambda draw: (draw.normal(5), draw.normal(5), _signs(draw, 5)),
        ({}, {"margin": 0.5}),
        3,
        constants=THIRD,
    ),
    *_like_torch(
        "CosineEmbeddingLoss",
        lambda draw: (draw.normal(3, 4), draw.normal(3, 4), _signs(draw, 3)),
        ({}, {"margin": 0.2}),
        3,
        constants=THIRD,
    ),
    *_like_torch(
        "TripletMarginLoss",
        lambda draw: (draw.normal(3, 4), draw.normal(3, 4), draw.normal(3, 4)),
        ({}, {"swap": True}, {"p": 1.0, "margin": 2.0}),
        3,
    ),
    *_like_torch(
        "TripletMarginWithDistanceLoss",
        lambda draw: (draw.normal(3, 4), draw.normal(3, 4), draw.normal(3, 4)),
        ({}, {"distance_function": lambda a, b: (a - b).abs().sum(-1)}),
        3,
    ),
    LayerRecord(
        name="TripletMarginLoss",
        variant="squared",
        make=lambda: nn.TripletMarginLoss(squared=True),
        inputs=lambda draw: (draw.normal(3, 4), draw.normal(3, 4), draw.normal(3, 4)),
        oracle=of_numpy(_triplet_squared),
        bad=[REDUCTION],
    ),
    LayerRecord(
        name="CTCLoss",
        make=lambda: _FromLogits(nn.CTCLoss()),
        inputs=lambda draw: (draw.normal(6, 2, 4), draw.integers(3, 2, 2) + 1, [6, 5], [2, 1]),
        oracle=of_torch(torch.nn.CTCLoss, call=lambda loss, x, *rest: loss(x.log_softmax(-1), *rest)),
        batch_axes=(1, 0, None, None),
        edges={
            "batch of one": Case(inputs=lambda draw: (draw.normal(6, 1, 4), draw.integers(3, 1, 2) + 1, [6], [2])),
            "nan": "torch's kernel skips NaN in alignments that are impossible, ours does not promise which",
        },
        bad=[Bad(call=lambda layer: nn.CTCLoss(reduction="average"), match="average", error=weft.RangeError)],
        bf16=NO_BFLOAT16,
    ),
    LayerRecord(
        name="FocalLoss",
        make=nn.FocalLoss,
        inputs=lambda draw: (draw.normal(3, 4), draw.bools(3, 4).astype(float)),
        oracle=of_numpy(_focal),
        constants=TARGET,
        bad=[REDUCTION, _shapes(2)],
    ),
    LayerRecord(
        name="FocalLoss",
        variant="classes",
        make=nn.FocalLoss,
        inputs=_classes,
        oracle=of_numpy(_focal_classes),
        bad=[LABELS_OUT_OF_RANGE],
    ),
    LayerRecord(
        name="ContrastiveLoss",
        make=lambda: nn.ContrastiveLoss(margin=2.0),
        inputs=lambda draw: (draw.normal(5, 3), draw.normal(5, 3), draw.bools(5).astype(float)),
        oracle=of_numpy(_contrastive),
        constants=THIRD,
        bad=[REDUCTION, _shapes(3)],
        checks={"equal embeddings": _equal_embeddings_have_a_finite_gradient},
    ),
    LayerRecord(
        name="GaussianKL",
        make=nn.GaussianKL,
        inputs=lambda draw: (draw.normal(5, 3), draw.normal(5, 3)),
        oracle=of_numpy(_divergence),
        bad=[REDUCTION, _shapes(2)],
        edges={"nan": "torch.distributions refuses NaN"},
    ),
    LayerRecord(
        name="CapsuleMarginLoss",
        make=nn.CapsuleMarginLoss,
        inputs=lambda draw: (draw.normal(5, 3, 4) * 0.3, draw.integers(3, 5)),
        oracle=of_numpy(_capsules),
        bad=[REDUCTION],
    ),
]
