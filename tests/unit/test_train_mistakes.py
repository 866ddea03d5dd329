"""What a person who begins with the Trainer gets wrong: each mistake is an error that says what to do."""

import json
import os
import re
import traceback

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.data import ArrayDataset, DataLoader, TensorDataset
from weft.errors import WeftError
from weft.train import Accuracy, EarlyStopping, Metric, NotFiniteError, ProgressBar, Trainer

pytestmark = pytest.mark.unit

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(20, 4)).astype(np.float32), rng.integers(0, 3, 20)


def make(model=None, loss="given", optimizer=None, **options):
    model = nn.Linear(4, 3) if model is None else model
    loss = nn.CrossEntropyLoss() if loss == "given" else loss
    optimizer = optimizer or weft.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, loss, optimizer, device="cpu", **options)


def fit(*args, data=None, **options):
    numbers = {
        key: options.pop(key) for key in ("epochs", "max_steps", "validate_every", "validation") if key in options
    }
    return make(*args, **options).fit([(X, Y)] if data is None else data, **numbers)


class Duck:
    def on_epoch_end(self, trainer, epoch, metrics):
        pass


class Wrong(Metric):
    """The number of wrong predictions, in an attribute of its own, which nobody reads, resets or saves."""

    name = "wrong"

    def __init__(self):
        super().__init__()
        self.total = weft.zeros(())

    def update(self, prediction, target):
        self.total += (prediction.argmax(1) != target).float().sum()

    def compute(self):
        return self.total


class Raw(Wrong):
    def __init__(self):
        pass


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x):
        return self.first(x), self.second(x)


def frozen():
    model = nn.Linear(4, 3)
    model.requires_grad_(False)
    return model


def both(prediction, target):
    return nn.functional.cross_entropy(prediction[0], target)


def step_of(result):
    return {"loss": None, "step": lambda trainer, x, y: result(nn.functional.cross_entropy(trainer.model(x), y))}


def loader(rows, **options):
    return DataLoader(ArrayDataset(X[:rows], Y[:rows]), 64, **options)


