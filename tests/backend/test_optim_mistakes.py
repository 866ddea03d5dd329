"""Optimizers refuse wrong parameters, groups and numbers, and say why."""

import pytest

import weft
from tests.backend.optimizers import (
    BOTH_WAYS,
)

pytestmark = pytest.mark.usefixtures("on_each_device")


def leaf(*shape):
    return weft.ones(*(shape or (2,)), requires_grad=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.Adam({leaf()}), "Adam: given a set as parameters"),
        (lambda o: o.Adam(3), "Adam: given a int as parameters"),
        (lambda o: o.Adam([("a", leaf()), leaf()]), "Adam: given a Tensor among pairs"),
        (lambda o: o.Adam([("a", leaf()), ("a", leaf())]), "Adam: given the name 'a' twice"),
        (lambda o: o.Adam([{"params": [("a", leaf())]}, {"params": [leaf()]}]), "Adam: given groups with"),
        (lambda o: o.Adam([{"lr": 1.0}]), "Adam: given a group without 'params'"),
        (lambda o: o.SGD([weft.ones(2, dtype=weft.int32)]), "SGD: given a int32 tensor"),
        (lambda o: o.SGD([{"params": [leaf()], "update_every": 0}]), "SGD: given update_every 0"),
        (lambda o: o.NAdam([leaf()], betas=(1.0, 0.9)), r"NAdam: given betas \(1.0, 0.9\)"),
        (lambda o: o.NAdam([leaf()], momentum_decay=-1), "NAdam: given momentum_decay -1"),
        (lambda o: o.RAdam([leaf()], lr=-1), "RAdam: given lr -1"),
        (lambda o: o.Adamax([leaf()], eps=-1), "Adamax: given eps -1"),
        (lambda o: o.RMSprop([leaf()], alpha=-1), "RMSprop: given alpha -1"),
        (lambda o: o.Adagrad([leaf()], lr_decay=-1), "Adagrad: given lr_decay -1"),
        (lambda o: o.Adadelta([leaf()], rho=2.0), "Adadelta: given rho 2.0"),
        (lambda o: o.Rprop([leaf()], etas=(1.2, 0.5)), r"Rprop: given etas \(1.2, 0.5\)"),
        (lambda o: o.Lion([leaf()], betas=(0.9, -1)), r"Lion: given betas \(0.9, -1\)"),
        (lambda o: o.LARS([leaf()], lr=0.1, trust=-1), "LARS: given trust -1"),
        (lambda o: o.LAMB([leaf()], clamp=-1.0), "LAMB: given clamp -1.0"),
        (lambda o: o.ASGD([leaf()], weight_decay=-1), "ASGD: given weight_decay -1"),
        (lambda o: o.Adafactor([leaf()], d=0.5), "Adafactor: given d 0.5"),
        (lambda o: o.Adafactor([leaf()], beta2_decay=0.5), "Adafactor: given beta2_decay 0.5"),
        (lambda o: o.Muon([leaf(2, 2, 2)]), r"Muon: given a parameter of shape \(2, 2, 2\)"),
        (lambda o: o.Muon([leaf(2, 2)], adjust_lr_fn="x"), "Muon: given adjust_lr_fn 'x'"),
        (lambda o: o.Muon([leaf(2, 2)], ns_steps=100), "Muon: given ns_steps 100"),
        (lambda o: o.LBFGS([leaf()], line_search_fn="x"), "LBFGS: given line_search_fn 'x'"),
        (lambda o: o.LBFGS([{"params": [leaf()]}, {"params": [leaf()]}]), "LBFGS: given several parameter groups"),
        (lambda o: o.SGD([leaf()]).load_state_dict({"model": 1}), r"load_state_dict: given \['model'\]"),
        (lambda o: o.SGD([leaf()]).load_state_dict(3), "load_state_dict: given int"),
        (lambda o: o.split_decay([3], 0.1), "split_decay: given a int"),
        (lambda o: o.ExponentialMovingAverage([]), "ExponentialMovingAverage: given no tensors"),
        (lambda o: o.ExponentialMovingAverage([leaf()], decay=2.0), "ExponentialMovingAverage: given decay 2.0"),
        (lambda o: o.swa_utils.get_ema_multi_avg_fn(-1.0), "swa_utils: given decay -1.0"),
    ],
)  # fmt: skip
def test_what_is_refused(call, message):
    with pytest.raises(weft.WeftError, match=message):
        call(weft.optim)


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        ("SGD", "lr", None, "SGD: given lr None; expected a number"),
        ("SGD", "lr", "x", "SGD: given lr 'x'"),
        ("SGD", "update_every", 2.5, r"SGD: given update_every 2\.5"),
        ("SGD", "update_every", 0, "SGD: given update_every 0"),
        ("Adam", "betas", 0.9, r"Adam: given betas 0\.9; expected 2 numbers"),
        ("Adam", "betas", (0.9,), r"Adam: given betas \(0\.9,\)"),
        ("Adam", "betas", (0.9, None), r"Adam: given betas \(0\.9, None\)"),
        ("Adam", "params", [], "param_groups: given 'params' set to another list"),
        ("LBFGS", "update_every", 2, "LBFGS: given update_every"),
    ],
)
def test_a_hyperparameter_that_is_refused_leaves_the_group_as_it_was(kind, name, value, message):
    w = leaf()
    optimizer = getattr(weft.optim, kind)([w], lr=0.5)
    before = dict(optimizer.param_groups[0])
    with pytest.raises(weft.WeftError, match=message):
        optimizer.param_groups[0][name] = value
    after = dict(optimizer.param_groups[0])
    assert list(before) == list(after)
    assert all(before[key] is after[key] for key in before)
    optimizer.param_groups[0]["lr"] = 0.25


