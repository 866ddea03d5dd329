"""What optimizers share: groups, names, closures, accumulation, frozen and moved parameters, bad input."""

import gc

import numpy as np
import pytest
import torch

import weft
from tests.backend.optimizers import (
    BOTH_WAYS,
    EVERY_KIND,
    arrays,
    assert_same,
    for_kind,
    leaves,
    loss_of,
    make,
    one_step,
    stepping,
)
from weft.core.attributes import _rebind

pytestmark = pytest.mark.usefixtures("on_each_device", "quick_code")

# ---- update_every ---------------------------------------------------------------------------------------------------


@BOTH_WAYS
@EVERY_KIND
def test_every_third_call_makes_an_update_with_the_sum_of_gradients(kind, compiled):
    ours, expected = for_kind(kind, leaves()), for_kind(kind, leaves())
    optimizer, other = make(kind, [{"params": ours, "update_every": 3}]), make(kind, expected)
    step = stepping(ours, optimizer, compiled)
    targets = np.sin(np.arange(10))
    before = [param.numpy().copy() for param in ours]
    for number, target in enumerate(targets):
        step(weft.tensor(target))
        if number % 3 == 2:
            other.zero_grad()
            sum([loss_of(expected, float(t)) for t in targets[number - 2 : number + 1]]).backward()
            other.step()
        elif number < 2:
            assert all((param.numpy() == value).all() for param, value in zip(ours, before, strict=True))
        assert_same(ours, expected)
    if compiled:
        assert step.retraces == []
    saved = optimizer.state_dict()["state"][0]
    assert saved["accumulated"].item() == 1.0
    assert "step" not in saved or saved["step"].item() == 3.0


def test_accumulation_is_bit_for_bit_the_same_compiled_and_eager_and_goes_on_after_loading():
    results = []
    for compiled in (False, True):
        params = leaves()
        optimizer = make("AdamW", [{"params": params, "update_every": 4}])
        step = stepping(params, optimizer, compiled)
        for number in range(6):
            step(weft.tensor(0.1 * number, dtype=weft.float64))
        saved, params = optimizer.state_dict(), leaves([param.numpy() for param in params])
        optimizer = make("AdamW", [{"params": params, "update_every": 4}])
        optimizer.load_state_dict(saved)
        step = stepping(params, optimizer, compiled)
        for number in range(6, 9):
            step(weft.tensor(0.1 * number, dtype=weft.float64))
        results.append([param.numpy() for param in params])
    whole = leaves()
    optimizer = make("AdamW", [{"params": whole, "update_every": 4}])
    step = stepping(whole, optimizer, True)
    for number in range(9):
        step(weft.tensor(0.1 * number, dtype=weft.float64))
    for one, two, three in zip(*results, whole, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three.numpy())


def test_groups_accumulate_each_at_its_own_pace_and_the_pace_may_change():
    params, expected = leaves(), [torch.tensor(array, requires_grad=True) for array in arrays()]
    optimizer = weft.optim.SGD([{"params": params[:2], "update_every": 2}, {"params": params[2:]}], lr=0.05)
    other = [torch.optim.SGD(expected[:2], lr=0.05), torch.optim.SGD(expected[2:], lr=0.05)]
    step = weft.compile(lambda target: one_step(params, optimizer, target))
    for number in range(8):
        if number == 4:
            optimizer.param_groups[0]["update_every"] = 1
        step(weft.tensor(0.3, dtype=weft.float64))
        other[1].zero_grad()
        loss_of(expected, 0.3).backward()
        other[1].step()
        if number % 2 or number >= 4:
            other[0].step()
            other[0].zero_grad()
        for one, two in zip(params, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-12)
    assert len(step.retraces) == 1  # the new pace


