"""Weights beside those of the model, directions of monitored values, and states of callbacks."""

import functools

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.train import EMA, MSE, Accuracy, Callback, EarlyStopping, Metric, ModelCheckpoint, ReduceLROnPlateau, Trainer
from weft.train.monitor import Monitor
from weft.train.saving import load_weights
from weft.train.weights import modules_of

pytestmark = pytest.mark.backend


def make_data(rows=12, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    return weft.tensor(x), weft.tensor(x.sum(1, keepdims=True))


BATCHES = [(0, 4), (4, 8), (8, 12)]


def batches():
    x, y = make_data()
    return [(x[a:b], y[a:b]) for a, b in BATCHES]


def make(model=None, loss=None, optimizer=None, **options):
    weft.manual_seed(0)
    model = nn.Linear(2, 1) if model is None else model
    options.setdefault("device", weft.default_device())
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if optimizer is None else optimizer
    return Trainer(model, nn.MSELoss() if loss is None else loss, optimizer, **options)


class Weighted(nn.Module):
    """A loss with a parameter and a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(weft.ones(1))
        self.register_buffer("seen", weft.zeros(1))

    def forward(self, prediction, target):
        self.seen = self.seen + 1.0
        return ((prediction - target).square().mean() * self.scale + self.scale.square()).sum()


def of_weighted_loss(run=None, callbacks=()):
    weft.manual_seed(0)
    model, loss = nn.Linear(2, 1), Weighted()
    optimizer = weft.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    return make(model, loss, optimizer, run=run, callbacks=callbacks)


def test_a_loss_with_weights_is_resumed(on_each_device, tmp_path):
    straight = of_weighted_loss()
    straight.fit(batches(), epochs=4)
    of_weighted_loss(tmp_path / "r").fit(batches(), epochs=2)
    resumed = of_weighted_loss(tmp_path / "r")
    resumed.fit(batches(), epochs=4)
    for name, value in straight.loss.state_dict().items():
        assert resumed.loss.state_dict()[name].tolist() == value.tolist(), name
    assert resumed.model.weight.tolist() == straight.model.weight.tolist()


def test_searches_and_the_best_epoch_leave_a_loss_as_it_was(on_each_device):
    trainer = of_weighted_loss()
    trainer.fit(batches())
    before = [value.tolist() for value in trainer.loss.state_dict().values()]
    trainer.overfit_one_batch(batches(), steps=3)
    trainer.find_lr(batches(), steps=8)
    trainer.gradient_norms(*batches()[0])
    assert [value.tolist() for value in trainer.loss.state_dict().values()] == before
    seen = []

    class Note(Callback):
        def on_epoch_end(self, trainer, epoch, metrics):
            seen.append(trainer.loss.scale.tolist())

    best = of_weighted_loss(callbacks=[Note(), EarlyStopping("lr", patience=1, mode="max", restore_best=True)])
    best.fit(batches(), epochs=5)  # the first epoch is the best
    assert len(seen) == 2 and best.loss.scale.tolist() == seen[0] != seen[1]


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(1), nn.Linear(1, 1)

    def forward(self, x):
        return self.out(self.norm(x))


def of_two_networks(run=None):
    """A generator as the model; a discriminator, a target network and a bare parameter that only the step knows."""
    weft.manual_seed(0)
    model, critic, target = nn.Linear(2, 1), Discriminator(), nn.Linear(2, 1)
    device = weft.default_device()
    for module in (critic, target):
        module.to(device)
    frozen = nn.Linear(3, 3).to(device)
    extra = weft.ones(1, device=device, requires_grad=True)
    first = weft.optim.SGD(model.parameters(), lr=0.01)
    second = weft.optim.Adam([*critic.parameters(), extra], lr=0.01)

    def follow(module):
        with weft.no_grad():
            for one, other in zip(target.parameters(), module.parameters(), strict=True):
                one.copy_(0.5 * one + 0.5 * other)

    def step(trainer, x, y):
        made = trainer.model(x)
        loss = critic(made).square().mean() + (made - y).square().mean() + (extra - 3.0).square().sum()
        loss = loss + 0.0 * (target(x).sum() + frozen.weight.sum())
        loss.backward()
        for one in trainer.optimizers:
            one.step()
            one.zero_grad()
        follow(trainer.model)
        return loss.detach()

    trainer = Trainer(model, None, [first, second], step=step, run=run, device=device)
    return trainer, (critic, target, frozen), extra


def test_what_a_custom_step_trains_is_resumed(on_each_device, tmp_path):
    straight, modules, extra = of_two_networks()
    straight.fit(batches(), epochs=4)
    of_two_networks(tmp_path / "r")[0].fit(batches(), epochs=2)
    resumed, others, other_extra = of_two_networks(tmp_path / "r")
    resumed.fit(batches(), epochs=4)
    for mine, theirs in zip(modules, others, strict=True):
        for name, value in mine.state_dict().items():
            assert theirs.state_dict()[name].tolist() == value.tolist(), name
    assert other_extra.tolist() == extra.tolist() != [1.0]
    state = straight.state_dict()
    assert set(state["modules"]) == {"critic", "target"}  # not what stays as it is
    before = [value.tolist() for one in modules for value in one.state_dict().values()]
    straight.overfit_one_batch(batches(), steps=2)
    assert [value.tolist() for one in modules for value in one.state_dict().values()] == before


def test_states_without_these_weights_are_loaded(on_each_device):
    """As earlier versions saved them."""
    trainer = of_weighted_loss(callbacks=[EarlyStopping("loss", restore_best=True)])
    trainer.fit(batches())
    old = {key: value for key, value in trainer.state_dict().items() if key not in _NEW}
    old["callbacks"] = [{**old["callbacks"][0], "best_weights": old["callbacks"][0]["best_weights"]["model"]}]
    other = of_weighted_loss(callbacks=[EarlyStopping("loss", restore_best=True)])
    other.load_state_dict(old)
    assert other.model.weight.tolist() == trainer.model.weight.tolist() and other.loss.scale.tolist() == [1.0]
    other.fit(batches(), epochs=2)


_NEW = ("loss", "modules", "parameters", "kinds")


# ---- callbacks -----------------------------------------------------------------------------------------------------


class Plain(Metric):
    """Says nothing about its direction."""

    name = "plain"

    def update(self, prediction, target):
        self.buffer("sum", (), weft.float32, prediction.device).add_(1.0)

    def compute(self):
        return self.buffers["sum"]


UP = ["top5", "top1", "accuracy", "acc", "my_accuracy", "balanced_accuracy", "strict", "f1", "r2", "mean.iou"]
DOWN = [
    "loss",
    "accumulated_loss",
    "iou_loss",
    "loss_d",
    "f1_loss",
    "mse",
    "mae",
    "perplexity",
    "best",
    "relative_error",
]


@pytest.mark.parametrize("prefix", ["", "val_"])
def test_directions_of_monitored_values(prefix):
    class Best(MSE):
        name = "best"

    trainer = make(metrics=[Accuracy(name="strict"), Best(), Plain()])
    for names, expected in ((UP, True), (DOWN, False), (["miou", "score", "lr"], None)):
        for name in names:
            monitor = Monitor("EarlyStopping", prefix + name, "auto")
            monitor.begin(trainer)
            assert monitor.maximise is expected, name
    for make_callback in (
        EarlyStopping, ReduceLROnPlateau, lambda monitor, **options: ModelCheckpoint("unused", monitor, **options)
    ):  # fmt: skip
        with pytest.raises(weft.RangeError, match=r"'plain'.*not known whether higher.*mode="):
            make(metrics=[Plain()], callbacks=[make_callback("plain")]).fit(batches())
    make(metrics=[Plain()], callbacks=[EarlyStopping("plain", mode="max")]).fit(batches(), epochs=2)


def test_a_value_of_a_step_without_a_direction_is_refused(on_each_device):
    def step(trainer, x, y):
        loss = trainer.loss(trainer.model(x), y)
        return {"loss": loss, "score": loss.detach()}

    with pytest.raises(weft.RangeError, match=r"'score'.*not known"):
        make(step=step, callbacks=[EarlyStopping("score")]).fit(batches(), epochs=3)
    make(step=step, callbacks=[EarlyStopping("score", mode="min")]).fit(batches(), epochs=3)


def test_the_best_top_k_is_the_highest(on_each_device, tmp_path):
    callback, trainer = EarlyStopping("val_top5", patience=2), make()
    kept = ModelCheckpoint(tmp_path / "{epoch}.safetensors", "val_top5")
    for one in (callback, kept):
        one.on_train_begin(trainer)
        for epoch, value in enumerate([0.1, 0.2, 0.15, 0.3]):
            one.on_epoch_end(trainer, epoch, {"val_top5": value})
    assert trainer.stopped is None and callback.best == 0.3
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["1", "2", "4"]  # epochs count from 1, as in Keras


@pytest.mark.parametrize("path", ["{}", "{0}", "{epoch:q}", "{loss", "{loss.none}", "{nothing}"])
def test_a_path_that_cannot_be_filled_in(tmp_path, path):
    callback = ModelCheckpoint(tmp_path / path, "loss")
    with pytest.raises(weft.RangeError, match=r"ModelCheckpoint: given the path .*fields of epoch, loss"):
        callback.on_epoch_end(make(), 0, {"loss": 1.0})


def test_a_saved_state_has_seen_the_epoch_whole(on_each_device, tmp_path):
    stopping = EarlyStopping("loss")
    kept = ModelCheckpoint(tmp_path / "{epoch}", "loss", save_weights_only=False)
    trainer = make(callbacks=[kept, stopping])
    history = trainer.fit(batches(), epochs=2)
    for epoch in range(2):
        state = weft.load(tmp_path / str(epoch + 1))
        assert [one["best"] for one in state["callbacks"]] == [history["loss"][epoch]] * 2


@pytest.mark.parametrize("kind", ["ema", "best", "both"])
def test_fit_called_again_continues_with_the_last_weights(on_each_device, kind):
    def callbacks():
        ema = [EMA(0.9, validate=False, swap_at_end=True)] if kind != "best" else []
        # The best value is that of the first epoch, which is not the last.
        return ema + ([EarlyStopping("lr", 100, mode="max", restore_best=True)] if kind != "ema" else [])

    straight, twice = make(callbacks=callbacks()), make(callbacks=callbacks())
    straight.fit(batches(), epochs=4)
    twice.fit(batches(), epochs=2)
    replaced = twice.model.weight.tolist()
    twice.find_lr(batches(), steps=8)
    assert twice.model.weight.tolist() == replaced
    twice.fit(batches(), epochs=4)
    assert twice.model.weight.tolist() == straight.model.weight.tolist()
    assert twice.optimizer.state_dict()["state"][0]["momentum_buffer"].tolist() == (
        straight.optimizer.state_dict()["state"][0]["momentum_buffer"].tolist()
    )


def test_weights_that_were_changed_between_two_fits_stay(on_each_device):
    trainer = make(callbacks=[EMA(0.9, swap_at_end=True)])
    trainer.fit(batches())
    with weft.no_grad():
        trainer.model.weight.fill_(7.0)
    trainer.fit(batches(), epochs=1)  # no epoch is left
    trainer.callbacks[0].swap_at_end = False
    seen = []

    class Note(Callback):
        def on_train_begin(self, trainer):
            seen.append(trainer.model.weight.tolist())

    other = make(callbacks=[EMA(0.9, swap_at_end=True), Note()])
    other.fit(batches())
    with weft.no_grad():
        other.model.weight.fill_(7.0)
    other.fit(batches(), epochs=2)
    assert seen[1] == [[7.0, 7.0]]


def test_states_of_callbacks_are_matched_by_class(on_each_device):
    trainer = make(callbacks=[EMA(0.9), EarlyStopping("loss"), EarlyStopping("lr", mode="max")])
    trainer.fit(batches(), epochs=2)
    state = trainer.state_dict()
    other = make(callbacks=[EarlyStopping("loss"), EarlyStopping("lr", mode="max"), EMA(0.9)])
    other.load_state_dict(state)
    assert [one.best for one in other.callbacks[:2]] == [one.best for one in trainer.callbacks[1:]]
    assert other.evaluate(batches()) == trainer.evaluate(batches())
    wrong = make(callbacks=[EMA(0.9), EMA(0.5), EarlyStopping("loss")])
    before = wrong.model.weight.tolist()
    with pytest.raises(weft.GraphError, match="EMA, EarlyStopping, EarlyStopping; expected EMA, EMA, EarlyStopping"):
        wrong.load_state_dict(state)
    assert wrong.model.weight.tolist() == before


def test_a_state_that_does_not_fit_changes_nothing(on_each_device):
    model = nn.Linear(2, 1)
    trainer = make(model, optimizer=weft.optim.Adam(model.parameters(), lr=0.1))
    trainer.fit(batches())
    other = make()
    before = other.model.weight.tolist()
    with pytest.raises(weft.GraphError, match="SGD"):
        other.load_state_dict(trainer.state_dict())
    assert other.model.weight.tolist() == before and other.step_count == 0


def test_the_last_epoch_is_validated_where_max_steps_ends_the_run(on_each_device):
    history = make().fit(batches(), validation=batches(), epochs=10, max_steps=6, validate_every=5)
    assert [row["epoch"] for row in history.rows if "val_loss" in row] == [1]


def test_weights_for_an_evaluation_are_those_that_were_validated(on_each_device):
    """Of a run with averages and a loss with weights; the optimizer may be another."""
    trainer = of_weighted_loss(callbacks=[EMA(0.9)])
    trainer.fit(batches(), epochs=2)
    expected, state = trainer.evaluate(batches()), trainer.state_dict()
    for callbacks, is_averaged in (([EMA(0.9)], True), ([], False)):
        weft.manual_seed(1)
        model, loss = nn.Linear(2, 1), Weighted()
        optimizer = weft.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.5)
        other = make(model, loss, optimizer, callbacks=callbacks)
        load_weights(other, state)
        assert other.loss.scale.tolist() == trainer.loss.scale.tolist()
        assert (other.evaluate(batches()) == expected) is is_averaged
        assert other.model.weight.tolist() == trainer.model.weight.tolist()


@pytest.mark.parametrize("size", [1, 4, 5, 12, 100, None])
def test_predictions_in_batches(on_each_device, size):
    trainer, x = make(), make_data()[0]
    for given in (x, x.numpy()):
        found = trainer.predict(given, batch_size=size)
        np.testing.assert_allclose(found.numpy(), trainer.predict(x).numpy(), rtol=1e-6)
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(weft.RangeError, match="batch_size"):
            trainer.predict(x, batch_size=wrong)
    with pytest.raises(weft.RangeError, match="in batches already"):
        trainer.predict(batches(), batch_size=2)


class Game:
    """Steps that are methods, objects and partial functions refer to modules, too."""

    def __init__(self):
        self.critics = {"first": nn.Linear(1, 1), "others": [nn.Linear(1, 1)]}

    def step(self, trainer, x, y):
        return self(trainer, x, y)

    def __call__(self, trainer, x, y):
        made = trainer.model(x)
        return (self.critics["first"](made) + self.critics["others"][0](made) - y).square().mean()


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 1)

    def step(self, trainer, x, y):
        return (self.head(trainer.model(x)) - y).square().mean()


GLOBAL = nn.Linear(1, 1)


def call_global(value):
    return GLOBAL(value)


def step_of_globals(trainer, x, y, critic=GLOBAL, *, other=None):
    return (call_global(trainer.model(x)) - y).square().mean()


def step_of_argument(critic, trainer, x, y, *, other):
    return (critic(trainer.model(x)) + other(trainer.model(x)) - y).square().mean()


def test_modules_that_steps_refer_to():
    game, whole, one, two = Game(), Whole(), nn.Linear(1, 1), nn.Linear(1, 1)
    first, other = game.critics["first"], game.critics["others"][0]
    for step, expected in (
        (game.step, {"critics.first": first, "critics.others.0": other}),
        (game, {"critics.first": first, "critics.others.0": other}),
        (whole.step, {"self": whole}),
        (step_of_globals, {"GLOBAL": GLOBAL}),
        (functools.partial(step_of_argument, one, other=two), {"0": one, "other": two}),
        (lambda trainer, x, y: one(trainer.model(x)).mean(), {"one": one}),
        (print, {}),
    ):
        found = modules_of(step)
        assert {id(module) for module in found.values()} == {id(module) for module in expected.values()}
        assert step is step_of_globals or set(found) == set(expected)
