"""Metrics of classifiers: accuracy, precision and recall, confusion, intersection over union, area under the curve."""

from __future__ import annotations

import abc
import math

import weft
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.graph import build
from weft.ops.indexing import user_site
from weft.train.metric import Metric

__all__ = ["AUC", "F1", "Accuracy", "ConfusionMatrix", "IoU", "Precision", "Recall", "TopK"]

LARGEST_LOGIT, SMALLEST_LOGIT = 1e4, 1e-6  # that AUC distinguishes from larger and smaller ones


def class_axis(who: str, prediction: Tensor, target: Tensor) -> int | None:
    """The axis of the scores of classes: 1 as for `cross_entropy`, or the last one; None where each element is a score
    of its own (binary)."""
    given, wanted = tuple(prediction.shape), tuple(target.shape)
    if given == wanted or (len(given) == len(wanted) + 1 and given == (*wanted, 1)):
        return None
    if len(given) == len(wanted) + 1:
        if given[:1] + given[2:] == wanted:
            return 1
        if given[:-1] == wanted:
            return len(given) - 1
    raise problem(
        ShapeError, f"metric {who}", f"predictions of shape {list(given)} and targets of shape {list(wanted)}",
        "(batch, classes, ...) or (batch, ..., classes) and (batch, ...), or equal shapes for two classes",
    )  # fmt: skip


