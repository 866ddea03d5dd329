"""Records of the anomaly detector."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord


def _score(state, actual, predicted):
    count = actual.sum(-1)
    return np.where(count == 0, 0.0, 1.0 - (actual & predicted).sum(-1) / np.maximum(count, 1)).astype(np.float32)


def _hand_cases():
    actual = weft.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]])
    predicted = weft.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 1]])
    assert nn.AnomalyDetector()(actual, predicted).tolist() == [0.0, 1.0, 0.0, 1.0]


def _smoothing_and_ring():
    """Batches of different sizes, larger than the window too: the ring has the last scores, compiled or not."""
    random = np.random.default_rng(0)
    detector = nn.AnomalyDetector(threshold=0.4, smoothing=0.3, window=5)
    calls = (detector, weft.compile(lambda a, p: detector(a, p)))
    ema, scores = 0.0, []
    for number, rows in enumerate((2, 2, 3, 7, 1, 4)):
        actual, predicted = random.random((2, rows, 12)) < 0.4
        result = calls[number % 2](weft.tensor(actual), weft.tensor(predicted)).numpy()
        np.testing.assert_allclose(result, _score(None, actual, predicted), rtol=1e-6)
        ema = 0.3 * result.mean() + 0.7 * ema
        scores += list(result)
        last = np.array(scores[-5:])
        np.testing.assert_allclose(detector.ema.item(), ema, rtol=1e-5)
        assert bool(detector.is_anomaly) == (ema > 0.4)
        assert sorted(detector.scores.numpy()[: len(scores)]) == sorted(last)
        found = [one.item() for one in detector.statistics()]
        np.testing.assert_allclose(found, [last.mean(), last.std(), last.min(), last.max()], rtol=1e-5, atol=1e-6)
    detector.reset()
    assert detector.ema.item() == 0.0 and detector.count.item() == 0 and np.isnan(detector.statistics().mean.item())


RECORDS = [
    LayerRecord(
        name="AnomalyDetector",
        make=lambda: nn.AnomalyDetector(window=4),
        inputs=lambda draw: (draw.bools(6, 10), draw.bools(6, 10)),
        oracle=of_numpy(_score),
        differentiable=False,
        bf16="a score is a count: bfloat16 has too few digits for it",
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(2, 4), weft.ones(2, 5)),
                match=r"\(2, 4\).*\(2, 5\)",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: nn.AnomalyDetector(window=0), match="window=0", error=weft.RangeError),
        ],
        checks={"hand cases": _hand_cases, "smoothing and ring": _smoothing_and_ring},
    )
]
