"""Running statistics in loops that are not compiled and never read them: computed with the step they belong to."""

import gc
import inspect

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from weft.plan.device import Slab

pytestmark = pytest.mark.usefixtures("on_each_device")


def bytes_in_use():
    gc.collect()
    backend = weft.default_device().backend
    if hasattr(backend, "bytes_in_use"):
        return backend.bytes_in_use
    return sum(one.nbytes for one in gc.get_objects() if isinstance(one, Slab))


def forward_only(model):
    return lambda x: model(x).sum().item()


def training(model):
    optimizer = weft.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


@pytest.mark.parametrize("kind", [forward_only, training])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4), nn.BatchNorm1d(4)),
        lambda: nn.Sequential(
            nn.Linear(16, 32), nn.Unflatten(1, (8, 4)), nn.InstanceNorm1d(8, track_running_stats=True)
        ),
    ],
)
def test_a_loop_keeps_no_batches(kind, make):
    weft.manual_seed(0)
    model = make()
    step = kind(model)
    random = np.random.default_rng(0)
    batches = [random.normal(size=(64, 16)).astype(np.float32) for _ in range(30)]
    for batch in batches[:3]:
        step(weft.tensor(batch))
    weft.eval(*model.buffers())
    before, counted = bytes_in_use(), weft.counters()
    for batch in batches[3:]:
        step(weft.tensor(batch))
    assert bytes_in_use() <= before
    assert weft.counters()["plans_built"] == counted["plans_built"]
    state = model.state_dict()
    for value in state.values():
        value.numpy()
    assert weft.counters()["plans_built"] == counted["plans_built"], "reading statistics computed something"
    if "1.num_batches_tracked" in state:
        assert state["1.num_batches_tracked"].item() == 30


def test_statistics_are_right_when_the_output_is_never_read():
    layer = nn.BatchNorm1d(3, momentum=None)
    batches = [weft.rand(4, 3) for _ in range(5)]
    for batch in batches:
        layer(batch)
    expected = np.mean([batch.numpy().mean(0) for batch in batches], 0)
    np.testing.assert_allclose(layer.running_mean, expected, rtol=1e-5)
    assert layer.num_batches_tracked.item() == 5


def test_a_graph_stays_differentiable_when_statistics_are_computed():
    layer = nn.BatchNorm1d(3)
    x = weft.rand(4, 3, requires_grad=True)
    y = layer(x)
    layer.running_mean.numpy()
    y.numpy()
    (y * y * y).sum().backward()
    other = nn.BatchNorm1d(3)
    z = x.detach().requires_grad_()
    (other(z) ** 3).sum().backward()
    np.testing.assert_allclose(x.grad, z.grad, rtol=1e-5, atol=1e-6)


def test_a_file_without_counters_is_loaded():
    layer = nn.Sequential(nn.BatchNorm1d(3))
    layer(weft.rand(4, 3))
    old = {key: value for key, value in layer.state_dict().items() if "num_batches" not in key}
    other = nn.Sequential(nn.BatchNorm1d(3))
    other.load_state_dict(old)
    np.testing.assert_array_equal(other[0].running_mean, layer[0].running_mean)
    assert other[0].num_batches_tracked.item() == 0 and "num_batches_tracked" not in "".join(old)
    del old["0.running_mean"]
    with pytest.raises(weft.ShapeError, match=r"missing: 0.running_mean, 0.num_batches_tracked"):
        other.load_state_dict(old)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("BatchNorm1d", (0, 3)),
        ("BatchNorm1d", (2, 3, 0)),
        ("BatchNorm2d", (0, 3, 4, 4)),
        ("BatchNorm2d", (2, 3, 0, 4)),
        ("InstanceNorm1d", (2, 3, 0)),
    ],
)
def test_an_input_without_elements_leaves_the_statistics(kind, shape, compiled):
    kept = {"affine": True, "track_running_stats": True}
    ours, theirs = getattr(nn, kind)(3, **kept), getattr(torch.nn, kind)(3, **kept)
    ours(weft.ones(2, *shape[1:2], *[2 for _ in shape[2:]]))
    theirs(torch.ones(2, *shape[1:2], *[2 for _ in shape[2:]]))

    def step(x):
        y = ours(x)
        y.sum().backward()
        return y

    x = weft.zeros(*shape)
    y = (weft.compile(step) if compiled else step)(x)
    their_y = theirs(torch.zeros(shape))
    their_y.sum().backward()
    assert y.shape == tuple(their_y.shape)
    for name, value in theirs.state_dict().items():
        if kind.startswith("Batch") or "num_batches" not in name:
            np.testing.assert_allclose(ours.state_dict()[name], value, rtol=1e-6, err_msg=name)
    for name, param in theirs.named_parameters():
        np.testing.assert_array_equal(getattr(ours, name).grad, param.grad)


@pytest.mark.parametrize("momentum", [0.25, None])
def test_batches_need_not_be_counted(momentum):
    ours, theirs = nn.BatchNorm1d(2, momentum=momentum), torch.nn.BatchNorm1d(2, momentum=momentum)
    ours.num_batches_tracked = theirs.num_batches_tracked = None
    batch = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    y, their_y = ours(weft.tensor(batch)), theirs(torch.tensor(batch))
    np.testing.assert_allclose(y.detach(), their_y.detach(), rtol=1e-5, atol=1e-6)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    np.testing.assert_allclose(ours.running_mean, theirs.running_mean, rtol=1e-6)
    ours.load_state_dict(ours.state_dict())
    ours.reset_running_stats()
    assert ours.running_mean.tolist() == [0.0, 0.0]


@pytest.mark.skipif(
    "bias" not in inspect.signature(torch.nn.GroupNorm).parameters, reason="torch has this argument since 2.13"
)
def test_texts_say_whether_there_is_a_bias():
    for kind, args in (
        ("BatchNorm2d", (3,)),
        ("InstanceNorm1d", (3,)),
        ("LayerNorm", ((3, 4),)),
        ("GroupNorm", (1, 3)),
    ):
        for kept in ({}, {"bias": False}):
            assert repr(getattr(nn, kind)(*args, **kept)) == repr(getattr(torch.nn, kind)(*args, **kept))
