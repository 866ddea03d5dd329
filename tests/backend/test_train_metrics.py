"""Metrics against NumPy in float64: batch by batch inside weft.compile, on every device; reset, copies, saved state."""

import numpy as np
import pytest

import weft
from weft.train import AUC, F1, MAE, MSE, R2, Accuracy, ConfusionMatrix, IoU, Mean, Perplexity, Precision, Recall, TopK

pytestmark = pytest.mark.backend


def scores(rows=200, classes=5, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes)) + 1.2 * np.eye(classes)[truth]
    return logits.astype(np.float32), truth


def run(metric, prediction, target, batches=3):
    """The value after batches of unequal sizes, updated by a compiled function."""
    step = weft.compile(metric.update)
    for p, t in zip(np.array_split(prediction, batches), np.array_split(target, batches), strict=True):
        step(weft.tensor(p), weft.tensor(t))
    return np.array(metric.compute().tolist())


def confusion(prediction, target, classes):
    matrix = np.zeros((classes, classes))
    np.add.at(matrix, (target, prediction.argmax(1)), 1)
    return matrix


def test_accuracy_and_top_k(on_each_device):
    logits, truth = scores()
    assert run(Accuracy(), logits, truth) == pytest.approx((logits.argmax(1) == truth).mean())
    for k in (1, 2, 5):
        ranked = np.argsort(-logits, 1)[:, :k]
        assert run(TopK(k), logits, truth) == pytest.approx((ranked == truth[:, None]).any(1).mean())


@pytest.mark.parametrize("average", ["macro", "micro", None])
def test_precision_recall_f1(on_each_device, average):
    logits, truth = scores()
    truth[truth == 4] = 0  # a class that does not occur
    matrix = confusion(logits, truth, 5)
    hits, guessed, true = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    if average == "micro":
        hits, guessed, true = hits.sum(), guessed.sum(), true.sum()
    forms = {Precision: (hits, guessed), Recall: (hits, true), F1: (2 * hits, guessed + true)}
    for kind, (above, below) in forms.items():
        value = np.where(below > 0, above / np.maximum(below, 1), 0.0)
        expected = value[guessed + true > 0].mean() if average == "macro" else value
        np.testing.assert_allclose(run(kind(average), logits, truth), expected, rtol=1e-12)


def test_two_classes_from_one_score(on_each_device):
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 2, 100).astype(np.float32)
    logit = (rng.normal(size=100) + truth).astype(np.float32)
    guess = logit > 0
    assert run(Accuracy(), logit[:, None], truth) == pytest.approx((guess == truth).mean())
    assert run(Precision("binary"), logit, truth) == pytest.approx(truth[guess].mean())
    assert run(Recall("binary"), logit, truth) == pytest.approx(guess[truth > 0].mean())


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("ignored", [-100, 255])
def test_two_classes_with_targets_that_do_not_count(on_each_device, dtype, ignored):
    rng = np.random.default_rng(1)
    truth = rng.choice([0, 1, ignored], (40, 3)).astype(dtype)
    logit = rng.normal(size=(40, 3)).astype(np.float32)
    used, guess = truth != ignored, logit > 0
    options = {"ignore_index": ignored, "multilabel": True}
    assert run(Accuracy(**options), logit, truth) == pytest.approx((guess == truth)[used].mean())
    assert run(Recall("binary", **options), logit, truth) == pytest.approx(guess[used & (truth == 1)].mean())
    assert run(ConfusionMatrix(**options), logit, truth).sum() == used.sum()


def test_targets_that_are_probabilities_of_classes(on_each_device):
    logits, truth = scores()
    mixed = (0.7 * np.eye(5)[truth] + 0.3 * np.eye(5)[np.roll(truth, 1)]).astype(np.float32)
    assert run(Accuracy(), logits, mixed) == pytest.approx((logits.argmax(1) == truth).mean())
    np.testing.assert_array_equal(run(ConfusionMatrix(), logits, mixed), confusion(logits, truth, 5))
    assert run(TopK(2), logits, mixed) == run(TopK(2), logits, truth)
    assert run(Accuracy(multilabel=True), logits, mixed) == pytest.approx(((logits > 0) == (mixed > 0.5)).mean())


def test_confusion_and_iou(on_each_device):
    logits, truth = scores()
    matrix = confusion(logits, truth, 5)
    np.testing.assert_array_equal(run(ConfusionMatrix(), logits, truth), matrix)
    each = np.diag(matrix) / (matrix.sum(0) + matrix.sum(1) - np.diag(matrix))
    np.testing.assert_allclose(run(IoU(None), logits, truth), each, rtol=1e-12)
    np.testing.assert_allclose(run(IoU(), logits, truth), each.mean(), rtol=1e-12)


def test_segmentation_with_pixels_that_do_not_count(on_each_device):
    """(N, C, H, W) scores and (N, H, W) targets, of which some are ignored."""
    rng = np.random.default_rng(2)
    logits, truth = rng.normal(size=(6, 3, 4, 5)).astype(np.float32), rng.integers(0, 3, (6, 4, 5))
    truth[rng.random(truth.shape) < 0.3] = 255
    counts, guess = truth != 255, logits.argmax(1)
    assert run(Accuracy(ignore_index=255), logits, truth) == pytest.approx((guess == truth)[counts].mean())
    matrix = np.zeros((3, 3))
    np.add.at(matrix, (truth[counts], guess[counts]), 1)
    np.testing.assert_array_equal(run(ConfusionMatrix(ignore_index=255), logits, truth), matrix)


def exact_auc(score, truth):
    ones, zeros = score[truth > 0][:, None], score[truth == 0][None, :]
    return ((ones > zeros) + 0.5 * (ones == zeros)).mean()


