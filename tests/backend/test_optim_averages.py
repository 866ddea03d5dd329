"""Averages of parameters: exponential and stochastic, and averaged models."""

import math

import numpy as np
import pytest
import torch

import weft
from tests.backend.test_optim_schedules import sgd
from weft.optim import lr_scheduler, swa_utils

pytestmark = pytest.mark.usefixtures("on_each_device")


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