@BOTH_WAYS
@pytest.mark.parametrize(("first", "then"), [(3, 2), (5, 2), (3, 1)])
def test_a_lower_pace_during_an_accumulation_uses_what_was_added_up(first, then, compiled):
    w = weft.tensor([0.0], requires_grad=True)
    optimizer = weft.optim.SGD([{"params": [w], "update_every": first}], lr=1.0)

    def step():
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()

    step = weft.compile(step) if compiled else step
    calls, found = first - 1, []
    for _ in range(calls):
        step()
    assert w.item() == 0.0
    optimizer.param_groups[0]["update_every"] = then
    for _ in range(2 * then + 1):
        step()
        found.append(-w.item())
    assert found == [first + k // then * then for k in range(2 * then + 1)]


@BOTH_WAYS
def test_momentum_that_begins_later_begins_as_pytorchs(compiled):
    """The first value of the buffer is the gradient, without dampening, however many updates were made without it."""
    w, v = weft.tensor([1.0], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    ours = weft.optim.SGD([w], lr=0.1, dampening=0.5)
    theirs = torch.optim.SGD([v], lr=0.1, dampening=0.5)

    def step():
        ours.zero_grad()
        (w * w).sum().backward()
        ours.step()

    step = weft.compile(step) if compiled else step
    for momentum in (0.0, 0.0, 0.9, 0.9, 0.0, 0.9, 0.9):
        ours.param_groups[0]["momentum"] = theirs.param_groups[0]["momentum"] = momentum
        step()
        theirs.zero_grad()
        (v * v).sum().backward()
        theirs.step()
        np.testing.assert_allclose(w.detach().numpy(), v.detach().numpy(), rtol=1e-6)


def test_a_saved_buffer_that_is_none_has_not_begun():
    w = weft.tensor([1.0], requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0, momentum=0.5, dampening=0.5)
    saved = optimizer.state_dict()
    optimizer.load_state_dict({**saved, "state": {0: {"momentum_buffer": None}}})
    (w * 2).sum().backward()
    optimizer.step()
    assert w.item() == -1.0


# ---- moved, frozen and missing --------------------------------------------------------------------------------------


def move(params, dtype=None, device=None):
    """What `Module.to` does: another value under the same tensor."""
    for param in params:
        with weft.no_grad():
            _rebind(param, param.detach().to(device=device or param.device, dtype=dtype or param.dtype).node)
        param.grad = None


@BOTH_WAYS
@EVERY_KIND
def test_parameters_of_another_dtype_go_on_with_their_state(kind, compiled):
    """float32 to float64: the same as an optimizer that was given the float32 numbers in float64."""
    ours = for_kind(kind, leaves(arrays("float32")))
    optimizer = make(kind, ours)
    step = stepping(ours, optimizer, compiled)
    for number in range(3):
        step(weft.tensor(0.1 * number))
    expected = leaves([param.numpy().astype("float64") for param in ours])
    other = make(kind, expected)
    other.load_state_dict(optimizer.state_dict())
    move(ours, weft.float64)
    other_step = stepping(expected, other, compiled)
    for number in range(3):
        target = weft.tensor(0.2 * number, dtype=weft.float64)
        step(target)
        other_step(target)
        assert all(param.dtype is weft.float64 for param in ours)
        assert_same(ours, expected)
    assert all(flat.dtype is weft.float64 for flat in optimizer.param_groups[0].buckets[0].state.values())


def test_parameters_on_another_device_go_on_with_their_state():
    ours, expected = leaves(), leaves()
    optimizer, other = make("Adam", ours), make("Adam", expected)
    for number in range(6):
        if number == 2:
            move(ours[:2], device="reference")
        if number == 4:
            move(ours, device="reference")
        for params, one in ((ours, optimizer), (expected, other)):
            one.zero_grad()
            for param in params:
                ((param - 2.0) ** 2).sum().backward()
            one.step()
        assert_same(ours, expected)
    assert [len(group.buckets) for group in optimizer.param_groups] == [1]
    assert str(optimizer.param_groups[0].buckets[0].hyper.device).startswith("reference")


@BOTH_WAYS
def test_frozen_parameters_stay_and_go_on_when_they_are_unfrozen(compiled):
    ours, theirs = leaves(), [torch.tensor(array, requires_grad=True) for array in arrays()]
    optimizer, expected = weft.optim.Adam(ours, lr=0.05), torch.optim.Adam(theirs, lr=0.05)
    step = stepping(ours, optimizer, compiled)
    for number in range(7):
        for params in (ours, theirs):
            params[1].requires_grad_(not 2 <= number < 5)
        frozen = ours[1].numpy().copy()
        step(weft.tensor(0.1 * number, dtype=weft.float64))
        expected.zero_grad()
        loss_of(theirs, 0.1 * number).backward()
        expected.step()
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-12)
        assert (ours[1].numpy() == frozen).all() == (2 <= number < 5)


def test_two_steps_in_one_function_of_which_the_second_updates_less():
    ours, theirs = leaves(), [torch.tensor(array, requires_grad=True) for array in arrays()]
    optimizer, expected = weft.optim.Adam(ours, lr=0.05), torch.optim.Adam(theirs, lr=0.05)

    def both(params, optimizer):
        for used in (params, params[1:3]):
            optimizer.zero_grad()
            loss_of(used, 0.3).backward()
            optimizer.step()

    step = weft.compile(lambda: both(ours, optimizer))
    for _ in range(4):
        step()
        both(theirs, expected)
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-12)