MISTAKES = {
    # what is passed to the Trainer
    "a class as the model": (lambda: make(nn.Linear, optimizer=weft.optim.SGD), "Fix: make one: Linear"),
    "a function as the model": (lambda: make(lambda x: x, optimizer=weft.optim.SGD), "expected a weft.nn.Module"),
    "a class as the loss": (lambda: make(loss=nn.CrossEntropyLoss), r"Fix: make one: CrossEntropyLoss\(\)"),
    "a callback without a list": (lambda: make(callbacks=EarlyStopping()), "callbacks of type EarlyStopping.*a list"),
    "a class as a callback": (lambda: make(callbacks=[ProgressBar]), r"Fix: make one: ProgressBar\(\)"),
    "any object as a callback": (lambda: make(callbacks=[Duck()]), "Fix: subclass weft.train.Callback"),
    "a metric without a list": (lambda: make(metrics="accuracy"), r"Fix: metrics=\['accuracy'\]"),
    "a misspelt metric": (lambda: make(metrics=["acuracy"]), "Fix: the nearest name is 'accuracy'"),
    "a class as a metric": (lambda: make(metrics=[Accuracy]), r"Fix: make one: Accuracy\(\)"),
    "a function as a metric": (lambda: make(metrics=[both]), "Fix: for one of your own, subclass weft.train.Metric"),
    "a metric without super()": (lambda: make(metrics=[Raw()]), r"metric Raw: .*Fix: call super\(\).__init__\(\)"),
    "the optimizer of another model": (
        lambda: make(optimizer=weft.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.1)),
        "an optimizer that has no parameter of the model.*Fix: make it with model.parameters",
    ),
    # what is passed to fit
    "arrays": (lambda: fit(data=X), r"data of type ndarray.*TensorDataset\(x, y\).*or \[\(x, y\)\] for one batch"),
    "a data set": (lambda: fit(data=TensorDataset(weft.tensor(X))), r"Fix: DataLoader\(data, batch_size=32"),
    "a pair of arrays": (lambda: fit(data=(X, Y)), r"a batch that is one Tensor.*such as \[\(x, y\)\]"),
    "batches that are dicts": (lambda: fit(data=[{"x": X, "y": Y}]), r"a batch that is one dict.*pass step="),
    "negative epochs": (lambda: fit(epochs=-1), "epochs -1; expected an integer of at least 0"),
    "half an epoch": (lambda: fit(epochs=1.5), "epochs 1.5; expected an integer"),
    "negative steps": (lambda: fit(max_steps=-1), "max_steps -1"),
    "validation after no epoch": (lambda: fit(validation=[(X, Y)], validate_every=0), "validate_every 0"),
    "an empty validation list": (lambda: fit(validation=[]), "validation data without a batch.*validation=None"),
    "an empty validation set": (lambda: fit(validation=loader(0)), "validation data without a batch"),
    "fewer samples than a batch": (
        lambda: fit(data=loader(5, drop_last=True)), "5 samples, dropped as less than a batch of 64.*drop_last=False"
    ),
    # what functions return
    "a loss of a batch": (lambda: fit(loss=nn.CrossEntropyLoss(reduction="none")), r"shape \[20\].*reduction='mean'"),
    "no loss": (lambda: fit(loss=lambda p, t: None), "a loss of type NoneType.*Fix: return a tensor"),
    "a loss without a gradient": (lambda: fit(loss=lambda p, t: p.mean().detach()), "loss that requires no gradient"),
    "a frozen model": (lambda: fit(frozen()), "a loss that requires no gradient.*Fix: let a parameter require grad"),
    "a step that returns losses": (lambda: fit(**step_of(lambda loss: loss.expand(20))), r"a tensor of shape \[20\]"),
    "a step that returns nothing": (lambda: fit(**step_of(lambda loss: None)), "a step that returned nothing"),
    "a step without the loss": (lambda: fit(**step_of(lambda loss: {"los": loss})), "dict of los; .*dict with 'loss'"),
    "a step with another loss": (
        lambda: fit(**step_of(lambda loss: {"loss": loss.expand(2)})), r"a dict whose 'loss' is a tensor of shape \[2\]"
    ),
    "a step of two": (lambda: fit(**step_of(lambda loss: (loss, 1))), r"returned \(a tensor of shape \[\], a int\)"),
    "sums that are no buffers": (lambda: fit(metrics=[Wrong()]), "metric wrong: given an update without a buffer"),
    "accuracy of two heads": (
        lambda: fit(TwoHeads(), both, metrics=["accuracy"]), "metric accuracy: given a prediction of type tuple"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_errors_that_say_what_to_do(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(WeftError, match=re.compile(message, re.DOTALL)):
        call()


def frames_of(error):
    return [os.path.basename(one.filename) for one in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_tracebacks_of_mistakes_have_frames_of_the_user_alone(mistake):
    with pytest.raises(WeftError) as caught:
        MISTAKES[mistake][0]()
    assert set(frames_of(caught.value)) == {os.path.basename(__file__)}


def test_an_error_in_the_users_model_ends_at_its_line():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x).reshape(7)

    with pytest.raises(weft.ShapeError, match="reshape") as caught:
        fit(Net())
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [one.name for one in frames[-2:]] == ["fit", "forward"]
    assert set(frames_of(caught.value)) == {os.path.basename(__file__)}


def test_data_that_is_not_finite_is_said_to_be_the_cause():
    wrong = X.copy()
    wrong[3, 1] = np.nan
    with pytest.raises(
        NotFiniteError, match=r"whose input is not finite.*Fix: look for NaN and infinite values in the data"
    ):
        fit(data=DataLoader(ArrayDataset(wrong, Y), 8))
    with pytest.raises(NotFiniteError, match="Fix: lower the learning rate"):
        fit(loss=lambda prediction, target: (prediction - prediction.detach() - 1).log().mean())


def test_labels_that_are_texts_say_how_they_become_numbers():
    with pytest.raises(weft.DTypeError, match=r"np\.unique"):
        fit(data=DataLoader(ArrayDataset(X, np.array(["cat", "dog"] * 10)), 8))


def test_a_history_without_an_epoch():
    history = fit(epochs=0)
    assert repr(history) == "History(0 epochs)"
    with pytest.raises(WeftError, match="given 'loss'; expected an epoch at least"):
        history["loss"]


def test_a_history_shows_what_was_measured():
    assert re.fullmatch(r"History\(1 epoch: loss=[\d.]+, lr=0.1\)", repr(fit()))
    assert repr(fit(epochs=2)).startswith("History(2 epochs: ")


def test_a_monitor_that_is_not_measured_names_the_nearest():
    with pytest.raises(WeftError, match=r"monitor 'val_acc'.*Fix: the nearest name is 'val_accuracy'"):
        fit(metrics=["accuracy"], callbacks=[EarlyStopping("val_acc")], validation=[(X, Y)])
    with pytest.raises(WeftError, match=r"Fix: choose one of them, or add it to metrics= of the Trainer"):
        fit(callbacks=[EarlyStopping("val_zzz")], validation=[(X, Y)])


def test_one_module_may_be_named_without_a_list():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))
    make(model, checkpoint="1")
    assert [one.checkpoint for one in model] == [False, True]


