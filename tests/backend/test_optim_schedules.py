"""Schedulers against torch's, number by number; averages of weights; neither makes a compiled step be traced again."""

import copy
import inspect
import math
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


# ---- averages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averages_of_weights(kind, compiled):
    params = [weft.tensor(np.linspace(-1, 1, 6).reshape(2, 3), requires_grad=True), weft.ones(2, requires_grad=True)]
    optimizer = weft.optim.SGD(params, lr=0.1)
    average = (
        weft.optim.ExponentialMovingAverage(params, 0.8)
        if kind == "ema"
        else weft.optim.StochasticWeightAverage((str(k), param) for k, param in enumerate(params))
    )

    def train():
        optimizer.zero_grad()
        sum([((param - 2.0) ** 2).sum().float() for param in params]).backward()
        optimizer.step()
        average.update()

    step = weft.compile(train) if compiled else train
    seen = []
    for _ in range(6):
        step()
        seen.append([param.numpy().copy() for param in params])
        expected = seen[0]
        for later in seen[1:]:
            expected = [0.8 * one + 0.2 * two for one, two in zip(expected, later, strict=True)]
        if kind == "swa":
            expected = [np.mean(each, axis=0) for each in zip(*seen, strict=True)]
        for one, two in zip(average.averages, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), two, rtol=1e-6)
    if compiled:
        assert step.retraces == []
        if kind == "ema":
            average.decay = 0.5
            before = [each.numpy().copy() for each in average.averages]
            step()
            for old, new, param in zip(before, average.averages, params, strict=True):
                np.testing.assert_allclose(new.numpy(), 0.5 * old + 0.5 * param.numpy(), rtol=1e-6)
            assert step.retraces == []
    trained = [param.numpy().copy() for param in params]
    with average.applied():
        for param, each in zip(params, average.averages, strict=True):
            np.testing.assert_array_equal(param.numpy(), each.numpy())
    assert all((param.numpy() == value).all() for param, value in zip(params, trained, strict=True))
    saved = average.state_dict()
    step()
    again = type(average)(params)
    again.load_state_dict(saved)
    again.update()
    reference = saved["averages"][0].numpy()
    share = 0.001 if kind == "ema" else 1.0 / (1.0 + saved["count"].item())
    np.testing.assert_allclose(
        again.averages[0].numpy(), reference + share * (params[0].numpy() - reference), rtol=1e-6
    )


def test_averages_of_16_bit_weights_are_float32():
    w = weft.ones(4, dtype=weft.bfloat16)
    ema = weft.optim.ExponentialMovingAverage([w], 0.999)
    ema.update()
    w.copy_(weft.full((4,), 2.0, dtype=weft.bfloat16))
    for _ in range(3):
        ema.update()
    np.testing.assert_allclose(ema.averages[0].numpy(), 2.0 - 0.999**3, rtol=1e-6)
    ema.copy_to()
    assert w.dtype is weft.bfloat16 and w.float().tolist() == [1.0] * 4
    with pytest.raises(weft.WeftError, match="copy_to: given tensors of other shapes"):
        ema.copy_to([weft.ones(2)])


@pytest.mark.parametrize("dtype", [weft.float32, weft.float64])
def test_the_functions_of_averaged_models_are_torchs(dtype):
    values = np.linspace(-1, 1, 5)
    for name, arguments in (("ema", (0.75,)), ("swa", ())):
        ours, theirs = getattr(swa_utils, f"get_{name}_avg_fn"), getattr(torch.optim.swa_utils, f"get_{name}_avg_fn")
        tensors = [weft.tensor(values + k, dtype=dtype) for k in range(2)]
        others = [torch.tensor(tensor.numpy()) for tensor in tensors]
        expected = theirs(*arguments)(*others, 3)
        np.testing.assert_allclose(ours(*arguments)(*tensors, 3).numpy(), expected.numpy(), rtol=1e-6)
        many = getattr(swa_utils, f"get_{name}_multi_avg_fn")(*arguments)
        averages = [tensors[0].clone(), weft.ones(2, dtype=weft.float64)]
        many(averages, [tensors[1], weft.zeros(2, dtype=weft.float64)], weft.tensor(3))
        np.testing.assert_allclose(averages[0].numpy(), expected.numpy(), rtol=1e-6)
        np.testing.assert_allclose(averages[1].numpy(), 0.75, rtol=1e-7)
    assert math.isclose(swa_utils.get_swa_avg_fn()(weft.ones(1), weft.zeros(1), weft.tensor(1)).item(), 0.5)


# ---- averaged models ------------------------------------------------------------------------------------------------


