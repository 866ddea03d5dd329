"""Training steps with schedules, clipping, accumulation and custom steps."""

import math

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from tests.backend.test_train_step import assert_same, batches_of, make_data, make_model, make_trainer, weights
from weft.data import ResidentData as Rows
from weft.train import Accuracy, Callback, Trainer

pytestmark = pytest.mark.backend


@pytest.mark.parametrize("when", ["step", "epoch"])
def test_schedules_are_those_of_a_loop_by_hand(on_each_device, when):
    x, y = make_data()
    batches = batches_of(x, y, 16)

    def schedule(optimizer):
        return weft.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    model = make_model()
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, scheduler=(schedule(optimizer), when), device=on_each_device
    )
    trainer.fit(batches, epochs=3)
    other = make_model().to(on_each_device)
    second = weft.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    scheduler, criterion = schedule(second), nn.CrossEntropyLoss()
    for _ in range(3):
        for a, b in batches:
            criterion(other(a), b).backward()
            second.step()
            second.zero_grad()
            if when == "step":
                scheduler.step()
        if when == "epoch":
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == second.param_groups[0]["lr"]
    assert_same(weights(model), weights(other))
    assert optimizer.param_groups[0].buckets[0].hyper.tolist()[0] == pytest.approx(optimizer.param_groups[0]["lr"])


def test_a_plateau_scheduler_looks_at_the_validation_loss(on_each_device):
    model = make_model()
    optimizer = weft.optim.SGD(model.parameters(), lr=1e-9)
    scheduler = weft.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, eps=0.0)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, scheduler=scheduler, device=on_each_device)
    batches = batches_of(*make_data(), 16)
    trainer.fit(batches, validation=batches[:1], epochs=5)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25e-9)


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_accumulated_parts_have_the_gradient_of_the_batch(on_each_device, parts):
    x, y = make_data(16)
    results = []
    for accumulate in (1, parts):
        trainer = make_trainer(make_model().double(), "SGD", lr=1.0, accumulate=accumulate, metrics=["accuracy"])
        loss = trainer.train_batch(x.double(), y).item()
        results.append((loss, weights(trainer.model), trainer.read()["accuracy"]))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-12)
    assert results[0][2] == results[1][2]
    for name, value in results[0][1].items():
        np.testing.assert_allclose(value, results[1][1][name], atol=1e-12)


def test_values_are_clipped(on_each_device):
    model = make_model()
    before = weights(model)
    trainer = make_trainer(model, "SGD", lr=1.0, clip_value=1e-3)
    trainer.train_batch(*make_data(16))
    largest = max(np.abs(before[name] - value).max() for name, value in weights(trainer.model).items())
    assert largest == pytest.approx(1e-3, rel=1e-3)


def test_a_step_of_ones_own(on_each_device):
    """It returns a loss and more; what it returns is shown, and the trainer goes on with backward and update."""

    def step(trainer, x, y):
        logits = trainer.model(x)
        loss = nn.functional.cross_entropy(logits, y)
        return {"loss": loss, "prediction": logits, "target": y, "largest": logits.max()}

    batches = batches_of(*make_data(), 16)
    trainers = [make_trainer(metrics=["accuracy"]), make_trainer(metrics=["accuracy"], step=step)]
    rows = [trainer.fit(batches, epochs=2).last for trainer in trainers]
    assert_same(*[weights(trainer.model) for trainer in trainers])
    assert rows[0]["loss"] == rows[1]["loss"] and rows[0]["accuracy"] == rows[1]["accuracy"]
    assert rows[1]["largest"] > 0 and "largest" not in rows[0]


def test_a_step_that_updates_several_optimizers_itself(on_each_device):
    first, second = make_model(0), make_model(1)
    pair = nn.ModuleList([first, second])
    optimizers = [weft.optim.SGD(one.parameters(), lr=0.1) for one in pair]

    def step(trainer, x, y):
        losses = []
        for model, optimizer in zip(pair, optimizers, strict=True):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return {"loss": losses[0], "other": losses[1]}

    trainer = Trainer(pair, None, optimizers, step=step, device=on_each_device)
    history = trainer.fit(batches_of(*make_data(), 16), epochs=20)
    assert history["loss"][-1] < history["loss"][0] and history["other"][-1] < history["other"][0]


def test_evaluation_uses_the_other_mode_and_leaves_it(on_each_device):
    model = make_model(dropout=0.5, norm=True)
    trainer = make_trainer(model, metrics=[Accuracy()])
    batches = batches_of(*make_data(), 16)
    trainer.fit(batches, epochs=2)
    model[2].eval()  # a layer that the user has frozen
    before = weights(model)
    first, second = trainer.evaluate(batches), trainer.evaluate(batches)
    assert first == second and set(first) == {"loss", "accuracy"}
    assert_same(before, weights(model))
    assert model.training and not model[2].training and model[3].training
    x, y = make_data()
    model.eval()
    with weft.no_grad():
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y).item()
    assert first["loss"] == pytest.approx(loss, rel=1e-5)
    assert first["accuracy"] == pytest.approx((logits.argmax(1) == y).float().mean().item())
    np.testing.assert_allclose(trainer.predict(batches).numpy(), logits.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trainer.predict(x).numpy(), logits.numpy(), rtol=1e-5, atol=1e-6)


def test_predictions_for_a_tensor_of_pytorchs(on_each_device):
    x = make_data()[0].cpu().numpy()
    trainer = make_trainer(make_model())
    expected = trainer.predict(x).numpy()
    for given in (torch.tensor(x), torch.tensor(x, requires_grad=True), torch.tensor(x).T.contiguous().T):
        np.testing.assert_array_equal(trainer.predict(given).numpy(), expected)
    seen = []

    class Model(nn.Linear):
        def forward(self, x):
            seen.append((x.shape, x.dtype, x.device))
            return x.float() * 2.0

    trainer = make_trainer(Model(1, 1))
    half = torch.tensor(x).bfloat16()
    np.testing.assert_array_equal(trainer.predict(half).numpy(), half.float().numpy() * 2.0)
    assert seen[-1] == (x.shape, weft.bfloat16, trainer.device)


