"""What a Trainer checks before a run, and what it refuses."""

import json
import math

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.backend.test_train_callbacks import make_data, make_trainer
from weft.data import ResidentData
from weft.train import (
    EMA,
    MSE,
    Accuracy,
    EarlyStopping,
    History,
    Trainer,
)

pytestmark = pytest.mark.backend


def state_of(trainer):
    state = trainer.state_dict()
    flat = {name: value.numpy().tobytes() for name, value in state["model"].items()}
    entries = state["optimizers"][0]["state"]
    for key, entry in entries.items():
        flat[f"state {key}"] = [value.numpy().tobytes() for value in entry.values()]
    return flat, state["random"], state["step"], state["optimizers"][0]["param_groups"][0]["lr"]


def test_searches_leave_everything_as_it_was(on_each_device):
    trainer = make_trainer()
    data = ResidentData(make_data(), 16)
    trainer.fit(data, epochs=1)
    before = state_of(trainer)
    found = trainer.find_lr(data, max_lr=100.0)
    assert state_of(trainer) == before
    check = trainer.overfit_one_batch(data, steps=400)
    assert check.passed and len(check.losses) == 400 and "passed" in repr(check)
    assert state_of(trainer) == before
    norms = trainer.gradient_norms(*make_data())
    assert state_of(trainer) == before
    assert len(found.rates) == len(found.losses) == 100 and 1e-3 < found.suggestion < 10.0
    assert set(norms) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    x, y = make_data()
    nn.functional.cross_entropy(trainer.model(x), y).backward()
    for name, parameter in trainer.model.named_parameters():
        assert norms[name] == pytest.approx(parameter.grad.norm().item(), rel=1e-5)


def test_the_batch_size_follows_from_predicted_memory(on_each_device):
    """The largest power of two whose predicted peak fits; the next one does not. Nothing runs."""
    trainer = make_trainer()
    x, y = make_data(8)
    trainer.train_batch(x, y)
    before = weft.counters()["plans_run"]
    limit = 1 << 20
    size = trainer.find_batch_size(x, y, limit=limit)
    assert weft.counters()["plans_run"] - before <= 2

    def peak(rows):
        step = lambda a, b: weft.train.step.train_on(trainer, (a, b), (), [])  # noqa: E731
        data = weft.zeros(rows, 4), weft.zeros(rows, dtype=weft.int64)
        return weft.memory_report(step, *data).peak

    assert size & (size - 1) == 0 and peak(size) <= limit < peak(2 * size)
    assert trainer.find_batch_size(x, y, largest=256) == 256
    with pytest.raises(weft.RangeError, match="which a batch of one sample takes"):
        trainer.find_batch_size(x, y, limit=100)


def test_searches_with_a_scaled_loss_and_batch_statistics(on_each_device):
    x, y = make_data(16)
    plain, low = (make_trainer(precision=precision).gradient_norms(x, y) for precision in ("fp32", "fp16"))
    for name, value in plain.items():
        assert low[name] == pytest.approx(value, rel=2e-2)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, device=on_each_device)
    assert trainer.find_batch_size(x, y, largest=64) == 64  # one sample has no statistics
    with pytest.raises(weft.RangeError, match="which a batch of 2 samples takes"):
        trainer.find_batch_size(x, y, limit=100)


def test_a_history_is_drawn(tmp_path):
    pytest.importorskip("weft.drawing.charts")
    history = History()
    for epoch in range(3):
        history.add({"epoch": epoch, "loss": 1.0 / (epoch + 1), "val_loss": 1.2, "accuracy": 0.5, "matrix": [[1]]})
    picture = history.plot(tmp_path / "curves.svg").read_text()
    assert picture.startswith("<svg") and "val_loss" in picture and "accuracy" in picture
    assert json.loads(json.dumps(history.state_dict())) == history.state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "precision 'fp8'; expected one of fp32, bf16, fp16"),
        ({"accumulate": 0}, "accumulate 0"),
        ({"on_nan": "warn"}, "on_nan 'warn'"),
        ({"clip_norm": 0.0}, "clip_norm 0.0"),
        ({"metrics": ["acc"]}, "metric 'acc'; expected a Metric, or one of accuracy"),
        ({"metrics": ["accuracy", "mse", Accuracy()]}, "two values named 'accuracy'"),
        ({"metrics": [MSE(name="loss")]}, "two values named 'loss'"),
        ({"scheduler": "cosine"}, "a scheduler of weft.optim.lr_scheduler"),
        ({"loss": "mse"}, "loss 'mse'"),
        ({"loss": None}, "neither a loss nor a step"),
        ({"optimizer": "adam"}, "an optimizer of type str"),
        ({"optimizer": weft.optim.LBFGS([weft.ones(1, requires_grad=True)])}, "LBFGS"),
    ],
)
def test_wrong_arguments(options, message):
    model = nn.Linear(2, 2)
    given = {"loss": nn.MSELoss(), "optimizer": weft.optim.SGD(model.parameters(), lr=0.1), "device": "cpu", **options}
    with pytest.raises(weft.WeftError) as error:
        Trainer(model, given.pop("loss"), given.pop("optimizer"), **given)
    assert message in str(error.value)