class _OfClasses(Metric):
    """What metrics of classes share: `ignore_index` marks targets that do not count, `threshold` (of the scores, which
    are logits unless said otherwise) divides two classes. Float targets of shape (batch, classes) are probabilities of
    classes, as those of Mixup, of which the highest counts; with `multilabel` each element is a target of two classes.
    """

    def __init__(
        self,
        name: str | None = None,
        ignore_index: int = -100,
        threshold: float = 0.0,
        *,
        multilabel: bool = False,
    ):
        super().__init__(name)
        self.ignore_index, self.threshold, self.multilabel = ignore_index, threshold, multilabel

    def labels(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The targets; in place of probabilities of classes, the class of the highest."""
        is_shares = target.dtype.kind == "f" and target.ndim == 2 and target.shape == prediction.shape
        return target.argmax(1) if is_shares and target.shape[1] > 1 and not self.multilabel else target

    def choose_classes(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """(predicted classes, targets, which count, number of classes), as vectors."""
        target = self.labels(prediction, target)
        axis = class_axis(self.name, prediction, target)
        counts = target.reshape(-1) != self.ignore_index
        if axis is None:
            guess = (prediction.reshape(-1) > self.threshold).long()
            return guess, (target.reshape(-1) > 0.5).long(), counts, 2
        classes = prediction.shape[axis]
        return prediction.argmax(axis).reshape(-1), self.check_labels(target, counts, classes), counts, classes

    def check_labels(self, target: Tensor, counts: Tensor, classes: int) -> Tensor:
        """The labels as a vector, 0 where they do not count. One outside the classes is an error when it is computed,
        as it is for `cross_entropy`."""
        labels = weft.where(counts, target.reshape(-1).long(), 0)
        return Tensor(build.in_range(labels.node, classes, f"metric {self.name} at {user_site()}"))


class Accuracy(_OfClasses):
    """The share of right predictions.

    >>> metric = Accuracy()
    >>> metric.update(weft.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0]]), weft.tensor([0, 1, 1]))
    >>> round(metric.compute().item(), 4)
    0.6667
    """

    name = "accuracy"
    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        guess, truth, counts, _ = self.choose_classes(prediction, target)
        self._count(guess == truth, counts)

    def _count(self, right: Tensor, counts: Tensor) -> None:
        which = weft.stack([right & counts, counts])
        self.buffer("right and seen", (2,), weft.int64, right.device).add_(which.long().sum(1))

    def compute(self) -> Tensor:
        sums = self.buffers["right and seen"].double()
        return sums[0] / sums[1]


class TopK(Accuracy):
    """The share of samples whose class is among the `k` highest scores.

    >>> metric = TopK(2)
    >>> metric.update(weft.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), weft.tensor([1, 2]))
    >>> metric.compute().item()
    0.5
    """

    def __init__(self, k: int = 5, name: str | None = None, ignore_index: int = -100):
        super().__init__(name or f"top{k}", ignore_index)
        self.k = k

    def update(self, prediction: Tensor, target: Tensor) -> None:
        target = self.labels(prediction, target)
        axis = class_axis(self.name, prediction, target)
        if axis is None or self.k > prediction.shape[axis]:
            given = f"predictions of shape {list(prediction.shape)}"
            raise problem(ShapeError, f"metric {self.name}", given, f"scores of at least {self.k} classes")
        scores = prediction.movedim(axis, -1).reshape(-1, prediction.shape[axis])
        counts = target.reshape(-1) != self.ignore_index
        truth, best = self.check_labels(target, counts, scores.shape[1]), scores.topk(self.k, -1)[1]
        self._count((best == truth.unsqueeze(-1)).any(-1), counts)


def _histogram(index: Tensor, which: Tensor, size: int) -> Tensor:
    """How often each number below `size` occurs in `index`, where `which`."""
    zeros = weft.zeros(size, dtype=weft.int64, device=index.device)
    return zeros.scatter_add(0, index, which.long())


class _Counts(_OfClasses):
    """True positives, predicted and true members of each class."""

    higher_is_better = True
    auto_of_two = "binary"  # what "auto" is for two classes; for more it is "macro"

    def __init__(
        self,
        average: str | None = "auto",
        name: str | None = None,
        ignore_index: int = -100,
        threshold: float = 0.0,
        *,
        multilabel: bool = False,
    ):
        super().__init__(name, ignore_index, threshold, multilabel=multilabel)
        if average not in ("auto", "macro", "micro", "binary", None):
            expected = "'auto', 'macro', 'micro', 'binary' or None"
            raise problem(RangeError, f"metric {self.name}", f"average {average!r}", expected)
        self.average = average

    def update(self, prediction: Tensor, target: Tensor) -> None:
        guess, truth, counts, classes = self.choose_classes(prediction, target)
        for name, index, which in (
            ("hits", truth, counts & (guess == truth)), ("guessed", guess, counts), ("true", truth, counts),
        ):  # fmt: skip
            self.buffer(name, (classes,), weft.int64, truth.device).add_(_histogram(index, which, classes))

    def compute(self) -> Tensor:
        hits, guessed, true = (self.buffers[name].double() for name in ("hits", "guessed", "true"))
        average = self.average
        if average == "auto":
            average = self.auto_of_two if hits.shape == (2,) else "macro"
        if average == "micro":
            hits, guessed, true = hits.sum(), guessed.sum(), true.sum()
        value = self.ratio(hits, guessed, true)
        if average == "binary":
            return value[1]
        if average == "macro":  # over the classes that occur
            occurs = (guessed + true > 0).double()
            return (value * occurs).sum() / occurs.sum()
        return value

    @abc.abstractmethod
    def ratio(self, hits: Tensor, guessed: Tensor, true: Tensor) -> Tensor:
        """The value from true positives, predicted members and true members; 0 where there are none."""


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return weft.where(below > 0, above / weft.where(below > 0, below, 1.0), 0.0)


class Precision(_Counts):
    """Of what was predicted as a class, the share that is of it. `average`: "macro" is the mean over the classes that
    occur, "micro" counts all together, "binary" is class 1, None gives each class; "auto" is "binary" for two classes,
    as in scikit-learn and Keras, and else "macro".

    >>> metric = Precision(average=None)
    >>> metric.update(weft.eye(3)[[0, 0, 1, 2]], weft.tensor([0, 1, 1, 2]))
    >>> metric.compute().tolist()
    [0.5, 1.0, 1.0]
    """

    name = "precision"

    def ratio(self, hits: Tensor, guessed: Tensor, true: Tensor) -> Tensor:
        return _ratio(hits, guessed)


class Recall(_Counts):
    """Of what is of a class, the share that was predicted as it."""

    name = "recall"

    def ratio(self, hits: Tensor, guessed: Tensor, true: Tensor) -> Tensor:
        return _ratio(hits, true)


class F1(_Counts):
    """The harmonic mean of precision and recall."""

    name = "f1"

    def ratio(self, hits: Tensor, guessed: Tensor, true: Tensor) -> Tensor:
        return _ratio(2.0 * hits, guessed + true)


class ConfusionMatrix(_OfClasses):
    """How often each class (row) was predicted as each (column).

    >>> metric = ConfusionMatrix()
    >>> metric.update(weft.eye(2)[[0, 1, 1]], weft.tensor([0, 0, 1]))
    >>> metric.compute().tolist()
    [[1, 1], [0, 1]]
    """

    name = "confusion"

    def update(self, prediction: Tensor, target: Tensor) -> None:
        guess, truth, counts, classes = self.choose_classes(prediction, target)
        matrix = self.buffer("matrix", (classes, classes), weft.int64, truth.device)
        matrix.add_(_histogram(truth * classes + guess, counts, classes * classes).reshape(classes, classes))

    def compute(self) -> Tensor:
        return self.buffers["matrix"]


class IoU(_Counts):
    """Intersection over union of predicted and true members. `average` is as for Precision, but "auto" is "macro" for
    two classes, too."""

    name = "iou"
    auto_of_two = "macro"

    def ratio(self, hits: Tensor, guessed: Tensor, true: Tensor) -> Tensor:
        return _ratio(hits, guessed + true - hits)


class AUC(Metric):
    """Area under the ROC curve of two classes, from logits, or from probabilities (`from_logits=False`). Scores are
    counted in `bins` intervals, where scores of one interval are equal: about 1 % of the logit wide from 1e-6 to
    10,000, on both sides of 0. A score that is NaN makes the area NaN.

    >>> metric = AUC(from_logits=False)
    >>> metric.update(weft.tensor([0.1, 0.4, 0.35, 0.8]), weft.tensor([0, 0, 1, 1]))
    >>> metric.compute().item()
    0.75
    """

    name = "auc"
    higher_is_better = True

    def __init__(self, bins: int = 4096, from_logits: bool = True, name: str | None = None):
        super().__init__(name)
        self.bins, self.from_logits = bins, from_logits

    def update(self, prediction: Tensor, target: Tensor) -> None:
        if class_axis(self.name, prediction, target) is not None:
            given = f"predictions of shape {list(prediction.shape)} for targets of shape {list(target.shape)}"
            raise problem(ShapeError, f"metric {self.name}", given, "one score for each target")
        score = prediction.reshape(-1).float()
        if not self.from_logits:
            score = score.clamp(0.0, 1.0)
            score = score.log() - (-score).log1p()
        size = (score.abs() * (1.0 / SMALLEST_LOGIT)).log1p() / math.log1p(LARGEST_LOGIT / SMALLEST_LOGIT)
        share = (score.sign() * size).clamp(-1.0, 1.0)
        where = ((share + 1.0) * (0.5 * self.bins)).long().clamp(0, self.bins - 1)
        where = weft.where(score.isnan(), self.bins, where)  # one more, behind the others
        is_one, bins = target.reshape(-1) > 0.5, self.bins + 1
        for name, which in (("positive", is_one), ("negative", ~is_one)):
            self.buffer(name, (bins,), weft.int64, score.device).add_(_histogram(where, which, bins))

    def compute(self) -> Tensor:
        counts = [self.buffers[name].double() for name in ("positive", "negative")]
        has_nan = counts[0][-1] + counts[1][-1] > 0.0
        ones, zeros = (one[:-1] for one in counts)
        below = zeros.cumsum(0) - zeros  # of the other class with a lower score
        area = (ones * (below + 0.5 * zeros)).sum() / (ones.sum() * zeros.sum())
        return weft.where(has_nan, math.nan, area)