def test_none_where_it_means_something():
    for kind, name, value in (("LAMB", "clamp", None), ("Adafactor", "eps", (None, 1e-3))):
        given = 10.0 if kind == "LAMB" else (1e-8, 1e-3)
        optimizer = getattr(weft.optim, kind)([leaf()], **{name: given})
        optimizer.param_groups[0][name] = value
        assert optimizer.param_groups[0][name] == value


@BOTH_WAYS
def test_a_list_of_parameters_that_was_changed_is_refused(compiled):
    w, other = leaf(), leaf()
    optimizer = weft.optim.SGD([w])

    def step():
        optimizer.zero_grad()
        (w * other).sum().backward()
        optimizer.step()

    step = weft.compile(step) if compiled else step
    step()
    optimizer.param_groups[0]["params"].append(other)
    with pytest.raises(weft.WeftError, match=r"SGD\.step: given 2 in 'params'.*add_param_group"):
        step()
    optimizer.param_groups[0]["params"].pop()
    step()
    optimizer.param_groups[0]["params"][0] = other
    with pytest.raises(weft.WeftError, match=r"SGD\.step: given other tensors in 'params'"):
        optimizer.step()


def test_the_state_of_another_optimizer_is_refused():
    w = leaf()
    adam = weft.optim.Adam([w])
    (w * 2).sum().backward()
    adam.step()
    with pytest.raises(weft.WeftError, match="load_state_dict: given state named exp_avg, exp_avg_sq"):
        weft.optim.Adagrad([leaf()]).load_state_dict(adam.state_dict())
    with pytest.raises(weft.WeftError, match="load_state_dict: given groups without 'alpha', 'momentum'"):
        weft.optim.RMSprop([leaf()]).load_state_dict(weft.optim.Adam([leaf()]).state_dict())


def test_a_parameter_of_another_shape_is_refused():
    w = leaf()
    optimizer = weft.optim.Adam([w])
    w.data = weft.ones(3)
    (w * 2).sum().backward()
    with pytest.raises(weft.WeftError, match=r"step: given a parameter of shape \(3,\); expected \(2,\)"):
        optimizer.step()
