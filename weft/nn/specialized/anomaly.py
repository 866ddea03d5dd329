"""How unexpected a sparse binary input was."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.autograd import no_grad
from weft.base.dtypes import int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, zeros
from weft.core.tensor import Tensor
from weft.names.functions import where
from weft.nn.module import Module
from weft.nn.parameter import Buffer
from weft.nn.registry import layer


def anomaly_score(actual: Tensor, predicted: Tensor, dtype: Any) -> Tensor:
    """1 - |actual ∧ predicted| / |actual| over the last axis, 0 where nothing is active."""
    active = actual != 0
    misses = (active & (predicted == 0)).sum(-1).to(dtype)
    return misses / active.sum(-1).to(dtype).clamp_min(1.0)


class AnomalyStatistics(NamedTuple):
    """What `AnomalyDetector.statistics` returns: of the scores of the last `window` rows."""

    mean: Tensor
    std: Tensor
    min: Tensor
    max: Tensor


@layer("L089", aliases=("AnomalyDetectorLayer",), learns="-", oracle="NumPy: 1 - |actual and predicted| / |actual|")
class AnomalyDetector(Module):
    """score_b = 1 - |actual_b ∧ predicted_b| / |actual_b|, 0 where nothing is active: the raw anomaly score of
    hierarchical temporal memory (Ahmad et al. 2017).

    Every call also updates, in either mode,

    - ema ← smoothing · mean(score) + (1 - smoothing) · ema, and
    - scores, a ring of the last `window` scores, of which `statistics()` gives mean, std (population), min and max.

    `is_anomaly` is ema > threshold.

    Shape: actual [B, n], predicted [B, n], binary (any dtype; not 0 is active); output [B]. It has no gradient.

    >>> detector = weft.nn.AnomalyDetector()
    >>> detector(weft.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]), weft.tensor([[0, 1, 1, 0], [1, 0, 0, 0]]))
    tensor([0.5000, 0.0000])
    >>> detector.ema, detector.is_anomaly
    (tensor(0.0250), tensor(False))
    """

    ema: Tensor
    scores: Tensor
    count: Tensor  # how many scores there were

    def __init__(
        self, threshold: float = 0.5, smoothing: float = 0.1, window: int = 100, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        if window < 1 or not 0 <= smoothing <= 1:
            given = f"window={window} and smoothing={smoothing}"
            raise problem(RangeError, "AnomalyDetector", given, "window of at least 1 and smoothing from 0 to 1")
        self.threshold, self.smoothing, self.window = threshold, smoothing, window
        self.ema = Buffer(zeros((), device=device, dtype=dtype))
        self.scores = Buffer(zeros(window, device=device, dtype=dtype))
        self.count = Buffer(zeros((), device=device, dtype=int64))

    @property
    def is_anomaly(self) -> Tensor:
        """Whether the smoothed score is above the threshold."""
        return self.ema > self.threshold

    def reset(self) -> None:
        """Forget all scores."""
        for buffer in (self.ema, self.scores, self.count):
            buffer.zero_()

    def forward(self, actual: Tensor, predicted: Tensor) -> Tensor:
        if actual.ndim != 2 or actual.shape != predicted.shape:
            given = f"actual of shape {tuple(actual.shape)} and predicted of shape {tuple(predicted.shape)}"
            raise problem(ShapeError, "AnomalyDetector", given, "both [B, n]")
        with no_grad():
            score = anomaly_score(actual, predicted, self.ema.dtype)
            rows = len(score)
            if rows:
                self.ema = self.smoothing * score.mean() + (1.0 - self.smoothing) * self.ema
                self.scores = self._append_scores(score)
                self.count = self.count + rows
            return score

    def _append_scores(self, score: Tensor) -> Tensor:
        """The ring with the scores [B] behind those that are in it."""
        rows = len(score)
        age = (self.count + rows - 1 - arange(self.window, device=score.device)) % self.window  # of each position, then
        return where(age < rows, score[(rows - 1 - age).clamp_min(0)], self.scores)

    def statistics(self) -> AnomalyStatistics:
        """Mean, standard deviation, least and largest of the scores in the ring; NaN, infinity and -infinity while it
        is empty."""
        position = arange(self.window, device=self.scores.device)
        filled = position < self.count
        count = filled.sum().to(self.scores.dtype)
        mean = where(filled, self.scores, 0.0).sum() / count
        variance = where(filled, (self.scores - mean) ** 2, 0.0).sum() / count
        low, high = where(filled, self.scores, float("inf")), where(filled, self.scores, float("-inf"))
        return AnomalyStatistics(mean, variance.sqrt(), low.min(), high.max())

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, smoothing={self.smoothing}, window={self.window}"
