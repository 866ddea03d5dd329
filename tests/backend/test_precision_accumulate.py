"""Accumulation: k micro-batches have the gradient of the joint batch, whatever a mean divides by."""

import functools
import itertools

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
import weft.nn.functional as F
from tests.layers.instances import state_of, tensors
from tests.layers.record import Draw
from tests.layers.records import records
from weft.nn.loss import _Loss
from weft.train.accumulate import Accumulator, Unreduced, micro_batches

pytestmark = pytest.mark.usefixtures("quick_code")
ROWS = 13
LABELS = np.array([0, 1, -100, -100, -100, -100, 4, 3, 2, 1, 0, -100, 1])  # one part may have none that counts
WEIGHT = np.array([0.1, 0.2, 0.3, 0.4, 2.0])


def model():
    weft.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def inputs():
    return weft.tensor(np.random.default_rng(0).normal(size=(ROWS, 4)))


def masked(prediction, target):
    """A loss of the user's that says what it divides by."""
    used = (target >= 0).to(prediction.dtype)
    per_row = prediction.square().sum(-1) * used
    return per_row.sum(), used.sum()


class Doubled(nn.CrossEntropyLoss):
    def forward(self, input, target):
        return 2.0 * super().forward(input, target)


class Focal(nn.CrossEntropyLoss):
    """Reduces by itself."""

    def forward(self, input, target):
        loss = F.cross_entropy(input, target, reduction="none")
        return ((1.0 - (-loss).exp()) ** 2 * loss).mean()


class SumOfSquares(nn.Module):
    reduction = "sum"

    def forward(self, prediction, target):
        return (prediction - target).square().sum()


class Counted(SumOfSquares):
    def forward(self, prediction, target):
        return super().forward(prediction, target), float(target.numel())


CASES = {
    "a subclass": (lambda: Doubled(weight=weft.tensor(WEIGHT)), LABELS),
    "a subclass with a sum": (lambda: Doubled(reduction="sum"), LABELS),
    "a subclass that reduces": (lambda: Focal(), np.abs(LABELS) % 5),
    "a module with a sum": (lambda: SumOfSquares(), np.random.default_rng(1).normal(size=(ROWS, 5))),
    "a module with a sum and a count": (lambda: Counted(), np.random.default_rng(1).normal(size=(ROWS, 5))),
    "cross_entropy": (lambda: nn.CrossEntropyLoss(), LABELS),
    "weights": (lambda: nn.CrossEntropyLoss(weight=weft.tensor(WEIGHT)), LABELS),
    "smoothing": (lambda: nn.CrossEntropyLoss(weight=weft.tensor(WEIGHT), label_smoothing=0.1), LABELS),
    "ignore_index": (lambda: nn.CrossEntropyLoss(ignore_index=1), np.abs(LABELS) % 5),
    "sum": (lambda: nn.CrossEntropyLoss(reduction="sum"), LABELS),
    "a function": (lambda: F.cross_entropy, LABELS),
    "a partial": (
        lambda: functools.partial(F.cross_entropy, ignore_index=4, weight=weft.tensor(WEIGHT)),
        abs(LABELS) % 5,
    ),
    "probabilities": (lambda: nn.CrossEntropyLoss(), np.random.default_rng(1).dirichlet(np.ones(5), ROWS)),
    "mse": (lambda: nn.MSELoss(), np.random.default_rng(1).normal(size=(ROWS, 5))),
    "kl": (lambda: nn.KLDivLoss(reduction="batchmean"), np.random.default_rng(1).dirichlet(np.ones(5), ROWS)),
    "mean of rows": (lambda: lambda p, t: (p.square().sum(-1) * t).mean(), np.random.default_rng(1).normal(size=ROWS)),
    "total and count": (lambda: masked, LABELS),
}