def test_several_optimizers_over_one_model():
    ours, theirs = leaves(), [torch.tensor(array, requires_grad=True) for array in arrays()]
    pair = weft.optim.SGD(ours[:2], lr=0.05, momentum=0.9), weft.optim.AdamW(ours[2:], lr=0.02)
    expected = torch.optim.SGD(theirs[:2], lr=0.05, momentum=0.9), torch.optim.AdamW(theirs[2:], lr=0.02)

    @weft.compile
    def step(target):
        loss_of(ours, target).backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()

    for number in range(5):
        step(weft.tensor(0.1 * number, dtype=weft.float64))
        loss_of(theirs, 0.1 * number).backward()
        for optimizer in expected:
            optimizer.step()
            optimizer.zero_grad()
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-12)
    assert step.retraces == []


def test_an_empty_parameter_does_no_harm():
    w, empty = weft.ones(2, requires_grad=True), weft.ones(0, 3, requires_grad=True)
    optimizer = weft.optim.Adam([w, empty], lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        ((w * w).sum() + empty.sum()).backward()
        optimizer.step()
    assert w.tolist()[0] < 0.1 and empty.shape == (0, 3)


# ---- closures, names, groups ----------------------------------------------------------------------------------------


@BOTH_WAYS
def test_a_closure_computes_the_gradients_and_its_loss_is_returned(compiled):
    w = weft.tensor([2.0], requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    def step():
        with weft.no_grad():
            return optimizer.step(closure)

    step = weft.compile(step) if compiled else step
    assert [step().item() for _ in range(3)] == [4.0, 1.0, 0.25]
    assert optimizer.step() is None


def test_named_parameters():
    named = [(f"layer.{k}", param) for k, param in enumerate(leaves())]
    theirs = [(name, torch.tensor(param.numpy(), requires_grad=True)) for name, param in named]
    optimizer, expected = weft.optim.AdamW(iter(named)), torch.optim.AdamW(theirs)
    saved, other = optimizer.state_dict()["param_groups"], expected.state_dict()["param_groups"]
    assert saved[0]["param_names"] == other[0]["param_names"] == [f"layer.{k}" for k in range(4)]
    assert saved[0].keys() == other[0].keys()
    assert optimizer.param_groups[0]["params"][1] is named[1][1]
    groups = weft.optim.SGD([{"params": named[:2], "lr": 0.5}, {"params": named[2:]}], lr=0.1).param_groups
    assert [(group["param_names"], group["lr"]) for group in groups] == [
        (["layer.0", "layer.1"], 0.5), (["layer.2", "layer.3"], 0.1),
    ]  # fmt: skip
    optimizer.load_state_dict(optimizer.state_dict())
    assert "layer" not in repr(optimizer) and "weight_decay: 0.01" in repr(optimizer)


def test_the_state_of_a_parameter():
    w = weft.ones(2, requires_grad=True)
    optimizer = weft.optim.Adam([w])
    assert optimizer.state == {} and optimizer.state_dict()["state"] == {}
    (w * 3.0).sum().backward()
    optimizer.step()
    assert optimizer.state[w]["exp_avg"].tolist() == pytest.approx([0.3, 0.3])


def test_split_decay():
    named = [
        ("a.weight", weft.ones(2, 3)),
        ("a.bias", weft.ones(3)),
        ("embedding", weft.ones(4, 2)),
        ("scale", weft.ones(())),
    ]

    class Model:
        def named_parameters(self):
            return iter(named)

    groups = weft.optim.split_decay(Model(), 0.1)
    assert [([name for name, _ in group["params"]], group["weight_decay"]) for group in groups] == [
        (["a.weight", "embedding"], 0.1), (["a.bias", "scale"], 0.0),
    ]  # fmt: skip
    groups = weft.optim.split_decay(named, 0.1, no_decay=["embed"])
    assert [name for name, _ in groups[1]["params"]] == ["a.bias", "embedding", "scale"]
    tensors = [tensor for _, tensor in named]
    assert [len(group["params"]) for group in weft.optim.split_decay(tensors, 0.1)] == [2, 2]
    assert len(weft.optim.split_decay(tensors[:1], 0.1)) == 1


def test_rates_given_as_tensors_are_read_once():
    w = weft.tensor([1.0], requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=weft.tensor(0.25))
    (w * w).sum().backward()
    optimizer.step()
    assert w.item() == 0.5 and optimizer.param_groups[0]["lr"] == 0.25


def test_a_group_is_a_dict_whose_numbers_are_on_the_device():
    w = weft.tensor([1.0], requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=0.25)
    optimizer.param_groups[0].update(lr=0.5)
    assert optimizer.param_groups[0].setdefault("lr", 7.0) == 0.5
    (w * w).sum().backward()
    optimizer.step()
    assert w.item() == 0.0

    def step():
        optimizer.param_groups[0]["lr"] = 1.0
        optimizer.step()

    with pytest.raises(weft.WeftError, match=r"param_groups: given 'lr' set inside weft\.compile"):
        weft.compile(step)()


def test_an_optimizer_in_pytorchs_style():
    """A class that defines `step` itself and keeps its state under `self.state`."""

    class Plain(weft.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        def step(self, closure=None):
            with weft.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        state = self.state[p]
                        state["count"] = state.get("count", 0) + 1
                        p.add_(p.grad, alpha=-group["lr"])

    w = weft.tensor([1.0], requires_grad=True)
    optimizer = Plain([w], lr=0.25)
    (w * w).sum().backward()
    optimizer.step()
    assert w.item() == 0.5 and optimizer.state_dict()["state"] == {0: {"count": 1}}
    other = Plain([weft.ones(1, requires_grad=True)])
    other.load_state_dict(optimizer.state_dict())
    assert list(other.state.values()) == [{"count": 1}]


# ---- long loops -----------------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["NAdam", "LAMB", "Adafactor"])
def test_memory_does_not_grow(kind, compiled):
    params = leaves()
    optimizer = make(kind, [{"params": params, "update_every": 2}])
    scheduler = weft.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    ema = weft.optim.ExponentialMovingAverage(params)
    step = stepping(params, optimizer, compiled)
    target = weft.tensor(0.1, dtype=weft.float64)

    def run(count):
        for _ in range(count):
            step(target)
            ema.update()
            scheduler.step()
        weft.eval(*params)

    usage()  # memory that earlier tests left is free now, not during the steps: addresses come again
    run(60)  # a plan of one launch is a graph from the ninth time on that it has the same addresses
    before = usage()
    run(1000 if compiled else 100)
    after = usage()
    assert after[1] == before[1]
    assert after[0] - before[0] < 50


def usage():
    weft.default_device().backend.synchronise()  # a GPU keeps the status words of up to 256 runs until then
    gc.collect()
    counters = weft.counters()
    return len(gc.get_objects()), {name: counters[name] for name in ("traces", "plans_built", "kernels_compiled")}


def test_the_data_of_a_parameter_may_be_any_tensor():
    """Of a parameter, which is a class of its own, too."""
    w = weft.nn.Parameter(weft.ones(2))
    optimizer = weft.optim.Adam([w], lr=0.5)
    for form in (weft.tensor([3.0, 4.0]), weft.tensor([5.0, 6.0], dtype=weft.float64), w.detach() + 1.0):
        w.data = form
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
        np.testing.assert_allclose(w.numpy(), form.numpy() - 0.5, atol=0.1)
    assert w.dtype is weft.float32 and 7.0 not in w and w[0] in w
