"""GradScaler: as torch's, step for step, with every optimizer, in and outside of compiled functions."""

import copy
import pickle

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from weft.amp import GradScaler

BAD = (3, 4, 9)  # steps in which a gradient is not finite


def inputs(count=14):
    random = np.random.default_rng(0)
    found = random.normal(size=(count, 3)).astype("f")
    found[BAD[0], 1], found[BAD[1], 0], found[BAD[2], 2] = np.inf, np.nan, -np.inf
    return found


def ours_of(optimizer, w, scaler, clip, compiled):
    def step(x):
        optimizer.zero_grad()
        scaler.scale((w * x * w).sum()).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([w], 1.0)
        scaler.step(optimizer)
        scaler.update()

    return weft.compile(step) if compiled else step


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("clip", [False, True], ids=["", "clip"])
def test_as_torch(clip, compiled, on_each_device):
    options = {"init_scale": 8.0, "growth_interval": 3}
    w, v = weft.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    ours, theirs = weft.optim.Adam([w], lr=0.1), torch.optim.Adam([v], lr=0.1)
    scaler, oracle = GradScaler(**options), torch.amp.GradScaler("cpu", **options)
    step = ours_of(ours, w, scaler, clip, compiled)
    for number, x in enumerate(inputs()):
        step(weft.tensor(x))
        theirs.zero_grad()
        oracle.scale((v * torch.tensor(x) * v).sum()).backward()
        if clip:
            oracle.unscale_(theirs)
            torch.nn.utils.clip_grad_norm_([v], 1.0)
        oracle.step(theirs)
        oracle.update()
        assert scaler.get_scale() == oracle.get_scale(), number
        np.testing.assert_allclose(w.detach().numpy(), v.detach().numpy(), rtol=1e-5, atol=1e-6)
    expected = oracle.state_dict()
    assert {key: value for key, value in scaler.state_dict().items() if key in expected} == expected
    assert scaler.skipped_steps() == len(BAD)
    assert ours.state_dict()["state"][0]["step"].item() == len(inputs()) - len(BAD)


def optimizers():
    names = [
        "SGD", "ASGD", "NAG", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Lion", "Adadelta", "Adagrad", "RMSprop",
        "Rprop", "LAMB", "LARS", "Adafactor", "Muon",
    ]  # fmt: skip
    return [pytest.param(name, id=name) for name in names]


def snapshot(optimizer, params):
    state = optimizer.state_dict()["state"]
    values = {(k, name): np.array(value) for k, entry in state.items() for name, value in entry.items()}
    return [np.array(param.detach()) for param in params], values


