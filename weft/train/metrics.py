"""Metrics: numbers about predictions that add up on the device.

`update` is tensor code that writes buffers in place, so it can be a part of the compiled step; `compute` is tensor
code, too, and its result is read when it is shown. Buffers are made by the first update, when shapes are known.
"""

from __future__ import annotations

import abc
import copy
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import weft
from weft.errors import GraphError, RangeError, ShapeError, problem
from weft.graph import build
from weft.ops.indexing import user_site
from weft.optim.groups import outside_of_traces
from weft.tensor import Tensor


class Metric(abc.ABC):
    """Base class. A metric of one's own sets `name`, and defines `update` on `self.buffer(...)`s and `compute`; with
    `higher_is_better` callbacks that monitor it know the direction. It may be composed of other metrics: those among
    its attributes, also in lists and dicts, are reset, saved and copied with it.

    >>> class LargestError(weft.train.Metric):
    ...     name, higher_is_better = "largest error", False
    ...
    ...     def update(self, prediction, target):
    ...         largest = self.buffer("largest", (), weft.float32, prediction.device)
    ...         largest.copy_(largest.maximum((prediction - target).abs().max()))
    ...
    ...     def compute(self):
    ...         return self.buffers["largest"]
    >>> metric = LargestError()
    >>> metric.update(weft.tensor([1.0, 5.0]), weft.tensor([1.0, 2.0]))
    >>> metric.compute().item()
    3.0
    """

    name = ""
    higher_is_better: bool | None = None  # None: unknown, so a callback that monitors it needs mode=

    def __init__(self, name: str | None = None):
        self.name = name or type(self).name or type(self).__name__.lower()
        self.buffers: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    @abc.abstractmethod
    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Take a batch into account. Called inside the compiled step, without gradients."""

    @abc.abstractmethod
    def compute(self) -> Tensor:
        """The value of everything since `reset`: a scalar, or a tensor of which each element is shown."""

    def buffer(self, name: str, shape: Sequence[int], dtype: Any, device: Any) -> Tensor:
        """A tensor that is kept between updates and begins as zeros."""
        found = self.buffers.get(name)
        if found is None:
            with outside_of_traces():
                found = weft.zeros(tuple(shape), dtype=dtype, device=device)
                found.name = f"{self.name} {name}"
                weft.eval(found)
            self.buffers[name] = found
        elif found.shape != tuple(shape):
            given = f"a batch that asks for {name!r} of shape {list(shape)} after one of {list(found.shape)}"
            raise problem(ShapeError, f"metric {self.name}", given, "batches with as many classes", "call reset()")
        return found

    def parts(self) -> dict[str, Metric]:
        """The metrics that this one is composed of, by the names of their attributes."""
        return {path: one for name, value in vars(self).items() for path, one in _metrics_in(name, value)}

    def all_buffers(self) -> dict[str, Tensor]:
        """The buffers of this metric and, as `attribute.name`, of those that it is composed of; each tensor once."""
        found = dict(self.buffers)
        for path, part in self.parts().items():
            known = set(map(id, found.values()))
            found |= {f"{path}.{name}": one for name, one in part.all_buffers().items() if id(one) not in known}
        return found

    def reset(self) -> None:
        """Forget all batches; the buffers keep their places."""
        with weft.no_grad():
            for buffer in self.all_buffers().values():
                buffer.zero_()

    def fresh(self) -> Metric:
        """The same metric without batches and buffers of its own, for other data."""
        made = copy.copy(self)
        made.__dict__.update({name: _without_buffers(value) for name, value in vars(self).items()})
        made.buffers = {}
        shared = [path for path, part in self.parts().items() if part.buffers is self.buffers]
        for path in shared:  # a metric that is known by the buffers of one of its parts
            made.buffers = made.parts()[path].buffers
        return made

    def state_dict(self) -> dict[str, Any]:
        """The buffers."""
        return {name: value.clone() for name, value in weft.snapshot(self.all_buffers()).items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], device: Any = None) -> None:
        """Take over what `state_dict` returned."""
        own = dict(state_dict)
        for path, part in self.parts().items():
            prefix = f"{path}."
            inner = {name.removeprefix(prefix): own.pop(name) for name in list(own) if name.startswith(prefix)}
            part.load_state_dict(inner, device)
        with weft.no_grad():
            for name, value in own.items():
                given = weft.as_tensor(value, device=device)
                self.buffer(name, given.shape, given.dtype, given.device).copy_(given)
            for name in set(self.buffers) - set(own):
                self.buffers[name].zero_()


def _metrics_in(path: str, value: Any) -> Iterator[tuple[str, Metric]]:
    """Metrics in an attribute of a metric, which may be a list, tuple or dict of them."""
    if isinstance(value, Metric):
        yield path, value
    elif isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from _metrics_in(f"{path}.{key}", one)


def _without_buffers(value: Any) -> Any:
    """An attribute of a metric for its copy: metrics inside are copied without their buffers."""
    if isinstance(value, Metric):
        return value.fresh()
    if isinstance(value, dict) and any(_metrics_in("", value)):
        return {key: _without_buffers(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and any(_metrics_in("", value)):
        made = [_without_buffers(one) for one in value]
        return tuple(made) if isinstance(value, tuple) else made
    return value


def _add(total: Tensor, rest: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """A sum and what rounding took from it, after a value was added: Kahan's summation, so that a million batches count
    alike."""
    corrected = value - rest
    new = total + corrected
    return new, (new - total) - corrected


def _float_like(value: Tensor) -> Any:
    return weft.float64 if value.dtype is weft.float64 else weft.float32


class Mean(Metric):
    """The mean of numbers, each weighted by how many samples it stands for.

    >>> mean = Mean("loss")
    >>> mean.add(weft.tensor(1.0), 30)
    >>> mean.add(weft.tensor(4.0), 10)
    >>> mean.compute().item()
    1.75
    """

    name = "mean"

    def add(self, value: Tensor, weight: float | Tensor = 1.0, last: Tensor | None = None) -> None:
        """Take a number into account `weight` times. `last` is what `last()` is to be, if not the number."""
        dtype = _float_like(value)
        value, last = value.to(dtype), (value if last is None else last).to(dtype)
        if not isinstance(weight, Tensor):
            weight = weft.full((), weight, dtype=dtype, device=value.device)
        sums = self.buffer("sums", (5,), dtype, value.device)  # one vector, so that an update is one kernel
        total, weights = _add(sums[0], sums[1], value * weight), _add(sums[2], sums[3], weight.to(dtype))
        sums.copy_(weft.stack([*total, *weights, last]))

    def last(self) -> Tensor:
        """The number that was added last."""
        return self.buffers["sums"][4]

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """The mean of the predictions themselves."""
        self.add(prediction.mean(), prediction.numel())

    def compute(self) -> Tensor:
        sums = self.buffers["sums"]
        return sums[0] / sums[2]


# ---- classes -------------------------------------------------------------------------------------------------------


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

    def chosen(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """(predicted classes, targets, which count, number of classes), as vectors."""
        target = self.labels(prediction, target)
        axis = class_axis(self.name, prediction, target)
        counts = target.reshape(-1) != self.ignore_index
        if axis is None:
            guess = (prediction.reshape(-1) > self.threshold).long()
            return guess, (target.reshape(-1) > 0.5).long(), counts, 2
        classes = prediction.shape[axis]
        return prediction.argmax(axis).reshape(-1), self.known_labels(target, counts, classes), counts, classes

    def known_labels(self, target: Tensor, counts: Tensor, classes: int) -> Tensor:
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
        guess, truth, counts, _ = self.chosen(prediction, target)
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
        truth, best = self.known_labels(target, counts, scores.shape[1]), scores.topk(self.k, -1)[1]
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
        guess, truth, counts, classes = self.chosen(prediction, target)
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
        guess, truth, counts, classes = self.chosen(prediction, target)
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


LARGEST_LOGIT, SMALLEST_LOGIT = 1e4, 1e-6  # that AUC tells from larger and smaller ones


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


# ---- numbers -------------------------------------------------------------------------------------------------------


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
        dtype = _float_like(prediction)
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
    return prediction.reshape(-1).to(_float_like(prediction)) - target.reshape(-1).to(_float_like(prediction))


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