def joint(net, loss, x, y):
    net.zero_grad()
    result = loss(net(x), y)
    if isinstance(result, tuple):
        result = result[0] / result[1]
    result.backward()
    return result.item(), [np.array(param.grad) for param in net.parameters()]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_the_joint_batch(case, compiled, on_each_device):
    make, target = CASES[case]
    net, loss, x, y = model(), make(), inputs(), weft.tensor(target)
    value, expected = joint(net, loss, x, y)
    for k in (1, 2, 5, ROWS, 20) if not compiled else (3, ROWS):
        accumulator = Accumulator(net.parameters(), loss)

        def step(x, y, k=k, accumulator=accumulator):
            net.zero_grad()
            for part, labels in accumulator.parts((x, y), k):
                accumulator.add(net(part), labels)
            return accumulator.finish()

        step = weft.compile(step) if compiled else step
        for _ in range(2):  # nothing is left of the first
            assert abs(step(x, y).item() - value) <= 1e-12 * max(abs(value), 1.0)
            for param, other in zip(net.parameters(), expected, strict=True):
                np.testing.assert_allclose(param.grad.numpy(), other, rtol=1e-12, atol=1e-12)


def test_over_several_calls(on_each_device):
    """Micro-batches that come one by one, of different sizes, in a compiled function each."""
    net, loss, x, y = model(), nn.CrossEntropyLoss(), inputs(), weft.tensor(LABELS)
    value, expected = joint(net, loss, x, y)
    accumulator = Accumulator(net.parameters(), loss)
    add = weft.compile(lambda x, y: accumulator.add(net(x), y))
    finish = weft.compile(accumulator.finish)
    for _ in range(3):
        net.zero_grad()
        for start, stop in ((0, 5), (5, 6), (6, 12), (12, 13)):
            add(x[start:stop], y[start:stop])
        assert abs(finish().item() - value) < 1e-12
        for param, other in zip(net.parameters(), expected, strict=True):
            np.testing.assert_allclose(param.grad.numpy(), other, rtol=1e-12, atol=1e-12)


def test_with_loss_scaling(on_each_device):
    net, loss, x, y = model(), nn.CrossEntropyLoss(), inputs(), weft.tensor(LABELS)
    _, expected = joint(net, loss, x, y)
    optimizer, scaler = weft.optim.SGD(net.parameters(), lr=0.0), weft.amp.GradScaler(init_scale=1024.0)
    accumulator = Accumulator(net.parameters(), loss)

    @weft.compile
    def step(x, y):
        optimizer.zero_grad()
        for part, labels in accumulator.parts((x, y), 3):
            accumulator.add(net(part), labels, scaler=scaler)
        value = accumulator.finish()
        scaler.step(optimizer)
        scaler.update()
        return value

    step(x, y)
    for param, other in zip(net.parameters(), expected, strict=True):
        np.testing.assert_allclose(param.grad.numpy(), other, rtol=1e-12, atol=1e-12)


def test_memory_shrinks_with_the_parts():
    weft.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)])
    accumulator = Accumulator(net.parameters(), nn.MSELoss())
    arenas = []
    for k in (1, 2, 4, 8):

        @weft.compile
        def step(x, k=k):
            net.zero_grad()
            for part, target in accumulator.parts((x, x), k):
                accumulator.add(net(part), target)
            return accumulator.finish()

        arenas.append(step.predicted(weft.ones(2048, 32)).arena_bytes)
    assert all(after < 0.7 * before for before, after in itertools.pairwise(arenas)), arenas


def is_reduced_loss(record):
    """By its name first: to make all layers takes seconds, in each process that collects tests."""
    kind = getattr(nn, record.name, None)
    if not (isinstance(kind, type) and issubclass(kind, _Loss)):
        return False
    made = record.make()
    return isinstance(made, _Loss) and made.reduction != "none"


LOSSES = [pytest.param(record, id=record.id) for record in records() if is_reduced_loss(record)]


@pytest.mark.parametrize("record", LOSSES)
def test_every_loss_is_total_by_count(record):
    loss = record.make()
    given = tensors(record.inputs(Draw()), weft.float64)
    loss = loss.double()
    total, count = Unreduced(loss)(*given)
    found = total if count is None else total / count
    np.testing.assert_allclose(found.numpy(), loss(*given).numpy(), rtol=1e-12, atol=1e-14)


