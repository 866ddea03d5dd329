"""The Trainer's step: the five tests of a training system, transfers, schedules, losses that are not finite."""

import gc
import math
import weakref

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.data import ResidentData as Rows
from weft.train import Callback, NotFiniteError, Trainer

pytestmark = pytest.mark.backend


def make_data(rows=50, seed=0, device=None):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int64) + (x[:, 3] > 1)
    return weft.tensor(x, device=device), weft.tensor(y, device=device)


def make_model(seed=0, dropout=0.0, norm=False):
    weft.manual_seed(seed)
    layers = [
        nn.Linear(6, 16),
        nn.Tanh(),
        *([nn.BatchNorm1d(16)] if norm else []),
        nn.Dropout(dropout),
        nn.Linear(16, 3),
    ]
    return nn.Sequential(*layers)


def make_trainer(model=None, kind="AdamW", **options):
    model = model or make_model()
    lr = options.pop("lr", 1e-2)
    optimizer = getattr(weft.optim, kind)(model.parameters(), lr=lr)
    options.setdefault("device", weft.default_device())
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, **options)


def weights(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def batches_of(x, y, size):
    return [(x[k : k + size], y[k : k + size]) for k in range(0, len(x), size)]


# ---- the five tests of a training system ----------------------------------------------------------------------------


def test_gradients_are_those_of_finite_differences(on_each_device):
    """What the step applies with plain SGD and rate 1 is the gradient, within 1e-5."""
    x, y = make_data(8)
    model = make_model().double()
    before = weights(model)
    trainer = make_trainer(model, "SGD", lr=1.0)
    trainer.train_batch(x.double(), y)
    moved = {name: before[name] - value for name, value in weights(model).items()}
    model.load_state_dict(before)
    criterion = nn.CrossEntropyLoss()
    for name, parameter in model.named_parameters():
        start = before[name]
        for place in list(np.ndindex(*start.shape))[::7]:
            ends = []
            for sign in (1.0, -1.0):
                changed = start.copy()
                changed[place] += sign * 1e-6
                parameter.data = weft.tensor(changed)
                ends.append(criterion(model(x.double()), y).item())
            parameter.data = weft.tensor(start)
            assert abs(moved[name][place] - (ends[0] - ends[1]) / 2e-6) < 1e-5


def run_by_hand(device, epochs):
    """The losses of each epoch and the weights of a loop outside weft.compile, on a device that may only interpret."""
    with weft.device(device):
        model = make_model().to(device)
        optimizer, criterion, losses = weft.optim.AdamW(model.parameters(), lr=1e-2), nn.CrossEntropyLoss(), []
        for _ in range(epochs):
            total = 0.0
            for x, y in batches_of(*make_data(device=device), 16):
                loss = criterion(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                total += loss.item() * len(x)
            losses.append(total / 50)
        return losses, weights(model)


def test_updates_and_convergence_are_those_of_the_cpu(on_each_device):
    """Against the interpreter of the reference, and on a GPU against the CPU, too: the updates of the first epoch, and
    losses and weights after five."""
    for epochs in (1, 5):
        trainer = make_trainer(clip_norm=1.0)
        losses = trainer.fit(batches_of(*make_data(), 16), epochs=epochs)["loss"]
        for other in ("reference",) if on_each_device == "cpu" else ("reference", "cpu"):
            expected, theirs = run_by_hand(other, epochs)
            np.testing.assert_allclose(losses, expected, rtol=2e-5)
            for name, value in weights(trainer.model).items():
                np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=2e-5, err_msg=name)


def test_a_thousand_steps_take_no_memory(on_each_device):
    """Neither buffers nor Python objects grow, nor is anything traced or planned again."""
    import gc

    data = Rows(make_data(64), 16)
    trainer = make_trainer(metrics=["accuracy"])
    trainer.fit(data, epochs=5)
    gc.collect()
    before, objects = weft.counters(), len(gc.get_objects())
    memory = weft.memory_stats(on_each_device)["allocated_bytes.all.current"]
    trainer.fit(data, epochs=255)
    gc.collect()
    assert weft.memory_stats(on_each_device)["allocated_bytes.all.current"] <= memory
    after = weft.counters()
    assert trainer.step_count == 1020
    assert {name: after[name] - before[name] for name in ("traces", "plans_built", "kernels_compiled")} == {
        "traces": 0, "plans_built": 0, "kernels_compiled": 0,
    }  # fmt: skip
    rows = 250 * 12  # of the history: a dict and its values for each epoch
    assert len(gc.get_objects()) - objects < rows


def test_recorded_steps_are_those_of_an_eager_loop(on_each_device):
    """Bit for bit, with dropout, clipping and a penalty."""
    x, y = make_data()
    batches = batches_of(x, y, 16)
    penalty = lambda params: weft.optim.l2_penalty(params, 1e-3)  # noqa: E731
    trainer = make_trainer(make_model(dropout=0.2), clip_norm=0.5, regularizer=penalty, seed=3, on_nan="ignore")
    trainer.fit(batches, epochs=3)

    model = make_model(dropout=0.2).to(on_each_device)
    optimizer, criterion = weft.optim.AdamW(model.parameters(), lr=1e-2), nn.CrossEntropyLoss()
    weft.manual_seed(3)
    for _ in range(3):
        for a, b in batches:
            loss = criterion(model(a), b) + penalty(list(model.parameters()))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(weights(trainer.model), weights(model))


# ---- transfers and traces -------------------------------------------------------------------------------------------


def test_a_step_moves_nothing_between_host_and_device(on_each_device):
    """An epoch has one download, when its metrics are read; steps have none, whatever is measured or scheduled."""
    data = Rows(make_data(160), 16)
    optimizer_of = lambda model: weft.optim.AdamW(model.parameters(), lr=1e-2)  # noqa: E731
    model = make_model(dropout=0.1)
    optimizer = optimizer_of(model)
    scheduler = weft.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=1000)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, metrics=["accuracy", "f1"], clip_norm=1.0, scheduler=scheduler,
        device=on_each_device,
    )  # fmt: skip
    trainer.fit(data, epochs=2)
    before, downloads = weft.counters(), []
    rates = [group["lr"] for group in optimizer.param_groups]

    class Watch(Callback):
        def on_epoch_begin(self, trainer, epoch, metrics):
            self.before = weft.counters()

        def on_batch_end(self, trainer, batch, metrics):
            if batch == trainer.planned["batches"] - 1:
                after = weft.counters()
                downloads.append([after[name] - self.before[name] for name in ("downloads", "uploads", "traces")])

    trainer.callbacks = (*trainer.callbacks, Watch())
    trainer.fit(data, epochs=5)
    assert downloads == [[0, 0, 0]] * 3
    after = weft.counters()
    assert after["downloads"] - before["downloads"] == 3
    assert optimizer.param_groups[0]["lr"] != rates[0]


