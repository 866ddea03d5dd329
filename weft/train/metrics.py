"""Metrics of predicted numbers, and the metrics that can be given by name."""

from __future__ import annotations

import difflib
from typing import Any

import weft
from weft.base.errors import GraphError, RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.train.class_metrics import AUC, F1, Accuracy, ConfusionMatrix, IoU, Precision, Recall, TopK, class_axis
from weft.train.metric import Mean, Metric, float_like

__all__ = ["MAE", "MSE", "R2", "Perplexity"]


class Perplexity(Mean):
    """exp of the mean negative log-likelihood of the targets that count, from logits.

    >>> metric = Perplexity()
    >>> metric.update(weft.zeros(3, 8), weft.tensor([0, 5, -100]))
    >>> round(metric.compute().item(), 4)
    8.0
    """

    name = "perplexity"
    higher_is_better = False

    def __init__(self, name: str | None = None, ignore_index: int = -100):
        super().__init__(name)
        self.ignore_index = ignore_index

    def update(self, prediction: Tensor, target: Tensor) -> None:
        axis = class_axis(self.name, prediction, target)
        if axis is None:
            given = f"predictions of shape {list(prediction.shape)} for targets of shape {list(target.shape)}"
            raise problem(ShapeError, f"metric {self.name}", given, "scores of classes")
        dtype = float_like(prediction)
        scores = prediction.to(dtype).movedim(axis, -1).reshape(-1, prediction.shape[axis])
        truth = target.reshape(-1).long()
        loss = weft.nn.functional.cross_entropy(scores, truth, ignore_index=self.ignore_index, reduction="sum")
        count = (truth != self.ignore_index).long().sum().to(dtype)
        self.add(loss / count.maximum(1.0), count)

    def compute(self) -> Tensor:
        return super().compute().exp()


class MSE(Mean):
    """The mean squared error.

    >>> metric = MSE()
    >>> metric.update(weft.tensor([1.0, 2.0]), weft.tensor([1.0, 4.0]))
    >>> metric.compute().item()
    2.0
    """

    name = "mse"
    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        error = _difference(self.name, prediction, target)
        self.add(self.term(error).mean(), error.numel())

    def term(self, error: Tensor) -> Tensor:
        return error.square()


class MAE(MSE):
    """The mean absolute error."""

    name = "mae"

    def term(self, error: Tensor) -> Tensor:
        return error.abs()


def _difference(who: str, prediction: Tensor, target: Tensor) -> Tensor:
    if prediction.shape != target.shape and tuple(prediction.shape) != (*target.shape, 1):
        given = f"predictions of shape {list(prediction.shape)} and targets of shape {list(target.shape)}"
        raise problem(ShapeError, f"metric {who}", given, "equal shapes", "reshape one of them")
    return prediction.reshape(-1).to(float_like(prediction)) - target.reshape(-1).to(float_like(prediction))


class R2(Metric):
    """The coefficient of determination, over all elements: 1 - Σ(y - p)² / Σ(y - mean y)².

    >>> metric = R2()
    >>> metric.update(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([1.0, 2.0, 4.0]))
    >>> round(metric.compute().item(), 4)
    0.7857
    """

    name = "r2"
    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        error = _difference(self.name, prediction, target)
        truth = target.reshape(-1).to(error.dtype)
        make = lambda name: self.buffer(name, (), error.dtype, error.device)  # noqa: E731
        count, mean, spread, rest = make("count"), make("mean"), make("spread"), make("rest")
        # Chan's formula joins the spread of the batch with that so far; a sum of squares would cancel.
        size, here = float(truth.numel()), truth.mean()
        total, step = count + size, here - mean
        spread.copy_(spread + (truth - here).square().sum() + step.square() * count * size / total)
        mean.copy_(mean + step * size / total)
        count.copy_(total)
        rest.add_(error.square().sum())

    def compute(self) -> Tensor:
        return 1.0 - self.buffers["rest"] / self.buffers["spread"]


BY_NAME: dict[str, type[Metric]] = {
    "accuracy": Accuracy, "top5": TopK, "precision": Precision, "recall": Recall, "f1": F1, "auc": AUC,
    "confusion": ConfusionMatrix, "perplexity": Perplexity, "iou": IoU, "mse": MSE, "mae": MAE, "r2": R2,
}  # fmt: skip


def as_metric(given: Any) -> Metric:
    """A metric, or the one of that name."""
    if isinstance(given, Metric):
        if not hasattr(given, "buffers"):
            who, text = f"metric {type(given).__name__}", "a metric that has not been initialised"
            raise problem(
                GraphError, who, text, "one whose __init__ has run", "call super().__init__() in its __init__"
            )
        return given
    if isinstance(given, str) and given in BY_NAME:
        return BY_NAME[given]()
    near = difflib.get_close_matches(given, BY_NAME, 1) if isinstance(given, str) else []
    fix = f"the nearest name is {near[0]!r}" if near else "for one of your own, subclass weft.train.Metric"
    if isinstance(given, type) and issubclass(given, Metric):
        fix = f"make one: {given.__name__}()"
    raise problem(RangeError, "Trainer", f"metric {given!r:.60}", f"a Metric, or one of {', '.join(BY_NAME)}", fix)
