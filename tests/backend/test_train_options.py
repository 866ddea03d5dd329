"""Options of a Trainer: changed after its first step, and refused where they make no sense."""

import copy
import gc
import weakref

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.backend.small_trainer import BATCHES, X, Y, make
from weft.data import DataLoader, ResidentData, TensorDataset
from weft.errors import GraphError, OutOfMemoryError, RangeError
from weft.train import EMA, Callback, NotFiniteError

pytestmark = pytest.mark.backend


def weights(trainer):
    return [param.numpy().copy() for param in trainer.model.parameters()]


def resident(device):
    return ResidentData([weft.tensor(X, device=device), weft.tensor(Y, device=device)], 4, seed=0)


# ---- changed after the first step -----------------------------------------------------------------------------------

CHANGES = {
    "clip_norm": lambda: 1e-3,
    "clip_value": lambda: 1e-3,
    "regularizer": lambda: lambda params: sum(param.square().sum() for param in params),
    "loss": lambda: nn.L1Loss(),
    "precision": lambda: "bf16",
    "step": lambda: lambda trainer, x, y: (trainer.model(x) - y).abs().mean() * 3.0,
    "accumulate": lambda: 2,
}


def train(trainer, kind, epochs):
    if kind == "single":
        for batch in BATCHES:
            trainer.train_batch(*batch)
    else:
        trainer.fit(resident(trainer.device) if kind == "resident" else BATCHES, epochs=epochs)
    return trainer


