"""Groups and lists of parameters that change between steps are seen by compiled steps, too."""

import numpy as np
import pytest

import weft
from tests.backend.optimizers import leaves, make, stepping

pytestmark = pytest.mark.usefixtures("on_each_device")


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_group_that_is_added_takes_part_in_compiled_steps(kind):
    results = []
    for compiled in (False, True):
        params = leaves()
        optimizer = make(kind, params[:2])
        step = stepping(params, optimizer, compiled)
        target = weft.tensor(0.5, dtype=weft.float64)
        for _ in range(4):
            step(target)
        before = params[2].numpy().copy()
        optimizer.add_param_group({"params": params[2:], "lr": 0.01})
        for _ in range(4):
            step(target)
        assert (params[2].numpy() != before).all()
        results.append(params)
    for one, two in zip(*results, strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes()


def test_gradients_of_a_group_that_is_added_are_forgotten():
    first, second = weft.ones(3, requires_grad=True), weft.ones(3, requires_grad=True)
    optimizer = weft.optim.SGD([first])

    @weft.compile
    def forget():
        optimizer.zero_grad()
        return first * 2.0

    for _ in range(3):
        forget()
    optimizer.add_param_group({"params": [second]})
    (first * second).sum().backward()
    forget()
    assert first.grad is None and second.grad is None


CHANGES = {
    "append": lambda groups, p: groups[0]["params"].append(p),
    "extend": lambda groups, p: groups[0]["params"].extend([p]),
    "+=": lambda groups, p: groups[0].__getitem__("params").__iadd__([p]),
    "insert": lambda groups, p: groups[0]["params"].insert(0, p),
    "[0] =": lambda groups, p: groups[0]["params"].__setitem__(0, p),
    "pop": lambda groups, p: groups[0]["params"].pop(),
    "del": lambda groups, p: groups[0]["params"].__delitem__(0),
    "reverse": lambda groups, p: groups[0]["params"].reverse(),
    "clear": lambda groups, p: groups[0]["params"].clear(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_compiled_step_that_is_replayed_sees_a_changed_list(name):
    """As a step outside weft.compile does; and costs no look at the list while nothing has changed."""
    a, b, new = (weft.ones(2, requires_grad=True) for _ in range(3))
    optimizer = weft.optim.SGD([a, b], lr=0.1)

    def step():
        optimizer.zero_grad()
        (a * b * new).sum().backward()
        optimizer.step()

    compiled = weft.compile(step)
    for _ in range(3):
        compiled()
    CHANGES[name](optimizer.param_groups, new)
    with pytest.raises(weft.WeftError, match=r"SGD\.step: given .* in 'params'.*add_param_group"):
        compiled()
    with pytest.raises(weft.WeftError, match=r"SGD\.step: given .* in 'params'.*add_param_group"):
        step()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_group_that_was_taken_away_is_no_longer_updated(is_compiled):
    a, b = (weft.ones(2, requires_grad=True) for _ in range(2))
    optimizer = weft.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.1)

    def step():
        optimizer.zero_grad()
        (a.sum() + b.sum()).backward()
        optimizer.step()

    run = weft.compile(step) if is_compiled else step
    for _ in range(3):
        run()
    before = b.tolist()
    optimizer.param_groups.pop()
    b.grad = None
    run()
    assert b.tolist() == before and np.allclose(a.tolist(), 0.6)
