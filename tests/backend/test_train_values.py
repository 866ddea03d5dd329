"""Metrics that are composed, shared, subclassed or named as other values; what counts as a skipped step."""

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.train import AUC, F1, MSE, Accuracy, History, IoU, Mean, Metric, Perplexity, Precision, Recall, TopK, Trainer

pytestmark = pytest.mark.backend


def make_data(rows=12, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    return weft.tensor(x), weft.tensor(x.sum(1, keepdims=True))


def make(**options):
    weft.manual_seed(0)
    model = nn.Linear(2, 1)
    options.setdefault("device", weft.default_device())
    options.setdefault("loss", nn.MSELoss())
    return Trainer(model, options.pop("loss"), weft.optim.SGD(model.parameters(), lr=0.1), **options)


class Errors(Metric):
    """Composed of other metrics in all ways."""

    def __init__(self):
        super().__init__("errors")
        self.mean, self.others = Mean("mean"), {"squares": [MSE()]}

    def update(self, prediction, target):
        self.mean.add((prediction - target).abs().mean(), len(prediction))
        self.others["squares"][0].update(prediction, target)

    def compute(self):
        return weft.stack([self.mean.compute(), self.others["squares"][0].compute()])


def test_a_metric_may_be_composed_of_others(on_each_device):
    data = [make_data()[:2]]
    trainer = make(metrics=[Errors(), "mae", "mse"])
    trainer.fit(data, validation=[make_data(8, 1)], epochs=3)
    last = trainer.history.last
    for prefix in ("", "val_"):
        assert last[f"{prefix}errors"] == pytest.approx([last[f"{prefix}mae"], last[f"{prefix}mse"]], rel=1e-6)
    metric = trainer.meters.metrics[0]
    assert set(metric.state_dict()) == {"mean.sums", "others.squares.0.sums"}
    other = Errors()
    other.load_state_dict(metric.state_dict())
    assert other.compute().tolist() == metric.compute().tolist()
    assert metric.fresh().all_buffers() == {} and metric.fresh().mean is not metric.mean
    other.reset()
    assert other.mean.buffers["sums"].tolist() == [0.0] * 5


class Aliased(Metric):
    """Shows the buffers of a part as its own."""

    def __init__(self):
        super().__init__("aliased")
        self.mean = Mean("mean")
        self.buffers = self.mean.buffers

    def update(self, prediction, target):
        self.mean.update(prediction, target)

    def compute(self):
        return self.mean.compute()


def test_a_metric_that_shows_the_buffers_of_its_part(on_each_device):
    metric = Aliased()
    metric.update(weft.tensor([1.0, 3.0]), weft.zeros(2))
    other = metric.fresh()
    assert other.buffers is other.mean.buffers and other.buffers == {}
    other.load_state_dict(metric.state_dict())
    assert list(metric.state_dict()) == ["sums"] and other.compute().item() == 2.0 == metric.compute().item()


def test_a_subclass_stays_what_it_is_in_validation(on_each_device):
    class Half(MSE):
        def __init__(self, share):
            super().__init__("half")
            self.share = share

        def compute(self):
            return super().compute() * self.share

    class Seven(Perplexity):
        def compute(self):
            return super().compute() * 0.0 + 7.0

    data = [make_data()]
    last = make(metrics=[Half(0.5), "mse"]).fit(data, validation=data).last
    assert last["half"] == pytest.approx(last["mse"] / 2) and last["val_half"] == pytest.approx(last["val_mse"] / 2)
    assert isinstance(Seven().fresh(), Seven)


def test_one_metric_in_two_trainers_counts_for_each(on_each_device):
    shared, data, other = MSE(), [make_data()], [make_data(8, 3)]
    first, second = make(metrics=[shared]), make(metrics=[shared])
    for trainer, batches in ((first, data), (second, other)):
        trainer._source = None
        trainer.train_batch(*batches[0])
    shared.update(weft.ones(3), weft.zeros(3))
    assert first.read()["mse"] == pytest.approx(first.read()["loss"])
    assert second.read()["mse"] == pytest.approx(second.read()["loss"])
    assert shared.compute().item() == 1.0


class Number(Metric):
    name = "number"

    def update(self, prediction, target):
        self.buffer("sum", (), weft.float32, prediction.device).add_(prediction.sum())

    def compute(self):
        return 1.5


def test_a_metric_whose_value_is_no_tensor_is_refused(on_each_device):
    with pytest.raises(weft.GraphError, match=r"metric number: given a value of type float from compute\(\).*a tensor"):
        make(metrics=[Number()]).fit([make_data()])


@pytest.mark.parametrize("name", ["epoch", "step", "lr", "seconds", "wait_seconds", "skipped", "batch_loss", "val_mse"])
def test_names_of_the_trainer_are_refused(on_each_device, name):
    with pytest.raises(weft.RangeError, match=f"a metric named '{name}'"):
        make(metrics=[MSE(name=name)])

    def step(trainer, x, y):
        loss = nn.functional.mse_loss(trainer.model(x), y)
        return {"loss": loss, name: 7.0}

    with pytest.raises(weft.RangeError, match=f"a value named '{name}'"):
        make(loss=None, step=step).fit([make_data()])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_skipped_step_counts_once(on_each_device, precision):
    x, y = make_data()
    bad = weft.full((4, 2), float("nan"))
    trainer = make(on_nan="skip", precision=precision)
    if trainer.scaler is not None:
        trainer.scaler._init_scale = 8.0  # no overflow but those of the bad batch
    history = trainer.fit([(x[:4], y[:4]), (bad, y[:4]), (x[4:8], y[4:8])], epochs=3)
    assert history["skipped"] == [1, 2, 3]


def test_steps_that_the_scaler_leaves_out_are_counted_without_a_bad_loss(on_each_device):
    x, y = make_data()
    trainer = make(precision="fp16")
    trainer.scaler._init_scale = 2.0**30  # the scaled gradients overflow until the scale has fallen
    history = trainer.fit([(x, y)], epochs=20)
    assert history["skipped"][-1] == trainer.scaler.skipped_steps() > 0


@pytest.mark.parametrize("form", ["one score", "two scores"])
def test_two_classes_are_judged_by_class_1(on_each_device, form):
    """As scikit-learn and Keras do; IoU averages both classes, as segmentation does."""
    truth = np.array([1, 0, 0, 0, 0, 1], np.int64)
    logit = np.array([1, 1, -1, -1, -1, -1], np.float32)
    given = weft.tensor(logit if form == "one score" else np.stack([-logit, logit], 1))
    for kind, expected in ((Precision, 1 / 2), (Recall, 1 / 2), (F1, 1 / 2), (IoU, (1 / 3 + 3 / 5) / 2)):
        metric = kind()
        metric.update(given, weft.tensor(truth))
        assert metric.compute().item() == pytest.approx(expected)
    three = Precision()
    three.update(weft.eye(3)[[0, 0, 1, 2]], weft.tensor([0, 1, 1, 2]))
    assert three.compute().item() == pytest.approx(2.5 / 3)


@pytest.mark.parametrize("metric", [Accuracy(), TopK(2), Precision()])
def test_labels_outside_the_classes_are_errors(on_each_device, metric):
    value = r".*index 5.*0 to 2" if on_each_device == "cpu" else ""  # a GPU keeps the place, not the value
    with pytest.raises(weft.IndexRangeError, match=rf"metric {metric.name} at .*test_train_values\.py:\d+{value}"):
        metric.update(weft.eye(3), weft.tensor([0, 5, 1]))
        metric.compute().item()
        weft.synchronize()
    ignored = metric.fresh()
    ignored.update(weft.eye(3), weft.tensor([0, -100, 2]))
    assert ignored.compute().item() == 1.0


def test_area_under_the_curve_of_scores_that_are_close_together(on_each_device):
    rng = np.random.default_rng(0)
    for scale in (1e-4, 1e-3, 1.0):
        zeros, ones = rng.normal(0, scale, 500), rng.normal(3 * scale, scale, 500)
        exact = (ones[:, None] > zeros[None]).mean()
        metric = AUC()
        score = np.concatenate([zeros, ones]).astype(np.float32)
        metric.update(weft.tensor(score), weft.tensor(np.repeat([0, 1], 500)))
        assert metric.compute().item() == pytest.approx(exact, abs=1e-3)
    metric.update(weft.tensor([float("nan")]), weft.tensor([1]))
    assert np.isnan(metric.compute().item())


def test_a_row_of_an_epoch_is_added_without_a_look_at_the_others():
    history = History()
    for epoch in range(5):
        history.add({"epoch": epoch, "loss": 1.0})
    rows = history.rows
    history.add({"epoch": 4, "loss": 2.0})
    assert rows is history.rows and history["loss"] == [1.0] * 4 + [2.0]
    history.add({"epoch": 2, "loss": 3.0})  # from an earlier checkpoint on
    assert [row["epoch"] for row in history.rows] == [0, 1, 2]