def test_micro_batches():
    parts = micro_batches({"x": weft.arange(7), "y": (weft.ones(7, 2), None), "scale": 2.0}, 3)
    assert [part["x"].tolist() for part in parts] == [[0, 1, 2], [3, 4], [5, 6]]
    assert parts[1]["y"][0].shape == (2, 2) and parts[2]["scale"] == 2.0 and parts[0]["y"][1] is None
    assert len(micro_batches(weft.ones(2), 5)) == 2
    with pytest.raises(weft.ShapeError, match="first axes of \\[2, 3\\]"):
        micro_batches((weft.ones(2), weft.ones(3)), 2)
    with pytest.raises(weft.RangeError, match="k=0"):
        micro_batches(weft.ones(2), 0)


def test_errors():
    with pytest.raises(weft.RangeError, match="reduction='none'"):
        Unreduced(nn.MSELoss(reduction="none"))
    with pytest.raises(weft.DTypeError, match="as loss"):
        Unreduced(3)
    with pytest.raises(weft.ShapeError, match="one number"):
        Unreduced(lambda p, t: p * t)(weft.ones(2), weft.ones(2))
    with pytest.raises(weft.GraphError, match="no parameters"):
        Accumulator([], nn.MSELoss())
    with pytest.raises(weft.GraphError, match="weight of each element"):
        Unreduced(functools.partial(F.mse_loss, weight=weft.ones(2)))(weft.ones(2), weft.ones(2))


# ---- every loss, beside torch ----------------------------------------------------------------------------------------


def parts_of(record, values, count):
    """The inputs of a loss in parts along their axis of samples, as slices of each input; None for what is in each."""
    axes = [0] * len(values) if record.batch_axes is None else list(record.batch_axes)
    rows = values[0].shape[axes[0]]
    bounds = [rows * part // count for part in range(count + 1)]
    for start, stop in itertools.pairwise(bounds):
        yield [
            (slice(None),) * axis + (slice(start, stop),)
            if isinstance(value, np.ndarray) and axis is not None and value.ndim > axis
            else None
            for value, axis in zip(values, axes, strict=True)
        ]


BESIDE_TORCH = [
    param
    for param in LOSSES
    if getattr(param.values[0].oracle, "torch_module", None) is not None and "batch" in param.values[0].traits
]


@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize("record", BESIDE_TORCH)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # torch, of its KLDivLoss
def test_every_loss_has_torchs_gradient_of_the_joint_batch(record, precision):
    """Two and all parts, of equal and unequal size; under autocast losses are float32, so the bound is that of float32,
    for predictions that have 16 bits."""
    values, is_16_bit = record.inputs(Draw()), precision == "bfloat16"
    if is_16_bit:
        narrow = [weft.tensor(one, dtype=precision) if _is_float(one) else one for one in values]
        values = [one.to(weft.float64).numpy() if isinstance(one, weft.Tensor) else one for one in narrow]
    theirs = record.oracle.torch_module().double()
    loss = record.make()
    state = {key: torch.from_numpy(np.asarray(value).astype("d")) for key, value in state_of(loss).items()}
    theirs.load_state_dict(state)
    given = [torch.from_numpy(np.array(one)) if isinstance(one, np.ndarray) else one for one in values]
    given[0].requires_grad_()
    expected = theirs(*given)
    expected.backward()
    dtype = weft.float64 if precision == "float64" else weft.float32
    loss, ours = loss.to(dtype), tensors(tuple(values), dtype)
    rtol = 1e-11 if precision == "float64" else 1e-5
    for count in {2, given[0].shape[(record.batch_axes or (0,))[0]]}:
        prediction = ours[0].detach().clone().requires_grad_()
        accumulator = Accumulator([prediction], loss)
        for part in parts_of(record, values, count):
            rows = [one if at is None else one[at] for one, at in zip([prediction, *ours[1:]], part, strict=True)]
            with weft.autocast("cpu", dtype=precision, enabled=is_16_bit):
                accumulator.add(*rows)
        value = accumulator.finish()
        np.testing.assert_allclose(value.item(), expected.item(), rtol=rtol)
        found, wanted = prediction.grad.numpy(), given[0].grad.numpy()
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * max(abs(wanted).max(), 1e-3))


def _is_float(value):
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"