@pytest.mark.parametrize("name", optimizers())
def test_a_skipped_step_changes_nothing_of_an_optimizer(name, on_each_device):
    weft.manual_seed(0)
    params = [weft.randn(4, 3, requires_grad=True)]
    if name != "Muon":  # it takes matrices only
        params.append(weft.randn(5, requires_grad=True))
    optimizer, scaler = getattr(weft.optim, name)(params, lr=0.01), GradScaler(init_scale=4.0)
    plain = [weft.tensor(param.detach().numpy(), requires_grad=True) for param in params]
    other = getattr(weft.optim, name)(plain, lr=0.01)

    @weft.compile
    def step(factor):
        optimizer.zero_grad()
        scaler.scale(sum((param.square().sum() for param in params), weft.zeros(())) * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    for factor in (1.0, 2.0, float("inf"), 1.5, float("nan"), 1.0):
        before = snapshot(optimizer, params)
        step(weft.tensor(factor))
        after = snapshot(optimizer, params)
        if np.isfinite(factor):
            other.zero_grad()
            (sum((param.square().sum() for param in plain), weft.zeros(())) * factor).backward()
            other.step()
        else:
            for one, two in zip(before[0], after[0], strict=True):
                np.testing.assert_array_equal(one, two)
            for key, value in before[1].items():
                np.testing.assert_array_equal(value, after[1][key], err_msg=str(key))
    for one, two in zip(params, plain, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), two.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert scaler.skipped_steps() == 2 and scaler.get_scale() == 1.0


def test_gradients_that_are_added_up_by_the_optimizer(on_each_device):
    """`update_every`: a skipped step neither counts nor adds."""
    w = weft.ones(2, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([{"params": [w], "update_every": 2}], lr=1.0), GradScaler(init_scale=2.0)
    step = weft.compile(lambda x: _scaled(scaler, optimizer, (w * x).sum()))
    for x, expected in ((0.25, 1.0), (float("inf"), 1.0), (0.5, 0.25), (1.0, 0.25), (1.0, -1.75)):
        step(weft.tensor(x))
        np.testing.assert_array_equal(w.detach().numpy(), np.full(2, expected, "f"))


def _scaled(scaler, optimizer, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def test_rows_of_a_table(on_each_device):
    """A compiled SGD step updates only the rows with a gradient, or none of them."""
    table = nn.Embedding(6, 2)
    optimizer, scaler = weft.optim.SGD(table.parameters(), lr=1.0), GradScaler(init_scale=2.0)
    start = table.weight.detach().numpy().copy()

    @weft.compile
    def step(index, factor):
        _scaled(scaler, optimizer, (table(index) * factor).sum())

    step(weft.tensor([1, 1, 4]), weft.tensor(float("inf")))
    np.testing.assert_array_equal(table.weight.detach().numpy(), start)
    step(weft.tensor([1, 1, 4]), weft.tensor(1.0))
    expected = start - np.array([0, 2, 0, 0, 1, 0], "f")[:, None]
    np.testing.assert_allclose(table.weight.detach().numpy(), expected, rtol=1e-6)


def test_nothing_is_read_by_the_host(on_each_device):
    w = weft.ones(3, requires_grad=True)
    step = ours_of(weft.optim.Adam([w]), w, GradScaler(), True, True)
    xs = [weft.tensor(x) for x in inputs()]
    weft.eval(*xs)
    step(xs[0])
    before = weft.counters()
    for x in xs:
        step(x)
    after = weft.counters()
    assert after["downloads"] == before["downloads"] and after["traces"] == before["traces"]
    assert after["plans_run"] - before["plans_run"] == len(xs)


def test_a_step_in_several_compiled_functions(on_each_device):
    """Gradients that one function unscaled are not divided by the scale again in another."""
    w = weft.ones(2, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([w], lr=1.0), GradScaler(init_scale=16.0)

    @weft.compile
    def backward(x):
        optimizer.zero_grad()
        scaler.scale((w * x).sum()).backward()
        scaler.unscale_(optimizer)
        return w.grad * 1.0

    @weft.compile
    def update():
        scaler.step(optimizer)
        scaler.update()

    for number in range(3):
        assert backward(weft.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
        update()
        np.testing.assert_array_equal(w.detach().numpy(), 1.0 - np.array([1.0, 2.0], "f") * (number + 1))
    backward(weft.tensor([1.0, float("inf")]))
    scaler.step(optimizer)  # outside
    scaler.update()
    assert w.tolist() == [-2.0, -5.0] and scaler.get_scale() == 8.0 and scaler.skipped_steps() == 1


def test_an_update_without_a_step(on_each_device):
    """It is refused, as in PyTorch; where only the device knows it, it changes nothing."""
    w = weft.ones(2, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([w], lr=0.5), weft.amp.GradScaler(init_scale=8.0, growth_interval=2)

    def look():
        optimizer.zero_grad()
        scaler.scale(w.sum()).backward()
        scaler.step(optimizer)

    look()
    scaler.update()
    for _ in range(2):
        with pytest.raises(weft.errors.GraphError, match="since the last update"):
            scaler.update()
    assert scaler.get_scale() == 8.0
    scaler.update(8.0)  # a scale that is set needs no step
    compiled, update = weft.compile(look), weft.compile(scaler.update)
    for _ in range(3):
        compiled()
        update()
        for _ in range(3):
            update()
            scaler.update()
    assert scaler.get_scale() == 32.0  # after 4 good steps


def test_two_optimizers_share_a_scale(on_each_device):
    u, v = weft.ones(1, requires_grad=True), weft.ones(1, requires_grad=True)
    first, second = weft.optim.SGD([u], lr=1.0), weft.optim.SGD([v], lr=1.0)
    scaler = GradScaler(init_scale=4.0)
    scaler.scale([(u * 1.0).sum(), (v * weft.tensor(float("inf"))).sum()])[0].backward()
    scaler.scale((v * weft.tensor(float("inf"))).sum()).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert u.item() == 0.0 and v.item() == 1.0 and scaler.get_scale() == 2.0 and scaler.skipped_steps() == 1


def test_state(on_each_device):
    scaler = GradScaler(init_scale=32.0, growth_interval=5)
    assert scaler.state_dict()["scale"] == 32.0  # before the first loss
    w = weft.ones(1, requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=0.1)
    for _ in range(3):
        _scaled(scaler, optimizer, (w * 2.0).sum())
    state = scaler.state_dict()
    assert state["_growth_tracker"] == 3
    for other in (GradScaler(), copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
        other.load_state_dict(state)
        for _ in range(2):
            _scaled(other, optimizer, (w * 2.0).sum())
        assert other.get_scale() == 64.0 and other.state_dict()["_growth_tracker"] == 0
    oracle = torch.amp.GradScaler("cpu", init_scale=2.0)
    oracle.scale(torch.ones(()))
    oracle.load_state_dict({key: value for key, value in state.items() if key != "skipped_steps"})
    scaler.load_state_dict(oracle.state_dict())
    assert scaler.get_scale() == 32.0


def test_factors_may_change(on_each_device):
    w = weft.ones(1, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([w], lr=0.1), GradScaler(init_scale=2.0, growth_interval=1)
    step = weft.compile(lambda: _scaled(scaler, optimizer, (w * 1.0).sum()))
    step()
    scaler.set_growth_factor(4.0)
    step()
    assert scaler.get_scale() == 16.0 and scaler.get_growth_factor() == 4.0
    scaler.update(new_scale=3.0)
    assert scaler.get_scale() == 3.0
    with pytest.raises(weft.RangeError, match="growth_factor"):
        scaler.set_growth_factor(0.5)
    assert scaler.get_growth_factor() == 4.0


def test_the_scale_stays_finite(on_each_device):
    w = weft.ones(1, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([w], lr=0.0), GradScaler(init_scale=2.0**127, growth_interval=1)
    for _ in range(3):
        _scaled(scaler, optimizer, (w * 1e-6).sum())
    assert scaler.get_scale() == 2.0**127


def test_not_enabled(on_each_device):
    w = weft.ones(1, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([w], lr=1.0), GradScaler(enabled=False)
    _scaled(scaler, optimizer, (w * 0.5).sum())
    assert w.item() == 0.5 and scaler.get_scale() == 1.0 and scaler.state_dict() == {} and not scaler.is_enabled()


def test_an_optimizer_with_a_step_of_its_own():
    class Own(weft.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            for group in self.param_groups:
                for param in group["params"]:
                    with weft.no_grad():
                        param.copy_(param - param.grad)

    w = weft.ones(1, requires_grad=True)
    optimizer, scaler = Own([w]), GradScaler(init_scale=2.0)
    for x, expected in ((0.25, 0.75), (float("nan"), 0.75), (0.25, 0.5)):
        _scaled(scaler, optimizer, (w * x).sum())
        assert w.item() == expected
    with pytest.raises(weft.GraphError, match="which defines step"):
        weft.compile(lambda: _scaled(scaler, optimizer, (w * 1.0).sum()))()


def test_errors():
    w = weft.ones(1, requires_grad=True)
    half = weft.ones(1, dtype=weft.float16, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([w], lr=1.0), GradScaler()
    with pytest.raises(weft.GraphError, match="no optimizer"):
        scaler.update()
    scaler.scale((w * 1.0).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(weft.GraphError, match="unscale_"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(weft.GraphError, match=r"step\(\) was called"):
        scaler.step(optimizer)
    with pytest.raises(weft.GraphError, match="closure"):
        GradScaler().step(optimizer, lambda: 0.0)
    other = weft.optim.SGD([half], lr=1.0)
    scaler.scale((half * 1.0).sum()).backward()
    with pytest.raises(weft.DTypeError, match="float16 gradients"):
        scaler.step(other)
    for wrong in ({"init_scale": 0.0}, {"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}):
        with pytest.raises(weft.RangeError, match=next(iter(wrong))):
            GradScaler(**wrong)
    with pytest.raises(weft.GraphError, match="load_state_dict"):
        scaler.load_state_dict({})
    with pytest.raises(weft.GraphError, match="outside"):
        weft.compile(lambda x: x * scaler.get_scale())(w)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_without_a_gradient_is_an_error(on_each_device, compiled):
    model = nn.Linear(2, 1).to(on_each_device)
    scaler, optimizer = weft.amp.GradScaler(on_each_device), weft.optim.SGD(model.parameters(), lr=0.1)
    step = weft.compile(lambda: scaler.step(optimizer)) if compiled else lambda: scaler.step(optimizer)
    with pytest.raises(weft.GraphError, match="of whose parameters none has a gradient"):
        step()