def test_area_under_the_curve(on_each_device):
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 2, 300)
    score = (rng.integers(0, 64, 300) + 30 * truth).clip(0, 127) / 128  # numbers that lie in bins exactly
    assert run(AUC(from_logits=False), score.astype(np.float32), truth) == pytest.approx(exact_auc(score, truth))
    logit = (rng.normal(size=300) + truth).astype(np.float32)
    assert run(AUC(), logit, truth) == pytest.approx(exact_auc(logit, truth), abs=1e-3)


@pytest.mark.parametrize("center", [-700.0, -100.0, -12.0, 0.0, 12.0, 3000.0])
def test_area_under_the_curve_far_from_the_middle(on_each_device, center):
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 2, 2000)
    width = max(1.0, abs(center) / 20)
    logit = (center + width * (rng.normal(size=2000) + 4.0 * truth - 2.0)).astype(np.float32)
    assert run(AUC(), logit, truth) == pytest.approx(exact_auc(logit, truth), abs=1e-3)


def test_area_under_the_curve_of_small_probabilities_and_of_none(on_each_device):
    rng = np.random.default_rng(5)
    truth = rng.integers(0, 2, 1000)
    score = np.exp(rng.normal(size=1000) + truth - 15.0).astype(np.float32)
    assert run(AUC(from_logits=False), score, truth) == pytest.approx(exact_auc(score, truth), abs=1e-3)
    ends = np.array([0.0, 0.0, 0.5, 1.0, 1.0], np.float32)
    assert run(AUC(from_logits=False), ends, np.array([0, 1, 1, 0, 1]), 1) == pytest.approx(0.5)
    ends = np.array([-np.inf, -np.inf, 0.0, np.inf, np.inf], np.float32)
    assert run(AUC(), ends, np.array([0, 1, 1, 0, 1]), 1) == pytest.approx(0.5)


def test_perplexity(on_each_device):
    """Weighted by tokens, not by batches; (N, V, T) and (N, T, V)."""
    rng = np.random.default_rng(4)
    logits, truth = rng.normal(size=(10, 7, 6)).astype(np.float32), rng.integers(0, 7, (10, 6))
    truth[:3] = -100
    truth[5, 2:] = -100
    wide = logits.astype(np.float64)
    logp = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    picked = np.take_along_axis(logp, truth.clip(0)[:, None], 1)[:, 0][truth >= 0]
    assert run(Perplexity(), logits, truth) == pytest.approx(np.exp(-picked.mean()), rel=1e-5)
    assert run(Perplexity(), logits.swapaxes(1, 2).copy(), truth) == pytest.approx(np.exp(-picked.mean()), rel=1e-5)


def test_errors_of_regression(on_each_device):
    rng = np.random.default_rng(5)
    truth = (rng.normal(size=500) + 1000).astype(np.float32)  # far from 0: a sum of squares would cancel
    guess = truth + rng.normal(size=500).astype(np.float32) * np.float32(0.5)
    error = guess.astype(np.float64) - truth
    assert run(MSE(), guess, truth) == pytest.approx((error**2).mean(), rel=1e-5)
    assert run(MAE(), guess[:, None], truth) == pytest.approx(np.abs(error).mean(), rel=1e-5)
    expected = 1 - (error**2).sum() / ((truth - truth.astype(np.float64).mean()) ** 2).sum()
    assert run(R2(), guess, truth, batches=7) == pytest.approx(expected, rel=1e-3)


def test_many_batches_count_alike(on_each_device):
    """A plain float32 sum of 20,000 times 0.1 is 1999.66."""
    mean = Mean()
    many = weft.compile(lambda: [mean.add(weft.full((), 0.1), 1.0) for _ in range(100)] and None)
    for _ in range(200):
        many()
    total, weight = mean.buffers["sums"].tolist()[0], mean.buffers["sums"].tolist()[2]
    assert weight == 20_000 and total == pytest.approx(2000.0, rel=1e-6)


def test_reset_fresh_and_state(on_each_device):
    logits, truth = scores()
    for make in (Accuracy, F1, ConfusionMatrix, Perplexity, IoU, R2):
        given = (logits, truth) if make is not R2 else (logits[:, 0], truth.astype(np.float32))
        metric = make()
        first = run(metric, *given)
        other = metric.fresh()
        assert other.buffers == {} and other.name == metric.name
        other.load_state_dict(metric.state_dict())
        np.testing.assert_array_equal(np.array(other.compute().tolist()), first)
        metric.reset()
        np.testing.assert_array_equal(run(metric, *given), first)
        np.testing.assert_array_equal(np.array(other.compute().tolist()), first)


def test_shapes_that_do_not_fit(on_each_device):
    for metric, prediction, target, words in (
        (Accuracy(), (4, 3), (5,), "predictions of shape"),
        (TopK(5), (4, 3), (4,), "scores of at least 5 classes"),
        (AUC(), (4, 3), (4,), "one score for each target"),
        (MSE(), (4, 3), (4, 2), "equal shapes"),
        (Perplexity(), (4,), (4,), "scores of classes"),
    ):
        with pytest.raises(weft.ShapeError, match=words):
            metric.update(weft.zeros(prediction), weft.zeros(target, dtype=weft.int64))
    metric = Accuracy()
    matrix = ConfusionMatrix()
    matrix.update(weft.zeros(4, 3), weft.zeros(4, dtype=weft.int64))
    with pytest.raises(weft.ShapeError, match="as many classes"):
        matrix.update(weft.zeros(4, 5), weft.zeros(4, dtype=weft.int64))
    with pytest.raises(weft.RangeError, match="average"):
        F1("weighted")
    assert metric.buffers == {}
