"""Schedulers against torch's, number by number; averages of weights; neither makes a compiled step be traced again."""

import copy
import inspect
import warnings

import numpy as np
import pytest
import torch

import weft
from weft.optim import lr_scheduler, swa_utils

pytestmark = pytest.mark.usefixtures("on_each_device")

THEIRS = torch.optim.lr_scheduler


def pair(kind="SGD", **options):
    """An optimizer with two groups, here and in torch."""
    options = options or {"momentum": 0.9}
    ours = [weft.ones(2, requires_grad=True), weft.ones(3, requires_grad=True)]
    theirs = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    return (
        getattr(weft.optim, kind)([{"params": ours[:1]}, {"params": ours[1:], "lr": 0.5}], lr=0.1, **options),
        getattr(torch.optim, kind)([{"params": theirs[:1]}, {"params": theirs[1:], "lr": 0.5}], lr=0.1, **options),
    )


class Decay:
    """A rule with a state."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate**step


CASES = {
    "lambda": lambda m, o: m.LambdaLR(o, lambda t: 0.9**t),
    "lambdas": lambda m, o: m.LambdaLR(o, [lambda t: 1 / (1 + t), Decay(0.7)]),
    "multiplicative": lambda m, o: m.MultiplicativeLR(o, lambda t: 0.8 + 0.01 * t),
    "step": lambda m, o: m.StepLR(o, 3, 0.5),
    "multistep": lambda m, o: m.MultiStepLR(o, [2, 5, 5, 11], 0.3),
    "constant": lambda m, o: m.ConstantLR(o),
    "constant_4": lambda m, o: m.ConstantLR(o, 0.25, 4),
    "linear": lambda m, o: m.LinearLR(o),
    "linear_down": lambda m, o: m.LinearLR(o, 0.9, 0.1, 7),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.8),
    "polynomial": lambda m, o: m.PolynomialLR(o),
    "polynomial_2": lambda m, o: m.PolynomialLR(o, 8, 2.0),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 5, 0.01),
    "cosine_long": lambda m, o: m.CosineAnnealingLR(o, 40),
    "restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 4),
    "restarts_2": lambda m, o: m.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "cyclic": lambda m, o: m.CyclicLR(o, 0.01, 0.1, 4),
    "cyclic_2": lambda m, o: m.CyclicLR(o, [0.01, 0.02], [0.1, 0.3], 3, 5, mode="triangular2"),
    "cyclic_exp": lambda m, o: m.CyclicLR(o, 0.01, 0.1, 4, mode="exp_range", gamma=0.95, base_momentum=0.5),
    "cyclic_own": lambda m, o: m.CyclicLR(o, 0.01, 0.1, 4, scale_fn=Decay(0.5), scale_mode="iterations"),
    "one_cycle": lambda m, o: m.OneCycleLR(o, 0.4, total_steps=25),
    "one_cycle_3": lambda m, o: m.OneCycleLR(o, [0.4, 0.2], epochs=5, steps_per_epoch=6, three_phase=True),
    "one_cycle_linear": lambda m, o: m.OneCycleLR(o, 0.4, 25, anneal_strategy="linear", cycle_momentum=False),
    "sequential": lambda m, o: m.SequentialLR(o, [m.LinearLR(o, 0.1, 1.0, 4), m.CosineAnnealingLR(o, 10)], [5]),
    "sequential_3": lambda m, o: m.SequentialLR(
        o, [m.ConstantLR(o, 0.1, 20), m.ExponentialLR(o, 0.9), m.StepLR(o, 3)], [3, 9]
    ),
    "chained": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.1, 3), m.ExponentialLR(o, 0.9)]),
    "swa": lambda m, o: (swa_utils if m is lr_scheduler else torch.optim.swa_utils).SWALR(o, [0.05, 0.01], 6),
    "swa_linear": lambda m, o: (swa_utils if m is lr_scheduler else torch.optim.swa_utils).SWALR(o, 0.05, 0, "linear"),
}  # fmt: skip


def rates(optimizer):
    return [(group["lr"], group.get("momentum"), group.get("betas")) for group in optimizer.param_groups]


@pytest.fixture(autouse=True)
def torch_may_warn():
    """That its optimizer made no step, or that `epoch` is given."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*scheduler.step.*")
        yield


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("case", CASES)
def test_rates_are_torchs(case, kind):
    options = {"momentum": 0.9} if kind == "SGD" else {"betas": (0.8, 0.99)}
    ours, theirs = pair(kind, **options)
    scheduler, expected = CASES[case](lr_scheduler, ours), CASES[case](THEIRS, theirs)
    for number in range(22):
        assert rates(ours) == rates(theirs), number
        assert scheduler.get_last_lr() == expected.get_last_lr()
        if case != "chained":
            assert scheduler.last_epoch == expected.last_epoch
        scheduler.step()
        expected.step()


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(("sequential", "chained"))])
def test_going_to_a_step(case):
    ours, theirs = pair()
    scheduler, expected = CASES[case](lr_scheduler, ours), CASES[case](THEIRS, theirs)
    for number in (3, 4, 9, 1):
        scheduler.step(number)
        expected.step(number)
        assert rates(ours) == rates(theirs), number
    scheduler.step()
    expected.step()
    assert rates(ours) == rates(theirs)