@pytest.mark.parametrize(("precision", "low"), [("bf16", weft.bfloat16), ("fp16", weft.float16)])
def test_a_step_in_16_bits_reads_16_bits(on_each_device, precision, low):
    """The layers give 16-bit values in the step that `fit` runs; parameters and the loss stay float32."""
    seen = []

    class Look(nn.Module):
        def forward(self, x):
            seen.append(x.dtype)
            return x

    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), Look(), nn.Tanh(), nn.Linear(16, 3), Look())
    trainer = make_trainer(model, precision=precision, metrics=["accuracy"], clip_norm=1.0)
    history = trainer.fit(Rows(make_data(64), 16), epochs=20)
    assert set(seen) == {low} and all(value.dtype is weft.float32 for value in model.parameters())
    assert history["loss"][-1] < history["loss"][0] and trainer.meters.loss.buffers["sums"].dtype is weft.float32
    assert (history["skipped"][-1] >= 0) if precision == "fp16" else "skipped" not in history


def test_steps_that_overflow_in_float16_are_skipped_and_counted(on_each_device):
    """The scale begins above what the gradients bear; the first steps change nothing but the scale."""
    model = make_model()
    trainer = make_trainer(model, "SGD", lr=0.1, precision="fp16")
    trainer.scaler = trainer.meters.scaler = weft.amp.GradScaler(trainer.device, init_scale=2.0**40)
    before = weights(model)
    x, y = make_data(16)
    loss = trainer.train_batch(x, y).item()
    assert_same(before, weights(model))
    for _ in range(40):
        last = trainer.train_batch(x, y).item()
    assert trainer.read().skipped == trainer.scaler.skipped_steps() > 5 and last < loss


@pytest.mark.parametrize("how", [{"checkpoint": True}, {"checkpoint": ["0", "1"]}, {"memory_budget": 0.85}])
def test_activations_that_are_computed_again_change_no_bit(on_each_device, how):
    def make(**options):
        weft.manual_seed(0)
        block = lambda: nn.Sequential(nn.Linear(6, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 6))  # noqa: E731
        return make_trainer(nn.Sequential(block(), block(), block(), nn.Linear(6, 3)), **options)

    data = Rows(make_data(512), 256)
    plain = make()
    plain.fit(data, epochs=2)
    peak = plain.compiled_steps()[0].plan.memory().peak
    again = make(**{name: int(value * peak) if name == "memory_budget" else value for name, value in how.items()})
    again.fit(data, epochs=2)
    assert_same(weights(plain.model), weights(again.model))
    arenas = [trainer.compiled_steps()[0].plan.memory().arena_bytes for trainer in (plain, again)]
    assert arenas[1] < arenas[0]
    if "memory_budget" in how:
        assert again.segments.modules and again.segments.without == peak
        assert again.compiled_steps()[0].plan.memory().peak <= again.memory_budget < peak


def test_evaluating_many_times_compiles_once(on_each_device):
    """Whatever list the batches are in; and in the middle of an epoch, over the data that the epoch uses."""
    trainer = make_trainer()
    x, y = make_data(64)
    trainer.fit([(x, y)])
    for _ in range(2):  # the second one resets
        trainer.evaluate([(x, y)])
    before = weft.counters()["traces"]
    for _ in range(20):
        trainer.evaluate([(x, y)])
    assert weft.counters()["traces"] == before and len(trainer._evaluations.values()) == 1
    data = Rows([x, y], 16)

    class Evaluate(Callback):
        every = 3

        def on_batch_end(self, trainer, batch, metrics):
            trainer.evaluate(data)

    first, second = make_trainer(), make_trainer(callbacks=[Evaluate()])
    for one in (first, second):
        one.fit(data, epochs=3)
    assert_same(weights(first.model), weights(second.model))


def test_the_loss_goes_to_the_device(on_each_device):
    with weft.device("cpu"):
        loss = nn.CrossEntropyLoss(weight=weft.tensor([1.0, 2.0, 3.0]))
    model = make_model()
    trainer = Trainer(model, loss, weft.optim.SGD(model.parameters(), lr=0.1), device=on_each_device)
    assert math.isfinite(trainer.fit([make_data(16)])["loss"][0])


def test_batches_of_other_kinds(on_each_device):
    """Dicts for a step of one's own, arrays, and what a torch loader gives."""
    torch = pytest.importorskip("torch")
    x, y = make_data(32)

    def step(trainer, batch):
        return nn.functional.cross_entropy(trainer.model(batch["x"]), batch["y"])

    trainers = [make_trainer(), make_trainer(step=step), make_trainer(), make_trainer()]
    trainers[0].fit([(x, y)], epochs=2)
    trainers[1].fit([{"x": x, "y": y}], epochs=2)
    trainers[2].fit([(x.numpy(), y.numpy())], epochs=2)
    rows = torch.utils.data.TensorDataset(torch.tensor(x.numpy()), torch.tensor(y.numpy()))
    trainers[3].fit(torch.utils.data.DataLoader(rows, batch_size=32), epochs=2)
    for other in trainers[1:]:
        assert_same(weights(trainers[0].model), weights(other.model))
    assert trainers[3].wait_seconds > 0


def test_data_on_the_device_is_never_waited_for(on_each_device):
    trainer = make_trainer()
    history = trainer.fit(Rows(make_data(64), 16), epochs=2)
    assert history["wait_seconds"] == [0.0, 0.0]