def test_wrong_data(on_each_device):
    trainer = make_trainer()
    x, y = make_data()
    with pytest.raises(weft.RangeError, match="data of type Tensor"):
        trainer.fit(x)
    with pytest.raises(weft.RangeError, match="data without a batch"):
        trainer.fit([])
    with pytest.raises(weft.ShapeError, match=r"a batch that is one Tensor; expected \(inputs, target\)"):
        trainer.fit([x])
    trainer.loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(weft.ShapeError, match=r"a loss of shape \[64\]"):
        trainer.fit([(x, y)])
    generator = (batch for batch in [(x, y)])
    trainer = make_trainer()
    with pytest.raises(weft.RangeError, match="used up"):
        trainer.fit(generator, epochs=2)


def test_a_step_may_return_numbers_of_python_and_of_any_dtype(on_each_device):
    x, y = make_data()
    trainer = make_trainer(metrics=["accuracy"])
    more = {"n": 3.0, "k": 2, "numpy": np.float32(0.5)}

    def step(trainer, x, y):
        return {"loss": trainer.model(x).square().mean(), **more, "labels": y, "wide": x.double()}

    trainer = Trainer(trainer.model, None, trainer.optimizers[0], step=step, device=weft.default_device())
    trainer.fit([(x, y)] * 2, epochs=2)
    for name, expected in {"n": 3.0, "k": 2.0, "numpy": 0.5, "labels": y.double().mean().item()}.items():
        assert trainer.history[name] == pytest.approx([expected] * 2)
    more["n"] = 5.0
    trainer.fit([(x, y)], epochs=3)
    assert trainer.history["n"][-1] == 5.0
    more["word"] = "epoch"
    with pytest.raises(weft.GraphError, match="a step that returned 'word' of type str"):
        trainer.fit([(x, y)], epochs=4)


def test_a_step_may_not_return_the_name_of_a_metric(on_each_device):
    def step(trainer, x, y):
        return {"loss": trainer.model(x).square().mean(), "accuracy": 1.0}

    model = nn.Linear(4, 2)
    trainer = Trainer(model, None, weft.optim.SGD(model.parameters(), lr=0.1), step=step, metrics=["accuracy"])
    with pytest.raises(weft.RangeError, match="a step that returned 'accuracy', which is a metric"):
        trainer.fit([make_data()])


def test_optimizers_may_be_made_from_the_parameters(on_each_device):
    model = nn.Linear(4, 2)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), lambda params: weft.optim.SGD(params, lr=0.5), device=on_each_device
    )
    assert trainer.fit([make_data()], epochs=5)["loss"][-1] < trainer.history["loss"][0]


def test_steps_that_are_left_out_change_neither_metrics_nor_averages(on_each_device):
    x, y = make_data(16)

    def step(trainer, x, y):
        prediction = trainer.model(x)
        return {"loss": trainer.loss(prediction, y), "prediction": prediction, "target": y, "size": prediction.sum()}

    def run(batches):
        trainer = make_trainer([EMA(0.5)], metrics=[weft.train.MSE()], on_nan="skip", step=step)
        trainer.loss = lambda prediction, target: nn.functional.mse_loss(prediction, target)
        history = trainer.fit(batches)
        averages = [value.tolist() for value in trainer.callbacks[0].average.averages]
        return history["mse"], history["size"], history["loss"], averages

    y = x[:, :2]
    good = run([(x, y), (x, y)])
    assert run([(x, y), (x * math.nan, y), (x, y)]) == good
    assert math.isfinite(good[0][0])


def test_a_run_that_was_stopped_early_stays_stopped(on_each_device, tmp_path):
    for _ in range(3):  # a script that is run again
        trainer = make_trainer([EarlyStopping("loss", patience=2)], lr=0.0, run=tmp_path)
        trainer.fit([make_data()], epochs=20)
        assert (trainer.epoch, trainer.stopped is not None) == (3, True)
    trainer.callbacks[0].patience = 4
    trainer.fit([make_data()], epochs=20)
    assert trainer.epoch == 5


def test_early_stopping_restores_the_weights_that_were_validated(on_each_device):
    data = [make_data()]
    stopping = EarlyStopping("val_loss", patience=50, restore_best=True)
    trainer = make_trainer([EMA(0.9), stopping])
    history = trainer.fit(data, data, epochs=5)
    trainer.callbacks = ()
    assert trainer.evaluate(data)["loss"] == min(history["val_loss"]) == stopping.best


def test_searches_leave_the_random_stream_as_it_is(on_each_device):
    loader = weft.data.DataLoader(weft.data.TensorDataset(*make_data()), batch_size=8, shuffle=True)
    trainer = make_trainer()
    drawn = weft.default_generator.get_state()
    trainer.overfit_one_batch(loader, steps=2)
    assert weft.default_generator.get_state() == drawn
    trainer.find_lr(loader, steps=8)
    assert weft.default_generator.get_state() == drawn
