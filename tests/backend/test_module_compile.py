"""Modules inside compiled functions: what changes is seen, what does not matter is not looked at."""

import copy

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from tests.backend.modules import assert_same_state, batches, both, mlp, same_weights

pytestmark = pytest.mark.usefixtures("on_each_device")


class Scaled(nn.Module):
    """Reads a number, a container, a flag and a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.unused = 0
        self.cfg = {"shift": 1.0}
        self.weight = nn.Parameter(weft.ones(3))
        self.inner = nn.Linear(3, 3, bias=False)
        with weft.no_grad():
            self.inner.weight.copy_(weft.eye(3))

    def forward(self, x):
        y = self.inner(x) * self.weight * self.scale + self.cfg["shift"]
        return y * 10 if self.training else y


def value(step, x=None):
    return step(weft.ones(3) if x is None else x)[0].item()


def compiled(model):
    return weft.compile(lambda x: model(x))


def test_modes_numbers_containers_and_flags_are_seen():
    model = Scaled()
    step = compiled(model)
    assert value(step) == 30.0 == value(step)
    model.eval()
    assert value(step) == 3.0 == value(step)
    model.train()
    assert value(step) == 30.0
    model.scale = 3.0
    assert value(step) == 40.0
    model.scale = 4.0
    assert value(step) == 50.0
    model.cfg["shift"] = 3
    assert value(step) == 70.0
    model.cfg["shift"] = 2
    assert value(step) == 60.0
    model.cfg = {"shift": 0.0}
    assert value(step) == 40.0


def test_a_replaced_parameter_and_submodule_are_seen():
    model = Scaled().eval()
    step = compiled(model)
    assert value(step) == 3.0
    model.weight = nn.Parameter(weft.full((3,), 5.0))
    assert value(step) == 11.0
    model.inner = nn.Linear(3, 3, bias=False)
    with weft.no_grad():
        model.inner.weight.copy_(2 * weft.eye(3))
    assert value(step) == 21.0
    model._modules["inner"] = nn.Sequential()
    assert value(step) == 11.0
    with weft.no_grad():
        model.weight.mul_(2)
    assert value(step) == 21.0
    model.forward = lambda x: x * 100
    assert value(step) == 100.0


def test_hooks_are_seen():
    model = Scaled().eval()
    step = compiled(model)
    assert value(step) == 3.0
    handle = model.register_forward_hook(lambda module, args, result: result * 2)
    assert value(step) == 6.0
    inner = model.inner.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    assert value(step) == 10.0
    handle.remove()
    assert value(step) == 5.0
    inner.remove()
    assert value(step) == 3.0


def test_what_is_not_read_does_not_matter():
    model, other = Scaled().eval(), nn.Linear(2, 2)
    step = compiled(model)
    for number in range(5):
        assert value(step) == 3.0
        model.unused = number
        other.note = number
        other.train(number % 2 == 0)
        model.inner.eval() if number % 2 else model.inner.train()  # Linear never asks for its mode
    assert step.retraces == []


def test_a_counter_in_a_buffer_is_updated_in_place():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("counter", weft.zeros((), dtype=weft.int64))
            self.register_buffer("mean", weft.zeros(3))

        def forward(self, x):
            self.counter = self.counter + 1
            self.mean = 0.5 * self.mean + 0.5 * x
            return x * self.counter

    model = Counting()
    counter = model.counter
    step = compiled(model)
    assert [value(step) for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert step.retraces == [] and model.counter is counter and counter.item() == 5
    np.testing.assert_allclose(model.mean.numpy(), np.full(3, 1 - 0.5**5))
    model(weft.ones(3))
    assert model.counter.item() == 6


def test_python_counters_of_a_module_are_counted_by_replays():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + 1

    model = Counting()
    step = compiled(model)
    for _ in range(6):
        step(weft.ones(3))
    assert model.calls == 6


def training_step(library, model, optimizer, compiled_too=True):
    def step(x, y):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return weft.compile(step) if library is weft and compiled_too else step


def pair(make_optimizer=None, make=mlp):
    """The same model with its step in both libraries."""
    theirs, ours = make(torch), make(weft)
    same_weights(ours, theirs)
    make_optimizer = make_optimizer or (lambda library, params: library.optim.SGD(params, lr=0.1, momentum=0.9))
    steps = [
        training_step(library, model, make_optimizer(library, model.parameters()))
        for library, model in ((weft, ours), (torch, theirs))
    ]
    return ours, theirs, *steps


def run(ours, theirs, step, their_step, count=3, seed=0):
    for x, y in zip(batches(count, 5, 4, seed=seed), batches(count, 5, 3, seed=seed + 100), strict=True):
        (x, their_x), (y, their_y) = both(x), both(y)
        np.testing.assert_allclose(step(x, y).item(), their_step(their_x, their_y).item(), rtol=1e-9)
    assert_same_state(ours, theirs)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_training_is_torchs(name):
    ours, theirs, step, their_step = pair(lambda library, params: getattr(library.optim, name)(params, lr=0.01))
    run(ours, theirs, step, their_step, 20)
    assert step.retraces == []


def test_freezing_and_thawing_between_calls():
    ours, theirs, step, their_step = pair()
    run(ours, theirs, step, their_step)
    for frozen in (True, False):
        for model in (ours, theirs):
            model[0].requires_grad_(not frozen)
            model.zero_grad()
        run(ours, theirs, step, their_step, seed=7)


def test_weights_loaded_between_calls():
    ours, theirs, step, their_step = pair()
    run(ours, theirs, step, their_step)
    saved = {key: value.clone() for key, value in theirs.state_dict().items()}
    run(ours, theirs, step, their_step, seed=3)
    theirs.load_state_dict(saved)
    ours.load_state_dict(saved)
    run(ours, theirs, step, their_step, seed=5)
    assert step.retraces == []


def test_tied_weights():
    class Tied:
        pass

    def make(library):
        class Tied(library.nn.Module):
            def __init__(self):
                super().__init__()
                self.down = library.nn.Linear(4, 3, bias=False)
                self.up = library.nn.Linear(3, 4, bias=False)
                self.up.weight = library.nn.Parameter(self.down.weight.detach().clone().t().contiguous())
                self.again = library.nn.Linear(4, 3, bias=False)
                self.again.weight = self.down.weight

            def forward(self, x):
                return self.again(self.up(self.down(x)).tanh())

        return Tied().double()

    ours, theirs, step, their_step = pair(make=make)
    ours.again.weight = ours.down.weight
    assert len(list(ours.parameters())) == len(list(theirs.parameters())) == 2
    run(ours, theirs, step, their_step, 6)
    assert step.retraces == []


def test_accumulation_over_several_calls():
    models = []
    for library in (torch, weft):
        model = mlp(library)
        if models:
            same_weights(model, models[0][0])
        optimizer = library.optim.SGD(model.parameters(), lr=0.1)

        def accumulate(x, y, model=model):
            loss = ((model(x) - y) ** 2).mean() / 3
            loss.backward()
            return loss

        def update(optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        models.append((model, weft.compile(accumulate) if library is weft else accumulate, update))
    for k, (x, y) in enumerate(zip(batches(12, 5, 4), batches(12, 5, 3, seed=9), strict=True)):
        (x, their_x), (y, their_y) = both(x), both(y)
        assert models[1][1](x, y).item() == pytest.approx(models[0][1](their_x, their_y).item(), rel=1e-9)
        if k % 3 == 2:
            for _, _, update in models:
                update()
    assert_same_state(models[1][0], models[0][0])


def test_ema_copies():
    ours, theirs, step, their_step = pair()
    twins = copy.deepcopy(ours), copy.deepcopy(theirs)

    @weft.compile
    def average():
        with weft.no_grad():
            for mean, param in zip(twins[0].parameters(), ours.parameters(), strict=True):
                mean.mul_(0.9).add_(param, alpha=0.1)

    def their_average():
        with torch.no_grad():
            for mean, param in zip(twins[1].parameters(), theirs.parameters(), strict=True):
                mean.mul_(0.9).add_(param, alpha=0.1)

    for seed in range(4):
        run(ours, theirs, step, their_step, 1, seed)
        average()
        their_average()
        assert_same_state(*twins)
    assert step.retraces == average.retraces == []


def test_several_optimizers_and_a_scheduler():
    def make_steps(library, model):
        first = library.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        second = library.optim.Adam(model[-1].parameters(), lr=0.05)

        def step(x, y):
            loss = ((model(x) - y) ** 2).mean()
            for optimizer in (first, second):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (first, second):
                optimizer.step()
            return loss

        def decay():
            for optimizer in (first, second):
                for group in optimizer.param_groups:
                    group["lr"] *= 0.7

        return (weft.compile(step) if library is weft else step), decay

    theirs, ours = mlp(torch), mlp(weft)
    same_weights(ours, theirs)
    (step, decay), (their_step, their_decay) = make_steps(weft, ours), make_steps(torch, theirs)
    for seed in range(4):
        run(ours, theirs, step, their_step, 2, seed)
        decay()
        their_decay()
    assert step.retraces == []


def test_another_dtype_and_back_keeps_parameters_and_compiled_functions():
    model = mlp(weft).float()
    step = compiled(model)
    x = weft.ones(2, 4)
    first = step(x).numpy()
    kept = [id(param) for param in model.parameters()]
    assert step(x.double()).dtype is weft.float64 if model.double() else False
    np.testing.assert_array_equal(compiled(model.float())(x).numpy(), first)
    np.testing.assert_array_equal(step(x).numpy(), first)
    assert [id(param) for param in model.parameters()] == kept


def test_a_compiled_module_is_a_module_to_its_users():
    model = mlp(weft)
    fast = weft.compile(model)
    x = weft.ones(2, 4, dtype=weft.float64)
    np.testing.assert_allclose(fast(x).numpy(), model(x).detach().numpy(), rtol=1e-12)
    assert [id(p) for p in fast.parameters()] == [id(p) for p in model.parameters()]
    fast.eval()
    assert not model.training
    assert list(fast.state_dict()) == list(model.state_dict())
    with pytest.raises(AttributeError):
        _ = fast.no_such_attribute


def test_parameters_as_arguments_replay_on_the_short_path(monkeypatch):
    weight = nn.Parameter(weft.ones(3))
    step = weft.compile(lambda w, x: (w * x).sum())
    x = weft.ones(3)
    assert step(weight, x).item() == 3.0
    assert step(weight, x).item() == 3.0

    def slow(*_):
        raise AssertionError("the slow path")

    monkeypatch.setattr(step, "_call_slowly", slow)
    assert step(weight, x).item() == 3.0


def test_a_replay_does_not_look_at_modules():
    """The generated check of a model with many modules compares as much as that of one with few."""

    def terms(count):
        model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(count)])
        step = compiled(model)
        step(weft.ones(2))
        step(weft.ones(2))
        return len(step.last.captured.check.__defaults__)

    assert terms(20) == terms(2) <= 8


def test_branches_of_a_model_that_are_not_called_do_not_matter():
    class Gan(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

    gan = Gan()
    step = weft.compile(lambda x: gan.critic(x))
    step(weft.ones(1, 2))
    gan.generator.eval()
    gan.generator = nn.Linear(2, 2)
    gan.generator.register_forward_hook(lambda *_: None)
    step(weft.ones(1, 2))
    # The parent holds another generator: it is looked at, and found to be of no matter only by tracing again.
    assert len(step.retraces) <= 1
    gan.generator.eval()
    step(weft.ones(1, 2))
    assert len(step.retraces) <= 1


def test_a_module_that_is_only_read_is_seen():
    class Settings(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = 2.0

    settings = Settings()
    step = weft.compile(lambda x: x * settings.temperature)
    assert value(step) == 2.0
    settings.temperature = 3.0
    assert value(step) == 3.0
    settings.temperature = 5.0
    assert value(step) == 5.0


def test_modules_that_the_function_makes_are_no_state():
    def losses(library, x, y):
        m = library.nn
        net = m.Sequential(m.ReLU(), m.Sequential(m.Hardtanh(-0.5, 0.5), m.Flatten()))
        weighted = m.CrossEntropyLoss(weight=library.tensor([1.0, 2.0, 4.0]), label_smoothing=0.1)
        return m.SmoothL1Loss(beta=0.5)(net(x), x) + weighted(x, y)

    step = weft.compile(lambda x, y: losses(weft, x, y))
    for x, y in [([[1.0, -2.0, 0.25], [0.5, 0.0, -1.0]], [2, 0]), ([[0.5, 4.0, 1.0], [-2.0, 3.0, 1.5]], [1, 1])] * 2:
        expected = losses(torch, torch.tensor(x), torch.tensor(y))
        np.testing.assert_allclose(step(weft.tensor(x), weft.tensor(y)).item(), expected.item(), rtol=1e-6)
    assert step.retraces == []


def test_a_module_made_in_the_function_and_kept_by_it_is_state():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    kept = {}

    @weft.compile
    def step(x):
        if "layer" not in kept:
            kept["layer"] = Counted()
        return kept["layer"](x)

    @weft.compile
    def once(x):
        return weft.loop(lambda s, _: (Counted()(s) + 1, s), x, x)[0]

    assert [value(step) for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0] and kept["layer"].calls == 5
    kept.clear()
    assert [value(step) for _ in range(2)] == [1.0, 2.0] and kept["layer"].calls == 2
    assert [value(lambda x: once(weft.ones(3, 1))) for _ in range(3)] == [4.0, 4.0, 4.0] and once.retraces == []