def test_restarts_at_fractions():
    ours, theirs = pair()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(ours, 3, 2)
    expected = THEIRS.CosineAnnealingWarmRestarts(theirs, 3, 2)
    for moment in (0.3, 1.7, 3.2, 8.9, 10.5, 0.1):
        scheduler.step(moment)
        expected.step(moment)
        assert rates(ours) == rates(theirs)


@pytest.mark.parametrize("case", CASES)
def test_states_go_on_here_and_in_torch(case):
    ours, theirs = pair()
    scheduler, expected = CASES[case](lr_scheduler, ours), CASES[case](THEIRS, theirs)
    for _ in range(4):
        scheduler.step()
        expected.step()
    other, others = pair()
    again, torchs = CASES[case](lr_scheduler, other), CASES[case](THEIRS, others)
    other.load_state_dict(ours.state_dict())
    for group, saved in zip(others.param_groups, theirs.param_groups, strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
    again.load_state_dict(copy.deepcopy(expected.state_dict()) if case != "swa_linear" else scheduler.state_dict())
    torchs.load_state_dict(copy.deepcopy(scheduler.state_dict()))
    for _ in range(6):
        for one in (expected, again, torchs):
            one.step()
        assert rates(other) == rates(theirs) == rates(others)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_plateaus(mode, threshold_mode):
    ours, theirs = pair()
    options = {"mode": mode, "factor": 0.5, "patience": 2, "threshold": 0.01, "threshold_mode": threshold_mode}
    options |= {"cooldown": 1, "min_lr": [0.01, 0.2]}
    scheduler, expected = lr_scheduler.ReduceLROnPlateau(ours, **options), THEIRS.ReduceLROnPlateau(theirs, **options)
    metrics = [5, 4, 4, 4.001, 3.999, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3, 6, 6, 6, 6, 6, float("nan"), 1]
    for number, metric in enumerate(metrics):
        if number == 12:
            saved, fresh = scheduler.state_dict(), lr_scheduler.ReduceLROnPlateau(ours, **options)
            fresh.load_state_dict(saved)
            scheduler = fresh
        scheduler.step(weft.tensor(float(metric)))
        expected.step(float(metric))
        assert rates(ours) == rates(theirs), number
        assert (scheduler.num_bad_epochs, scheduler.in_cooldown) == (expected.num_bad_epochs, expected.in_cooldown)


def test_a_fresh_scheduler_goes_on_where_another_stopped():
    ours, theirs = pair()
    for optimizer, module in ((ours, lr_scheduler), (theirs, THEIRS)):
        first = module.CosineAnnealingLR(optimizer, 10)
        for _ in range(4):
            first.step()
        module.CosineAnnealingLR(optimizer, 10, last_epoch=4).step()
    assert rates(ours) == rates(theirs)
    with pytest.raises(weft.WeftError, match="StepLR: given last_epoch 3, but no 'initial_lr' in group 0"):
        lr_scheduler.StepLR(pair()[0], 3, last_epoch=3)


@pytest.mark.parametrize("after", [True, False])
def test_warm_up(after):
    optimizer, _ = pair()
    scheduler = lr_scheduler.Warmup(optimizer, 4, lr_scheduler.StepLR(optimizer, 2, 0.5) if after else None)
    found = [scheduler.get_last_lr()]
    for number in range(9):
        if number == 5:
            other, _ = pair()
            again = lr_scheduler.Warmup(other, 4, lr_scheduler.StepLR(other, 2, 0.5) if after else None)
            other.load_state_dict(optimizer.state_dict())
            again.load_state_dict(copy.deepcopy(scheduler.state_dict()))
            scheduler = again
        scheduler.step()
        found.append(scheduler.get_last_lr())
    factors = [0.25, 0.5, 0.75, 1.0, *([1.0, 1.0, 0.5, 0.5, 0.25, 0.25] if after else [1.0] * 6)]
    np.testing.assert_allclose(found, [[0.1 * factor, 0.5 * factor] for factor in factors], rtol=1e-15)


@pytest.mark.parametrize("name", lr_scheduler.__all__)
def test_signatures_are_torchs(name):
    if name == "Warmup":
        return
    ours, theirs = inspect.signature(getattr(lr_scheduler, name)), inspect.signature(getattr(THEIRS, name))
    forms = [[(each.name, each.default) for each in signature.parameters.values()] for signature in (ours, theirs)]
    assert forms[0] == forms[1]


@pytest.mark.parametrize(
    "name",
    [
        "SGD", "ASGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Rprop", "Muon",
        "Adafactor", "LBFGS",
    ],
)  # fmt: skip
def test_signatures_of_optimizers_are_torchs(name):
    ours, theirs = inspect.signature(getattr(weft.optim, name)), inspect.signature(getattr(torch.optim, name))
    forms = [
        [(each.name, each.default, each.kind) for each in signature.parameters.values()] for signature in (ours, theirs)
    ]
    assert forms[0] == forms[1]


def test_a_schedule_does_not_make_a_compiled_step_be_traced_again():
    ours = [weft.tensor(np.linspace(-1, 1, 5), requires_grad=True)]
    theirs = [torch.tensor(np.linspace(-1, 1, 5), requires_grad=True)]
    optimizer, expected = weft.optim.AdamW(ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=20)
    other = THEIRS.OneCycleLR(expected, 0.3, total_steps=20)

    @weft.compile
    def step():
        optimizer.zero_grad()
        loss = ((ours[0] - 2.0) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(20):
        step()
        scheduler.step()
        expected.zero_grad()
        ((theirs[0] - 2.0) ** 2).sum().backward()
        expected.step()
        other.step()
        np.testing.assert_allclose(ours[0].numpy(), theirs[0].detach().numpy(), rtol=1e-12)
    assert step.retraces == [] and weft.counters()["traces"] >= 1


def sgd():
    return weft.optim.SGD([weft.ones(2, requires_grad=True)], lr=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.StepLR(3, 1), "StepLR: given a int"),
        (lambda s: s.LambdaLR(sgd(), [abs, abs]), "LambdaLR: lr_lambda: given 2 values"),
        (lambda s: s.LambdaLR(sgd(), 0.5), "LambdaLR: given a float"),
        (lambda s: s.ConstantLR(sgd(), 2.0), "ConstantLR: given factor 2.0"),
        (lambda s: s.LinearLR(sgd(), 0.0), "LinearLR: given start_factor 0.0"),
        (lambda s: s.LinearLR(sgd(), 1.0, 1.5), "LinearLR: given end_factor 1.5"),
        (lambda s: s.CosineAnnealingWarmRestarts(sgd(), 0), "CosineAnnealingWarmRestarts: given T_0 0"),
        (lambda s: s.CosineAnnealingWarmRestarts(sgd(), 2, 0), "CosineAnnealingWarmRestarts: given T_mult 0"),
        (lambda s: s.CyclicLR(sgd(), 0.1, 0.2, mode="x"), "CyclicLR: given mode 'x'"),
        (lambda s: s.CyclicLR(weft.optim.Adagrad([weft.ones(1)]), 0.1, 0.2), "CyclicLR: given Adagrad, which"),
        (lambda s: s.OneCycleLR(sgd(), 0.1), "OneCycleLR: given no number of steps"),
        (lambda s: s.OneCycleLR(sgd(), 0.1, 0), r"OneCycleLR: given \(0,\) steps"),
        (lambda s: s.OneCycleLR(sgd(), 0.1, 9, pct_start=2.0), "OneCycleLR: given pct_start 2.0"),
        (lambda s: s.ReduceLROnPlateau(sgd(), factor=1.0), "ReduceLROnPlateau: given factor 1.0"),
        (lambda s: s.ReduceLROnPlateau(sgd(), mode="x"), "ReduceLROnPlateau: given mode 'x'"),
        (lambda s: s.SequentialLR(sgd(), [], []), "SequentialLR: given no scheduler"),
        (lambda s: s.SequentialLR(sgd(), [s.StepLR(sgd(), 1)], []), "SequentialLR: given schedulers of different"),
        (lambda s: s.ChainedScheduler([s.ReduceLROnPlateau(sgd())]), "ChainedScheduler: given a ReduceLROnPlateau"),
        (lambda s: s.Warmup(sgd(), 0), "Warmup: given steps 0"),
        (lambda s: s.Warmup(sgd(), 2, s.StepLR(sgd(), 1)), "Warmup: given a StepLR"),
        (lambda s: s.Warmup(o := sgd(), 2, s.ReduceLROnPlateau(o)), "Warmup: given a ReduceLROnPlateau"),
        (lambda s: swa_utils.SWALR(sgd(), 0.1, anneal_strategy="x"), "SWALR: given anneal_strategy 'x'"),
        (lambda s: swa_utils.SWALR(sgd(), 0.1, -1), "SWALR: given anneal_epochs -1"),
    ],
)  # fmt: skip
def test_what_is_refused(call, message):
    with pytest.raises(weft.WeftError, match=message):
        call(lr_scheduler)