@pytest.mark.parametrize("kind", ["streamed", "resident", "single"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_option_that_is_changed_is_seen_by_the_next_step(on_each_device, name, kind):
    first = train(make(on_each_device), kind, epochs=1)
    state = copy.deepcopy(first.state_dict())
    made = make(on_each_device, **{name: CHANGES[name]()})  # with the option from the beginning
    made.load_state_dict(state)
    train(made, kind, epochs=2)
    unchanged = make(on_each_device)
    unchanged.load_state_dict(state)
    train(unchanged, kind, epochs=2)
    before = first.compiled_steps()
    setattr(first, name, CHANGES[name]())
    train(first, kind, epochs=2)
    for one, two in zip(weights(first), weights(made), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not set(first.compiled_steps()) & set(before)
    if name != "accumulate":  # whose gradient is the same
        assert any((one != two).any() for one, two in zip(weights(first), weights(unchanged), strict=True))


@pytest.mark.parametrize("kind", ["streamed", "resident"])
def test_an_option_that_a_callback_changes_counts_for_that_step(on_each_device, kind):
    class Clip(Callback):
        def on_batch_begin(self, trainer, batch, metrics):
            if trainer.step_count == 1:
                self.before = weights(trainer)
                trainer.clip_norm = 1e-12

    clip = Clip()
    trainer = make(on_each_device, callbacks=[clip])
    trainer.fit(resident(on_each_device) if kind == "resident" else BATCHES)
    for one, two in zip(weights(trainer), clip.before, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-7)


def test_callbacks_that_are_added_act_in_the_step(on_each_device):
    trainer, ema = make(on_each_device), EMA(0.5)
    trainer.fit(BATCHES)
    trainer.callbacks = [*trainer.callbacks, ema]
    trainer.fit(BATCHES, epochs=3)
    assert ema.average.count.item() == 6


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_callbacks_act_in_steps_that_were_traced_before_they_began(on_each_device, on_nan):
    ema = EMA(0.5)
    trainer = make(on_each_device, callbacks=[ema], on_nan=on_nan)
    trainer.train_batch(*BATCHES[0])
    trainer.fit(BATCHES)
    assert ema.average.count.item() == 3
    trainer.train_batch(*BATCHES[0])
    assert ema.average.count.item() == 4


def test_changes_are_seen_by_evaluate_and_predict(on_each_device):
    trainer = make(on_each_device)
    trainer.evaluate(BATCHES)
    before = trainer.predict(X).numpy()
    trainer.loss = lambda prediction, target: prediction.sum() * 0 + 5.0
    assert trainer.evaluate(BATCHES)["loss"] == 5.0
    trainer.precision = "bf16"
    assert (trainer.predict(X).numpy() != before).any()


def test_on_nan_is_seen_by_the_next_fit(on_each_device):
    trainer = make(on_each_device)
    trainer.fit(BATCHES)
    before = weights(trainer)
    trainer.on_nan = "skip"
    trainer.fit([(X[:4], np.full((4, 1), np.nan, np.float32)), *BATCHES[1:]], epochs=2)
    assert trainer.history["skipped"][-1] == 1 and np.isfinite(weights(trainer)[0]).all()
    assert (weights(trainer)[0] != before[0]).any()  # the steps after the bad one are not left out


def test_values_of_a_step_before_are_not_shown(on_each_device):
    trainer = make(on_each_device, step=lambda t, x, y: {"loss": t.loss(t.model(x), y), "other": 1.0})
    assert "other" in trainer.fit(BATCHES).last
    trainer.step = None
    assert "other" not in trainer.fit(BATCHES, epochs=2).last


def test_a_change_that_makes_no_sense_is_refused(on_each_device):
    trainer = make(on_each_device)
    trainer.fit(BATCHES)
    for name, value in (("clip_norm", -1), ("clip_norm", "1"), ("on_nan", "no"), ("precision", "fp8"), ("loss", None)):
        with pytest.raises((GraphError, RangeError), match="Trainer"):
            setattr(trainer, name, value)
    assert trainer.clip_norm is None and trainer.on_nan == "stop" and trainer.precision == "fp32"
    with pytest.raises(GraphError, match="another model for a Trainer"):
        trainer.model = nn.Linear(2, 1)
    with pytest.raises(GraphError, match="another optimizers"):
        trainer.optimizers = []


def test_an_option_that_stays_is_not_traced_again(on_each_device):
    trainer = make(on_each_device, clip_norm=1.0)
    trainer.fit(BATCHES)
    (step,) = trainer.compiled_steps()
    trainer.clip_norm = trainer.clip_norm
    trainer.find_lr(BATCHES, steps=8)
    trainer.gradient_norms(*BATCHES[0])
    trainer.fit(BATCHES, epochs=2)
    assert trainer.compiled_steps() == [step]


def test_a_trainer_is_not_copied(on_each_device):
    with pytest.raises(GraphError, match="copy of a Trainer"):
        copy.deepcopy(make(on_each_device))


def test_streamed_data_is_not_kept(on_each_device):
    class Data(list):
        pass

    first, second = Data(BATCHES), Data(BATCHES)
    trainer, known = make(on_each_device), weakref.ref(first)
    trainer.fit(first)
    trainer.evaluate(first)
    trainer.fit(second, epochs=2)
    del first
    gc.collect()
    assert known() is None


def test_a_trainer_that_predicts_is_freed_at_once(on_each_device):
    trainer = make(on_each_device)
    trainer.predict(X)
    known = weakref.ref(trainer)
    gc.collect()
    gc.disable()
    try:
        del trainer
        assert known() is None
    finally:
        gc.enable()


# ---- activations that are computed again ----------------------------------------------------------------------------


def block():
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))


class InList(nn.Module):
    def __init__(self, kind):
        super().__init__()
        blocks = [block() for _ in range(4)]
        if kind == "dict":
            self.blocks = nn.ModuleDict({f"b{k}": one for k, one in enumerate(blocks)})
        elif kind == "nested":
            self.blocks = nn.ModuleList([nn.ModuleList(blocks[:2]), nn.ModuleList(blocks[2:])])
        else:
            self.blocks = nn.ModuleList(blocks)
        self.kind = kind

    def forward(self, x):
        blocks = self.blocks.values() if self.kind == "dict" else self.blocks
        for one in blocks:
            for each in one if self.kind == "nested" else [one]:
                x = x + each(x)
        return x


def peak_of(trainer, rows):
    x = weft.ones(rows, 8, device=trainer.device)
    step = weft.compile(lambda x, y: _gradients(trainer, x, y))
    return step.predicted(x, x).peak


def _gradients(trainer, x, y):
    trainer.loss(trainer.model(x), y).backward()
    return [param.grad for param in trainer.model.parameters()]


@pytest.mark.parametrize("kind", ["list", "dict", "nested"])
def test_checkpoint_reaches_modules_in_containers_that_are_not_called(on_each_device, kind):
    without = peak_of(make(on_each_device, InList(kind)), 256)
    model = InList(kind)
    trainer = make(on_each_device, model, checkpoint=True)
    assert sum("checkpoint" in one.__dict__ for one in model.modules()) == 4
    assert peak_of(trainer, 256) < 0.8 * without
    make(on_each_device, model)  # None leaves it
    assert sum("checkpoint" in one.__dict__ for one in model.modules()) == 4
    make(on_each_device, model, checkpoint=False)
    assert not any("checkpoint" in one.__dict__ for one in model.modules())
    make(on_each_device, model, checkpoint="blocks")  # by name, too
    assert sum("checkpoint" in one.__dict__ for one in model.modules()) == 4


def test_checkpoints_that_are_not_there_are_refused(on_each_device):
    with pytest.raises(GraphError, match=r"Trainer: given checkpoint=True .* no modules inside"):
        make(on_each_device, checkpoint=True)
    with pytest.raises(GraphError, match=r"Trainer: given checkpoint 'block'.*blocks"):
        make(on_each_device, InList("list"), checkpoint=["block"])
    with pytest.raises(GraphError, match="Trainer: given checkpoint 3"):
        make(on_each_device, InList("list"), checkpoint=3)


def rows_of(*counts):
    return [(weft.ones(count, 8), weft.ones(count, 8)) for count in counts]


def test_the_memory_budget_holds_for_each_form_of_batch(on_each_device):
    chosen = make(on_each_device, InList("list"), memory_budget="2 GB")
    chosen.train_batch(*rows_of(512)[0])
    without = chosen.segments.peak
    assert not chosen.segments.modules
    limit = int(without * 0.9)  # 0.8 can be reached on CPUs, 0.83 on an H200
    trainer = make(on_each_device, InList("list"), memory_budget=limit)
    trainer.fit(rows_of(16, 16, 512, 16))
    assert trainer.segments.modules and trainer.segments.without > limit >= trainer.segments.peak
    assert all(step.predicted(*rows_of(512)[0]).peak <= limit for step in trainer.compiled_steps())
    tight = make(on_each_device, InList("list"), memory_budget=200_000)
    with pytest.raises(OutOfMemoryError, match="memory budget"):
        tight.fit(rows_of(16, 4096))
    with pytest.raises(OutOfMemoryError, match=r"Trainer\.evaluate: given a batch that takes"):
        tight.evaluate(rows_of(16, 4096))
    with pytest.raises(OutOfMemoryError, match=r"Trainer\.predict: given a batch that takes"):
        tight.predict(weft.ones(4096, 8))


def test_the_memory_budget_of_resident_data_of_another_size(on_each_device):
    def data(rows):
        x = weft.ones(rows, 8, device=on_each_device)
        return DataLoader(TensorDataset(x, x), batch_size=rows)

    trainer = make(on_each_device, InList("list"), memory_budget=300_000)
    trainer.fit(data(16))
    with pytest.raises(OutOfMemoryError, match="memory budget"):
        trainer.fit(data(4096), epochs=2)


# ---- gradients that are not finite ----------------------------------------------------------------------------------


class Root(nn.Module):
    """Its loss is finite, and its gradient is not where the weight is 0."""

    def __init__(self, start):
        super().__init__()
        self.weight = nn.Parameter(weft.tensor([start]))
        self.other = nn.Linear(2, 1)

    def forward(self, x):
        return self.other(x) + self.weight.sqrt()


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("kind", ["streamed", "resident"])
def test_a_gradient_that_is_not_finite_stops_before_the_update(on_each_device, kind, clip):
    trainer = make(on_each_device, Root(0.0), clip_norm=clip)
    before = weights(trainer)
    data = resident(on_each_device) if kind == "resident" else BATCHES
    with pytest.raises(NotFiniteError, match=r"a gradient that is not finite in step 1 .*first: that of weight; "):
        trainer.fit(data)
    for one, two in zip(weights(trainer), before, strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_check_of_gradients_is_a_part_of_the_update(on_each_device):
    def kernels(on_nan):
        trainer = make(on_each_device, InList("list"), on_nan=on_nan)
        trainer.fit(rows_of(16))
        return len(str(trainer.compiled_steps()[0].plan).splitlines())

    assert kernels("stop") <= kernels("ignore") + 4


def test_a_regularizer_that_is_not_finite_is_named(on_each_device):
    def penalty(params):
        return params[0].sum() * float("nan")

    with pytest.raises(NotFiniteError, match=r"a loss that is not finite in step 1 .*first: the regularizer"):
        make(on_each_device, regularizer=penalty).fit(BATCHES)
