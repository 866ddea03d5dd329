"""What a Trainer is given: schedulers, losses, steps and data that are handled, or refused with a reason."""

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from tests.backend.small_trainer import BATCHES, X, Y, make
from weft.data import ArrayDataset, DataLoader, TensorDataset
from weft.errors import GraphError, RangeError
from weft.optim import lr_scheduler as schedules
from weft.train import MSE, Callback

pytestmark = pytest.mark.backend

# ---- schedulers -----------------------------------------------------------------------------------------------------


def test_a_plateau_of_what_should_grow_is_refused(on_each_device):
    model = nn.Linear(2, 1)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
    scheduler = schedules.ReduceLROnPlateau(optimizer, mode="max")
    with pytest.raises(GraphError, match=r"mode='max'.*weft\.train\.ReduceLROnPlateau\(monitor=\.\.\.\) as callback"):
        make(on_each_device, model, optimizer=optimizer, scheduler=scheduler)


def test_a_scheduler_of_another_optimizer_is_refused(on_each_device):
    other = weft.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    with pytest.raises(GraphError, match="a StepLR of another optimizer"):
        make(on_each_device, scheduler=schedules.StepLR(other, 1))


@pytest.mark.parametrize("by_step", [False, True])
def test_several_optimizers_have_their_schedulers(on_each_device, by_step, tmp_path):
    def trainer(**options):
        weft.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        optimizers = [weft.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
        second = schedules.StepLR(optimizers[1], 1, gamma=0.1)
        both = [schedules.StepLR(optimizers[0], 1, gamma=0.5), (second, "step") if by_step else second]
        return make(on_each_device, model, optimizer=optimizers, scheduler=both, **options)

    def rates(one):
        return [optimizer.param_groups[0]["lr"] for optimizer in one.optimizers]

    whole = trainer()
    whole.fit(BATCHES, epochs=2)
    assert rates(whole) == pytest.approx([0.025, 0.1 * 0.1 ** (6 if by_step else 2)])
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    begin = trainer()
    model.load_state_dict({name: torch.tensor(one.numpy()) for name, one in begin.model.state_dict().items()})
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    for epoch in range(2):
        for number, (x, y) in enumerate(BATCHES):
            power = epoch * 3 + number if by_step else epoch
            optimizers[0].param_groups[0]["lr"] = 0.1 * 0.5**epoch
            optimizers[1].param_groups[0]["lr"] = 0.1 * 0.1**power
            loss = torch.nn.functional.mse_loss(model(torch.tensor(x)), torch.tensor(y))
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    for one, two in zip(whole.model.parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-4, atol=1e-6)
    trainer(run=tmp_path).fit(BATCHES, epochs=1)
    again = trainer(run=tmp_path)
    again.fit(BATCHES, epochs=2)
    assert rates(again) == rates(whole)
    np.testing.assert_array_equal(again.model[0].weight.numpy(), whole.model[0].weight.numpy())


def test_a_sequence_with_a_warmup_counts_steps(on_each_device):
    model = nn.Linear(2, 1)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
    parts = [schedules.Warmup(optimizer, 2), schedules.StepLR(optimizer, 1)]
    sequence = schedules.SequentialLR(optimizer, parts, milestones=[2])
    assert make(on_each_device, model, optimizer=optimizer, scheduler=sequence).schedules_steps
    assert not make(on_each_device, model, optimizer=optimizer, scheduler=(sequence, "epoch")).schedules_steps
    parts = [schedules.LinearLR(optimizer), schedules.StepLR(optimizer, 1)]
    sequence = schedules.SequentialLR(optimizer, parts, milestones=[2])
    assert not make(on_each_device, model, optimizer=optimizer, scheduler=sequence).schedules_steps


def test_a_state_without_a_schedule_is_refused(on_each_device):
    plain = make(on_each_device)
    plain.fit(BATCHES)
    model = nn.Linear(2, 1)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
    scheduled = make(on_each_device, model, optimizer=optimizer, scheduler=schedules.StepLR(optimizer, 1))
    with pytest.raises(GraphError, match="the state of no schedulers; expected that of 1"):
        scheduled.load_state_dict(plain.state_dict())
    assert scheduled.step_count == 0
    scheduled.fit(BATCHES)
    with pytest.warns(UserWarning, match="has a scheduler, this Trainer has none"):
        plain.load_state_dict(scheduled.state_dict())
    half = make(on_each_device, precision="fp16")
    with pytest.warns(UserWarning, match="no loss scale"):
        half.load_state_dict(make(on_each_device).state_dict() | {"step": 3})


# ---- steps and losses -----------------------------------------------------------------------------------------------


def test_an_evaluation_does_not_train(on_each_device):
    def backward(trainer, x, y):
        loss = nn.functional.mse_loss(trainer.model(x), y)
        loss.backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return loss.detach()

    def decay(trainer, x, y):
        with weft.no_grad():
            trainer.model.weight.mul_(0.5)
        return nn.functional.mse_loss(trainer.model(x), y).detach()

    for step, what in (
        (backward, r"a step that calls backward\(\)"),
        (decay, r"a step that changes parameters \(weight"),
    ):
        trainer = make(on_each_device, step=step)
        before = trainer.model.weight.numpy().copy()
        with pytest.raises(GraphError, match=rf"Trainer\.evaluate: given {what}.*trainer\.model\.training is False"):
            trainer.evaluate(BATCHES)
        np.testing.assert_array_equal(trainer.model.weight.numpy(), before)


def test_metrics_of_parts_whose_predictions_are_several(on_each_device):
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    class First(MSE):
        def update(self, prediction, target):
            super().update(prediction[0], target)

    def run(accumulate):
        trainer = make(
            on_each_device, Two(2, 1), lambda pair, y: (pair[0] - y).square().mean(),
            accumulate=accumulate, metrics=[First(name="first")],
        )  # fmt: skip
        return trainer.fit(BATCHES).last["first"]

    assert run(2) == pytest.approx(run(1), rel=1e-5)


def test_a_loss_that_needs_no_gradient_is_refused_in_parts_too(on_each_device):
    for options in ({}, {"accumulate": 2}):
        with pytest.raises(GraphError, match="a loss that requires no gradient"):
            make(on_each_device, nn.Linear(2, 1).requires_grad_(False), **options).fit(BATCHES)


def test_weights_of_rows_are_refused_in_parts(on_each_device):
    for weight in (weft.rand(4, 1), weft.rand(2, 1)):
        with pytest.raises(GraphError, match="belongs to one batch"):
            make(on_each_device, loss=nn.BCEWithLogitsLoss(weight=weight), accumulate=2).fit(BATCHES)
    make(on_each_device, loss=nn.BCEWithLogitsLoss(weight=weft.rand(1)), accumulate=2).fit(BATCHES)


def test_a_loss_of_ones_own_counts_what_it_says(on_each_device):
    labels = np.array([0, 1, -100, -100, 1, -100, -100, -100, 0, 0, 0, 1])

    def counted(prediction, target):
        total = nn.functional.cross_entropy(prediction, target, reduction="sum")
        return total, (target != -100).sum()

    def run(loss, accumulate):
        trainer = make(on_each_device, nn.Linear(2, 2), loss, accumulate=accumulate)
        trainer.fit([(X, labels)], validation=[(X, labels)], epochs=2)
        return trainer.model.weight.numpy(), trainer.history

    expected, history = run(nn.CrossEntropyLoss(), 1)
    for accumulate in (1, 3):
        found, own = run(counted, accumulate)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert own["val_loss"] == pytest.approx(history["val_loss"], rel=1e-5)


def test_an_evaluation_has_the_regularizer(on_each_device):
    trainer = make(on_each_device, regularizer=lambda params: params[0].square().sum() * 3.0)
    penalty = 3.0 * float((trainer.model.weight.numpy() ** 2).sum())
    loss = float(((trainer.predict(X).numpy() - Y) ** 2).mean())
    assert trainer.evaluate(BATCHES)["loss"] == pytest.approx(loss + penalty, rel=1e-5)


# ---- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [None, False])
def test_shuffled_predictions_are_reported(on_each_device, resident):
    options = {} if resident is None else {"resident": resident}
    trainer = make(on_each_device)
    with pytest.warns(UserWarning, match="shuffled, and so are the results"):
        trainer.predict(DataLoader(ArrayDataset(X, Y), batch_size=4, shuffle=True, **options))
    found = trainer.predict(DataLoader(ArrayDataset(X, Y), batch_size=4, **options))
    np.testing.assert_array_equal(found.numpy(), trainer.predict(X).numpy())


@pytest.mark.parametrize("resident", [None, False])
def test_samples_that_fill_a_batch_are_not_evaluated_twice(on_each_device, resident):
    options = {} if resident is None else {"resident": resident}
    data = TensorDataset(weft.tensor(X[:10]), weft.tensor(Y[:10]))
    trainer, loader = make(on_each_device), DataLoader(data, batch_size=4, last="pad", **options)
    expected = float(((trainer.predict(X[:10]).numpy() - Y[:10]) ** 2).mean())
    assert trainer.evaluate(loader)["loss"] == pytest.approx(expected, rel=1e-5)
    assert trainer.predict(loader).shape == (10, 1)


def test_inputs_that_were_taken_for_a_target_are_reported(on_each_device):
    class Two(nn.Linear):
        def forward(self, a, b):
            return super().forward(a) + b[:, :1]

    trainer = make(on_each_device, Two(2, 1))
    with pytest.raises(GraphError, match=r"Trainer\.predict: given batches of which the last part is left out"):
        trainer.predict([(X, X)])
    assert trainer.predict([(X, X, None)]).shape == (12, 1)


def test_an_empty_validation_is_called_so(on_each_device):
    with pytest.raises(RangeError, match="validation data without a batch"):
        make(on_each_device).fit(BATCHES, validation=iter(()))


def test_a_run_that_ends_with_an_epoch_is_validated(on_each_device):
    trainer = make(on_each_device)
    trainer.fit(BATCHES, BATCHES, epochs=10, max_steps=6, validate_every=5)
    assert "val_loss" in trainer.history.last


def test_an_error_before_the_first_step_of_an_epoch_changes_no_order(on_each_device):
    class Fail(Callback):
        failed = False

        def on_epoch_begin(self, trainer, epoch, metrics):
            if epoch == 1 and not self.failed:
                self.failed = True
                raise OSError("once")

    def run(callbacks):
        trainer = make(on_each_device, callbacks=callbacks)
        data = DataLoader(ArrayDataset(X, Y), batch_size=4, shuffle=True)
        for _ in callbacks:
            with pytest.raises(OSError, match="once"):
                trainer.fit(data, epochs=3)
        trainer.fit(data, epochs=3)
        return trainer.model.weight.numpy()

    np.testing.assert_array_equal(run([Fail()]), run([]))


# ---- arguments that are refused -------------------------------------------------------------------------------------


def test_arguments_that_are_refused(on_each_device, tmp_path):
    (tmp_path / "file").write_text("")
    refused = [
        ({"clip_norm": "1"}, "clip_norm '1'"),
        ({"clip_value": True}, "clip_value True"),
        ({"accumulate": True}, "accumulate True"),
        ({"seed": "a"}, "seed 'a'"),
        ({"seed": 1.5}, "seed 1.5"),
        ({"run": tmp_path / "file"}, "which is a file"),
        ({"run": 3}, "run 3"),
    ]
    for options, text in refused:
        with pytest.raises((GraphError, RangeError), match=f"Trainer: given .*{text}"):
            make(on_each_device, **options)


def test_a_callback_every_0_steps_is_refused(on_each_device):
    class Never(Callback):
        every = 0

        def on_batch_end(self, trainer, batch, metrics):
            raise AssertionError

    with pytest.raises(RangeError, match="Never with every=0"):
        make(on_each_device, callbacks=[Never()]).fit(BATCHES)


def test_searches_refuse_what_they_cannot_do(on_each_device):
    trainer = make(on_each_device)
    for largest in (0, -1):
        with pytest.raises(RangeError, match="find_batch_size: given largest"):
            trainer.find_batch_size(*BATCHES[0], largest=largest)
    assert trainer.find_batch_size(*BATCHES[0], largest=100) == 64
    with pytest.raises(RangeError, match="overfit_one_batch: given steps 0"):
        trainer.overfit_one_batch(BATCHES, steps=0)
    with pytest.raises(RangeError, match="find_lr: given an iterator of 3 batches; expected 10"):
        trainer.find_lr(iter(BATCHES), steps=10)
    assert len(trainer.find_lr(iter(BATCHES * 4), steps=10).rates) == 10