def test_one_step_is_one_plan_and_metrics_add_few_kernels(on_each_device):
    data = Rows(make_data(64), 16)
    trainer = make_trainer(metrics=["accuracy"], clip_norm=1.0)
    trainer.fit(data, epochs=1)
    before = weft.counters()["plans_run"]
    trainer.fit(data, epochs=2)
    started, reset, read = 1, 1, 1
    assert weft.counters()["plans_run"] - before == data.batches + started + reset + read
    plain = make_trainer(clip_norm=1.0, on_nan="ignore")
    plain.fit(data, epochs=1)
    counts = [len(one.plan.kernels()) for t in (trainer, plain) for one in t.compiled_steps()]
    assert counts[0] <= counts[1] + 4


def test_a_last_short_batch_is_one_more_plan(on_each_device):
    before = weft.counters()["traces"]
    trainer = make_trainer()
    trainer.fit(Rows(make_data(50), 16), epochs=1)
    first = weft.counters()["traces"] - before
    trainer.fit(Rows(make_data(50), 16), epochs=3)
    steps = trainer.compiled_steps()
    assert [one.retraces for one in steps] == [[]] * len(steps)
    assert first == 4  # two sizes, the order of an epoch, and the reading


class EveryTen(Callback):
    every = 10

    def __init__(self, looks):
        self.looks, self.seen = looks, []

    def on_batch_end(self, trainer, batch, metrics):
        self.seen.append((trainer.step_count, metrics["loss"] if self.looks else None))