def test_data_sets_and_other_dtypes_in_words():
    assert repr(ArrayDataset(X, Y)) == "ArrayDataset(20 items)"
    assert repr(weft.data.IterableDataset()) == "IterableDataset()"
    with pytest.raises(weft.DTypeError, match=r"float64 and float32.*Fix: cast one of them, as x.float\(\)"):
        fit(data=[(X.astype(np.float64), Y)])


def test_a_step_that_called_backward_itself_returns_its_loss_detached():
    model = nn.Linear(4, 3)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)

    def step(trainer, x, y, is_detached=False):
        loss = nn.functional.cross_entropy(trainer.model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach() if is_detached else loss

    with pytest.raises(weft.GraphError, match=r"Trainer: given a step that has called backward\(\).*loss.detach\(\)"):
        fit(model, None, optimizer, step=step)
    right = fit(model, None, optimizer, step=lambda *batch: step(*batch, is_detached=True), epochs=3)
    assert right["loss"] == sorted(right["loss"], reverse=True)


def test_loaders_trainers_and_metrics_in_words():
    assert repr(loader(20)) == "DataLoader(ArrayDataset(20 items), batch_size=64)"
    assert repr(make()) == "Trainer(Linear, SGD, device=cpu, epoch=0, step=0)"
    assert repr(Accuracy(name="strict")) == "Accuracy(name='strict')"
    with pytest.raises(WeftError, match="batch_size='8'; expected a positive whole number"):
        DataLoader(ArrayDataset(X), "8")
    with pytest.raises(WeftError, match="a dataset of type int; expected items"):
        DataLoader(5)


def test_a_loss_function_has_its_name_in_the_configuration_of_a_run(tmp_path):
    fit(loss=smoothed, run=tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["loss"] == "smoothed"


def smoothed(prediction, target):
    return nn.functional.cross_entropy(prediction, target, label_smoothing=0.1)


class Ragged(weft.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.zeros(index)


def save_and_load_another(folder):
    nn.Linear(4, 3).save(folder / "model.safetensors")
    nn.Linear(5, 3).load(folder / "model.safetensors")


FILES_AND_DATA = {
    "items of other shapes": lambda folder: list(DataLoader(Ragged(), 2)),
    "items of other shapes, read by a thread": lambda folder: list(DataLoader(Ragged(), 2, num_workers=1)),
    "a state of another model": lambda folder: nn.Linear(4, 3).load_state_dict(nn.Linear(5, 3).state_dict()),
    "a file of another model": save_and_load_another,
    "a model that cannot be saved": lambda folder: nn.Lambda(lambda x: x).save(folder / "model.safetensors"),
    "a file that is none": lambda folder: nn.load(__file__),
}


@pytest.mark.parametrize("mistake", FILES_AND_DATA)
def test_errors_about_files_and_data_end_at_the_users_line(mistake, tmp_path):
    with pytest.raises(WeftError) as caught:
        FILES_AND_DATA[mistake](tmp_path)
    assert set(frames_of(caught.value)) == {os.path.basename(__file__)}


def test_a_schedule_that_is_too_short_says_how_long_it_has_to_be():
    model = nn.Linear(4, 3)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
    scheduler = weft.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    with pytest.raises(WeftError, match=r"given step 3; expected at most 2 steps\. Fix: .*epochs \* len\(loader\)"):
        fit(model, optimizer=optimizer, scheduler=scheduler, epochs=4)