def networks():
    """The same network with batch normalization, here and in torch."""

    def build(nn):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()

    ours, theirs = build(weft.nn), build(torch.nn)
    ours.load_state_dict({name: weft.tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    return ours, theirs


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["swa", "ema", "ema_each", "swa_each", "swa_buffers", "own"])
def test_averaged_models_are_torchs(kind, compiled):
    ours, theirs = networks()

    def averaged(module, model, where):
        options = {
            "swa": {},
            "ema": {"multi_avg_fn": where.get_ema_multi_avg_fn(0.8)},
            "ema_each": {"avg_fn": where.get_ema_avg_fn(0.8)},
            "swa_each": {"avg_fn": where.get_swa_avg_fn()},
            "swa_buffers": {"use_buffers": True, "avg_fn": lambda a, p, n: a + (p - a) / (n + 1)},
            "own": {"avg_fn": lambda a, p, n: 0.5 * a + 0.5 * p},
        }[kind]
        return where.AveragedModel(model, **options)

    average = averaged(weft, ours, swa_utils)
    expected = averaged(torch, theirs, torch.optim.swa_utils)
    optimizer, other = weft.optim.SGD(ours.parameters(), lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1)

    def train(x):
        optimizer.zero_grad()
        loss = (ours(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        average.update_parameters(ours)

    step = weft.compile(train) if compiled else train
    for number in range(4):
        x = np.random.default_rng(number).normal(size=(8, 3))
        step(weft.tensor(x))
        other.zero_grad()
        (theirs(torch.tensor(x)) ** 2).sum().backward()
        other.step()
        expected.update_parameters(theirs)
        found, wanted = average.state_dict(), expected.state_dict()
        assert list(found) == list(wanted)
        for name in found:
            if not (kind == "swa_buffers" and "num_batches" in name):  # torch rounds the mean of integers its own way
                np.testing.assert_allclose(
                    found[name].numpy(), wanted[name].numpy(), rtol=1e-5, atol=1e-8, err_msg=name
                )
    if compiled:
        assert step.retraces == []
    data = [np.random.default_rng(number).normal(size=(8, 3)) for number in range(3)]
    swa_utils.update_bn([(weft.tensor(x), None) for x in data], average)
    torch.optim.swa_utils.update_bn([(torch.tensor(x), None) for x in data], expected)
    average.eval(), expected.eval()
    np.testing.assert_allclose(
        average(weft.tensor(data[0])).numpy(), expected(torch.tensor(data[0])).detach().numpy(), rtol=1e-5, atol=1e-7
    )
    assert average.module[1].momentum == 0.1


def test_optimizers_follow_a_model_that_moves():
    """`model.double()` and `model.to(device)` between steps of one optimizer, as in torch."""
    ours, theirs = networks()
    ours.float(), theirs.float()
    optimizer = weft.optim.SGD(ours.named_parameters(), lr=0.02, momentum=0.9)
    other = torch.optim.SGD(theirs.parameters(), lr=0.02, momentum=0.9)
    for number in range(6):
        if number == 2:
            ours.double(), theirs.double()
        if number == 4:
            ours.to("reference")
        dtype = "float32" if number < 2 else "float64"
        x = np.random.default_rng(number).normal(size=(8, 3)).astype(dtype)
        optimizer.zero_grad()
        (ours(weft.tensor(x, device="reference" if number >= 4 else None)) ** 2).sum().backward()
        optimizer.step()
        other.zero_grad()
        (theirs(torch.tensor(x)) ** 2).sum().backward()
        other.step()
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"


@pytest.mark.parametrize("kind", ["avg_fn", "multi_avg_fn"])
def test_the_first_values_are_copied_without_a_call(kind):
    """As in torch: a function of one's own may divide by the count."""
    seen = []

    def average(old, new, count):
        seen.append(int(count))
        if kind == "avg_fn":
            return old + (new - old) / int(count)
        for one, two in zip(old, new, strict=True):
            one.copy_(two)

    model = weft.nn.Linear(2, 1, bias=False)
    averaged = swa_utils.AveragedModel(model, **{kind: average})
    for _ in range(3):
        averaged.update_parameters(model)
    assert seen == [1, 2]


AFTER_WARMUP = {
    "chained": lambda s, o: s.ChainedScheduler([s.ExponentialLR(o, 0.5), s.ConstantLR(o, 0.25, 3)]),
    "sequential": lambda s, o: s.SequentialLR(o, [s.ExponentialLR(o, 0.5), s.ConstantLR(o, 0.25, 2)], [2]),
    "both": lambda s, o: s.ChainedScheduler([s.SequentialLR(o, [s.StepLR(o, 1, 0.5), s.ConstantLR(o, 1.0)], [3])]),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 3),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 2),
}


@pytest.mark.parametrize("kind", AFTER_WARMUP)
def test_what_follows_a_warmup_begins_at_its_own_step_0(kind):
    def rates(scheduler, count):
        found = scheduler.get_last_lr()[:]
        for _ in range(count - 1):
            scheduler.step()
            found += scheduler.get_last_lr()
        return found

    optimizer, other = sgd(), sgd()
    after = AFTER_WARMUP[kind](lr_scheduler, other)
    base = other.param_groups[0]["initial_lr"]
    found = rates(lr_scheduler.Warmup(other, 2, after), 8)
    assert found == [base / 2, base, *rates(AFTER_WARMUP[kind](lr_scheduler, optimizer), 6)]