@pytest.mark.parametrize("looks", [False, True])
def test_batch_metrics_are_read_only_when_a_callback_looks(on_each_device, looks):
    callback = EveryTen(looks)
    trainer = make_trainer(callbacks=[callback])
    data = Rows(make_data(160), 16)
    trainer.fit(data, epochs=1)
    before = weft.counters()["downloads"]
    trainer.fit(data, epochs=4)
    assert [step for step, _ in callback.seen] == [10, 20, 30, 40]
    assert weft.counters()["downloads"] - before == 3 + 3 * looks


# ---- losses that are not finite --------------------------------------------------------------------------------------


def bad_batches(where=3):
    batches = batches_of(*make_data(96), 16)
    x, y = batches[where]
    batches[where] = (x * np.float32("inf"), y)
    return batches


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Adafactor"])
@pytest.mark.parametrize("norm", [False, True])
def test_a_bad_step_is_skipped_as_if_it_had_not_been(on_each_device, kind, norm):
    """Weights, statistics and optimizer state are those of a run without that batch."""
    batches = bad_batches()
    trainer = make_trainer(make_model(norm=norm), kind, on_nan="skip")
    history = trainer.fit(batches, epochs=1)
    other = make_trainer(make_model(norm=norm), kind, on_nan="skip")
    other.fit(batches[:3] + batches[4:], epochs=1)
    assert history["skipped"] == [1] and math.isfinite(history["loss"][0])
    assert_same(weights(trainer.model), weights(other.model))


@pytest.mark.parametrize("resident", [False, True])
def test_stopping_names_the_layer_and_keeps_the_weights_before(on_each_device, resident):
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()  # of a negative number it is not a number

    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 8), Root()), nn.Linear(8, 3))
    model[2][0].bias.data = weft.full((8,), 20.0)
    x, y = make_data(96)
    x[40] = 1e6 * (1 - model[0].weight.data.sum(0))  # far outside
    with weft.no_grad():
        model[2][0].weight.data = model[2][0].weight.data * 100.0
    batches = batches_of(x, y, 16)
    data = Rows([x, y], 16, shuffle=False) if resident else batches
    bad = [k for k, (a, _) in enumerate(batches) if not bool(model(a).isfinite().all())]
    trainer = make_trainer(model, "SGD", lr=0.0)
    before = weights(trainer.model)
    with pytest.raises(NotFiniteError) as error:
        trainer.fit(data, epochs=1)
    assert f"in step {bad[0] + 1} (epoch 1, batch {bad[0]})" in str(error.value)
    assert "first: layer 2.1 (Root)" in str(error.value) and "on_nan" in str(error.value)
    assert_same(before, weights(trainer.model))


def test_stopping_freezes_everything_after_the_first_bad_step(on_each_device):
    """The host looks at the end of the epoch only; the steps in between change nothing."""
    trainer, other = make_trainer(), make_trainer()
    with pytest.raises(NotFiniteError, match=r"layer 0 \(Linear\), whose input is not finite"):
        trainer.fit(bad_batches(), epochs=1)
    other.fit(bad_batches()[:3], epochs=1)
    assert_same(weights(trainer.model), weights(other.model))


def test_a_long_epoch_is_looked_at_meanwhile(on_each_device, monkeypatch):
    monkeypatch.setattr(weft.train.trainer, "CHECKED_EVERY", 10)
    trainer = make_trainer()
    with pytest.raises(NotFiniteError, match=r"in step 4 \(epoch 1, batch 3\)"):
        trainer.fit(bad_batches() * 10, epochs=1)
    assert trainer.step_count == 10


