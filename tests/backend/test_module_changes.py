"""Every way to change a module is seen by the compiled functions that have read it."""

import types

import numpy as np
import pytest

import weft
import weft.nn as nn

pytestmark = pytest.mark.usefixtures("on_each_device")


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        return x * self.scale


class Holder(nn.Module):
    """`read(self, x)` is what its forward does."""

    def __init__(self, read, **values):
        super().__init__()
        self.read = read
        for name, value in values.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.read(self, x)

    def double(self, x):
        return x * 2


def nested():
    return nn.Sequential(nn.Sequential(Inner()))


def hidden(holder):
    holder.__dict__["hidden"] = Inner()


def rescale_below(holder):
    holder.c[0][0].scale = 7.0


def with_scale(model):
    return next(module for module in model.modules() if hasattr(module, "scale"))


# What forward reads, what the module holds, and what changes.
CHANGES = {
    "list grows": (lambda s, x: x * float(np.prod(s.c)), {"c": lambda: [2.0]}, lambda m: m.c.append(3.0)),
    "dict grows": (lambda s, x: x * sum(s.c.values()), {"c": lambda: {"a": 2.0}}, lambda m: m.c.update(b=3.0)),
    "set grows": (lambda s, x: x * sum(s.c), {"c": lambda: {2}}, lambda m: m.c.add(5)),
    "long list": (lambda s, x: x * sum(s.c), {"c": lambda: [1.0] * 40}, lambda m: m.c.__setitem__(7, 100.0)),
    "array": (lambda s, x: x * float(s.c.sum()), {"c": lambda: np.ones(3)}, lambda m: m.c.__setitem__(0, 100.0)),
    "nested list": (lambda s, x: x * s.c[0][0], {"c": lambda: [[2.0]]}, lambda m: m.c[0].__setitem__(0, 3.0)),
    "function": (lambda s, x: s.f(x), {"f": lambda: weft.relu}, lambda m: setattr(m, "f", weft.neg)),
    "method": (lambda s, x: s.double(x), {}, lambda m: setattr(m, "double", lambda x: x * 5)),
    "children": (lambda s, x: x * next(iter(s.c.children()))[0].scale, {"c": nested}, rescale_below),
    "path": (lambda s, x: x * s.get_submodule("c.0.0").scale, {"c": nested}, rescale_below),
    "registry": (lambda s, x: x * s.c._modules["0"]._modules["0"].scale, {"c": nested}, rescale_below),
    "modules": (lambda s, x: x * with_scale(s).scale, {"c": nested}, rescale_below),
    "computed name": (
        lambda s, x: x * getattr(s, "".join(["n", "m"])),
        {"nm": lambda: 2.0},
        lambda m: setattr(m, "nm", 5),
    ),
    "not registered": (lambda s, x: x * s.hidden.scale, {}, lambda m: setattr(m.hidden, "scale", 5.0)),
    "called directly": (lambda s, x: s.hidden.forward(x), {}, lambda m: setattr(m.hidden, "scale", 5.0)),
    "in a list": (lambda s, x: s.c[0](x), {"c": lambda: [Inner()]}, lambda m: setattr(m.c[0], "scale", 5.0)),
    "new in a list": (lambda s, x: s.c[0](x), {"c": lambda: [Inner()]}, lambda m: m.c.__setitem__(0, nn.Identity())),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    read, values, change = CHANGES[name]
    model = Holder(read, **{key: make() for key, make in values.items()})
    hidden(model)
    step = weft.compile(lambda x: model(x))
    x = weft.full((1,), 3.0)
    assert step(x).item() == model(x).item() == step(x).item()
    before = model(x).item()
    change(model)
    assert model(x).item() != before
    assert step(x).item() == model(x).item() == step(x).item()


def test_another_class_and_another_method_of_a_class_are_seen():
    class First(nn.Module):
        def forward(self, x):
            return self.helper(x)

        def helper(self, x):
            return x * 2

    class Second(First):
        def forward(self, x):
            return x * 200

    model = First()
    step = weft.compile(lambda x: model(x))
    x = weft.ones(1)
    assert step(x).item() == 2.0
    First.helper = lambda self, x: x * 3
    assert step(x).item() == 3.0
    First.forward = lambda self, x: x * 4
    assert step(x).item() == 4.0
    model.__class__ = Second
    assert step(x).item() == 200.0
    model.forward = types.MethodType(lambda self, x: x * 5, model)
    assert step(x).item() == 5.0
    del model.forward
    assert step(x).item() == 200.0


def test_what_one_compiled_function_assigns_others_see():
    model = Inner()
    model.count, model.flag = 1, False

    def step(x):
        model.count = model.count + 1
        model.flag = not model.flag
        return x + 0

    first, second = weft.compile(step), weft.compile(lambda x: x * model.count + (100 if model.flag else 0))
    x = weft.ones(1)
    for _ in range(6):
        first(x)
        assert second(x).item() == model.count + (100 if model.flag else 0)
    assert model.count == 7


def test_submodules_that_alternate():
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Inner(), Inner()
            self.second.scale = 5.0
            self.current = self.first

        def forward(self, x):
            y = self.current(x)
            self.current = self.second if self.current is self.first else self.first
            return y

    model, x = Turns(), weft.ones(1)
    step = weft.compile(lambda x: model(x))
    assert [step(x).item() for _ in range(5)] == [2.0, 5.0, 2.0, 5.0, 2.0]
    assert "current" not in model.__dict__ and model.current is model._modules["current"]


def test_functional_call_inside_of_a_compiled_function():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", weft.zeros(1))

        def forward(self, x):
            self.count = self.count + 1
            return x * self.count

    model = Counting()
    own, given = model.count, {"count": weft.full((1,), 10.0)}
    step = weft.compile(lambda x: weft.func.functional_call(model, given, (x,)))
    assert [step(weft.ones(1)).item() for _ in range(3)] == [11.0, 11.0, 11.0]
    assert model.count is own and own.item() == 0.0 and given["count"].item() == 10.0
    both = weft.compile(lambda x: model(x) + weft.func.functional_call(model, given, (x,)))
    assert [both(weft.ones(1)).item() for _ in range(3)] == [12.0, 13.0, 14.0]
    assert model.count is own and own.item() == 3.0


def test_a_buffer_without_a_value_and_a_trace_that_fails_leave_the_module_as_it_was():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", None)

        def forward(self, x):
            self.state = x * 2
            return x

    model = Late()
    with pytest.raises(weft.WeftError, match="state"):
        weft.compile(lambda x: model(x))(weft.ones(1))
    assert model.state is None
    model(weft.ones(1))
    assert model.state.item() == 2.0


def test_a_hook_that_was_there_for_a_while_does_not_matter():
    layer = nn.Linear(1, 1)
    layer.register_forward_hook(lambda *_: None)
    step = weft.compile(lambda x: layer(x))
    step(weft.ones(1))
    nn.summary(layer, (1,))
    step(weft.ones(1))
    assert step.retraces == []


def test_a_compiled_module_shows_what_the_module_has():
    model = Inner()
    fast = weft.compile(model)
    model.scale = 9.0
    assert fast.scale == 9.0 and fast(weft.ones(1)).item() == 9.0
    fast.scale = 4.0
    assert model.scale == 4.0 and fast(weft.ones(1)).item() == 4.0
    fast.training = False
    assert not model.training
    assert fast.train() is fast and model.training and fast.eval() is fast
    with pytest.raises(weft.DTypeError, match="Compiled"):
        nn.Sequential(fast)