def test_ignoring_goes_on(on_each_device):
    trainer = make_trainer(on_nan="ignore")
    assert math.isnan(trainer.fit(bad_batches(), epochs=1)["loss"][0])


def test_a_parameter_that_is_not_finite_is_named(on_each_device):
    model = make_model()
    model[3 - 1 + 1].weight.data = weft.full((3, 16), math.nan)
    with pytest.raises(NotFiniteError, match=r"layer 3 \(Linear\): its 'weight' is not finite since an earlier step"):
        make_trainer(model).fit(batches_of(*make_data(), 16))


# ---- optimizers: updates that a condition leaves out -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LAMB", "Lion"])
@pytest.mark.parametrize("every", [1, 2])
def test_updates_that_are_left_out(on_each_device, kind, every):
    """State, counts and accumulated gradients stay, eagerly and compiled."""
    results = []
    for compiled in (False, True):
        w = weft.tensor([1.0, -2.0, 3.0], requires_grad=True)
        optimizer = getattr(weft.optim, kind)([{"params": [w], "update_every": every}], lr=0.1)

        def step(scale, go, w=w, optimizer=optimizer):
            ((w * scale) ** 2).sum().backward()
            with optimizer.updating_if(go):
                optimizer.step()
            optimizer.zero_grad()

        run = weft.compile(step) if compiled else step
        for number in range(6):
            run(float(number + 1), weft.tensor(number % 3 != 1))
        results.append(w.tolist())
    w = weft.tensor([1.0, -2.0, 3.0], requires_grad=True)
    optimizer = getattr(weft.optim, kind)([{"params": [w], "update_every": every}], lr=0.1)
    for number in (0, 2, 3, 5):
        ((w * float(number + 1)) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert results == [w.tolist()] * 2


def test_an_optimizer_with_a_step_of_its_own_refuses_a_condition():
    class Own(weft.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def step(self, closure=None):
            pass

    with pytest.raises(weft.GraphError, match="updating_if"), Own([weft.ones(1)]).updating_if(weft.tensor(True)):
        pass


@pytest.mark.serial
def test_fit_adds_little_to_a_loop_by_hand():
    """By counts: of Python function calls per step over those of the compiled step itself, and of plans per epoch.
    (`benchmarks/fit.py` measures the time; a function call takes about 0.1 us, and 50 us are promised.)"""
    import cProfile
    import pstats

    data = Rows(make_data(640, device="cpu"), 16)
    trainer = make_trainer(device="cpu")
    trainer.fit(data, epochs=2)
    step = trainer.compiled_steps()[0]

    def calls(function):
        profile = cProfile.Profile()
        profile.runcall(function)
        return pstats.Stats(profile).total_calls

    def loop():
        for _ in range(data.batches):
            step()

    data.start_epoch(0)
    by_hand = calls(loop)
    by_fit = calls(lambda: trainer.fit(data, epochs=3))
    assert (by_fit - by_hand) / data.batches < 100  # 40 steps: what an epoch costs is in it


def test_neither_trainers_nor_data_sets_keep_each_other_alive(on_each_device):
    def make_data():
        x = weft.randn(16, 2, device=weft.default_device())
        return weft.data.ResidentData([x, x[:, :1].clone()], batch_size=8)

    def make_trainer():
        model = nn.Linear(2, 1)
        optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
        return Trainer(model, nn.MSELoss(), optimizer, device=weft.default_device())

    trainer, kept = make_trainer(), make_data()
    for _ in range(3):
        trainer.fit(data := make_data(), epochs=trainer.epoch + 1)
        trainer.evaluate(data)
    old, rows = weakref.ref(data), weakref.ref(data.tensors[0])
    assert len(trainer.compiled_steps()) >= 1
    del data
    trainer.fit(kept, epochs=trainer.epoch + 1)
    gc.collect()
    assert old() is None and rows() is None
    assert len(trainer.compiled_steps()) == 1
    traces = weft.counters()["traces"]
    trainer.fit(kept, epochs=trainer.epoch + 1)
    assert weft.counters()["traces"] == traces
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None and len(kept._compiled_steps) == 0
