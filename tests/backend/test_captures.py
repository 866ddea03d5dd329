"""Python values that a compiled function reads: a change is seen, a number becomes an input, nothing else retraces."""

import cProfile
import dataclasses
import datetime
import functools
import gc
import json
import math
import os
import random
import secrets
import sys
import threading
import time
import types
import uuid
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import NamedTuple

import numpy as np
import pytest

import weft
from tests.backend import captured_elsewhere
from weft import TraceWarning
from weft.counting import COUNTERS

ONES = weft.ones(3)


def bits(value):
    return value.numpy().tobytes() if isinstance(value, weft.Tensor) else value


class Counted:
    """A compiled function that is compared with itself, uncompiled, at every call."""

    def __init__(self, function):
        self.function, self.step = function, weft.compile(function)
        self.traces = 0

    def __call__(self, *args, **kwargs):
        expected = self.function(*args, **kwargs)
        before = COUNTERS.traces
        found = self.step(*args, **kwargs)
        self.traces += COUNTERS.traces - before
        assert type(found) is type(expected)
        assert bits(found) == bits(expected)
        return found


# ---- every way to read a value, every kind of value ---------------------------------------------------------------


class Config(NamedTuple):
    value: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object


@dataclasses.dataclass(slots=True)
class Slotted:
    value: object


class Plain:
    def __init__(self, value):
        self.value = value


class Method(Plain):
    def use(self, x):
        return numeric(x, self.value)


class Property(Plain):
    @property
    def doubled(self):
        return self.value

    def use(self, x):
        return numeric(x, self.doubled)


class Klass:
    value = None

    def use(self, x):
        return numeric(x, self.value)


def numeric(x, value):
    """Something that depends on all of a value."""
    if isinstance(value, dict):
        return sum((numeric(x, one) * (k + 2) for k, one in enumerate(value.values())), x * len(value))
    if isinstance(value, (set, frozenset)):
        return x * float(sum(value)) + len(value)
    if isinstance(value, (list, tuple, deque)):
        return sum((numeric(x, one) * (k + 2) for k, one in enumerate(value)), x * len(value))
    if isinstance(value, bool):
        return x * 3.0 if value else x - 1.0
    if isinstance(value, str):
        return {"sin": x.sin, "cos": x.cos}[value]()
    if isinstance(value, Plain):
        return numeric(x, value.value)
    return x * 1.5 if value is None else x * value


GLOBAL = None
PAIRS = {
    "float": (0.1, 0.3),
    "zero": (0.0, -0.0),
    "nan": (1.0, float("nan")),
    "int": (3, 5),
    "int or float": (1, 1.0),
    "bool": (True, False),
    "bool or int": (True, 1),
    "str": ("sin", "cos"),
    "None": (None, 2.0),
    "list": ([1.0, 2.0], [1.0, 3.0]),
    "longer list": ([1.0], [1.0, 2.0]),
    "list of other types": ([1, 2], [1, 2.0]),
    "long list": ([0.25] * 100, [0.25] * 99 + [0.5]),
    "tuple": ((1.0, 2), (1.0, 4)),
    "dict": ({"a": 1.0, "b": 2}, {"a": 1.0, "b": 3}),
    "dict in another order": ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}),
    "other keys": ({"a": 1.0}, {"a": 1.0, "b": 2.0}),
    "set": ({1, 2}, {1, 3}),
    "frozenset": (frozenset({1}), frozenset({2})),
    "nested": ({"a": [1.0, (2.0, 3.0)], "b": {"c": "sin"}}, {"a": [1.0, (2.0, 4.0)], "b": {"c": "sin"}}),
    "nested str": ([{"c": "sin"}], [{"c": "cos"}]),
    "deque": (deque([1.0, 2.0]), deque([1.0, 4.0])),
    "ordered dict": (OrderedDict(a=1.0), OrderedDict(a=2.0)),
    "numpy number": (np.float32(0.5), np.float32(0.75)),
    "object": (Plain(0.5), Plain(0.75)),
    "nested object": ([Plain(Plain(2))], [Plain(Plain(3))]),
}


def read_global():
    def put(value):
        global GLOBAL
        GLOBAL = value

    return lambda x: numeric(x, GLOBAL), put


def read_variable():
    held = None

    def put(value):
        nonlocal held
        held = value

    return lambda x: numeric(x, held), put


def read_default():
    def function(x, value=None):
        return numeric(x, value)

    return function, lambda value: setattr(function, "__defaults__", (value,))


def read_keyword_default():
    def function(x, *, value=None):
        return numeric(x, value)

    return function, lambda value: setattr(function, "__kwdefaults__", {"value": value})


def read_default_of_a_callee():
    def inner(x, value=None):
        return numeric(x, value)

    return lambda x: inner(x), lambda value: setattr(inner, "__defaults__", (value,))


def read_attribute():
    held = Plain(None)
    return lambda x: numeric(x, held.value), lambda value: setattr(held, "value", value)


def read_attribute_of_a_local():
    held = [Plain(None)]

    def function(x):
        for one in held:
            x = numeric(x, one.value)
        return x

    return function, lambda value: setattr(held[0], "value", value)


def read_attribute_by_name():
    held = Plain(None)
    return lambda x: numeric(x, getattr(held, "value")), lambda value: setattr(held, "value", value)  # noqa: B009


def read_slot():
    held = Slotted(None)
    return lambda x: numeric(x, held.value), lambda value: setattr(held, "value", value)


def read_namespace():
    held = types.SimpleNamespace(value=None)
    return lambda x: numeric(x, held.value), lambda value: setattr(held, "value", value)


def read_frozen():
    held = Frozen(None)

    def put(value):
        nonlocal held
        held = Frozen(value)

    return lambda x: numeric(x, held.value), put


def read_named_tuple():
    held = Config(None)

    def put(value):
        nonlocal held
        held = held._replace(value=value)

    return lambda x: numeric(x, held.value), put


def read_method():
    held = Method(None)
    return held.use, lambda value: setattr(held, "value", value)


def read_callable_object():
    class Layer(Plain):
        def __call__(self, x):
            return numeric(x, self.value)

    held = Layer(None)
    return held, lambda value: setattr(held, "value", value)


def read_property():
    held = Property(None)
    return lambda x: held.use(x), lambda value: setattr(held, "value", value)


def read_class():
    held = Klass()
    return lambda x: held.use(x), lambda value: setattr(Klass, "value", value)


def read_class_itself():
    return lambda x: numeric(x, Klass.value), lambda value: setattr(Klass, "value", value)


def read_module():
    return (
        lambda x: numeric(x, captured_elsewhere.VALUE),
        lambda value: setattr(captured_elsewhere, "VALUE", value),
    )


def read_item():
    held = {"value": None, "other": [1]}
    return lambda x: numeric(x, held["value"]), lambda value: held.update(value=value)


def read_list_item():
    held = [None, 2.0]
    return lambda x: numeric(x, held[0]) + held[1], lambda value: held.__setitem__(0, value)


def read_partial():
    def function(x, value):
        return numeric(x, value)

    held = functools.partial(function, value=None)
    return held, lambda value: held.keywords.update(value=value)


def read_decorated():
    held = None

    def put(value):
        nonlocal held
        held = value

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) + numeric(args[0], held)

        return wrapper

    @decorate
    @decorate
    def function(x):
        return x * 2.0

    return function, put


def read_nested():
    held = None

    def put(value):
        nonlocal held
        held = value

    def function(x):
        def inner(y):
            def innermost(z):
                return numeric(z, held)

            return innermost(y)

        return inner(x)

    return function, put


def read_comprehension():
    held = None

    def put(value):
        nonlocal held
        held = value

    return lambda x: sum([numeric(x, held) * k for k in range(1, 3)]), put


def read_generator():
    held = None

    def put(value):
        nonlocal held
        held = value

    def parts(x):
        for k in range(1, 3):
            yield numeric(x, held) * k

    return lambda x: sum(parts(x)), put


def read_recursion():
    held = None

    def put(value):
        nonlocal held
        held = value

    def function(x, depth=2):
        return function(x, depth - 1) * 0.5 if depth else numeric(x, held)

    return function, put


def read_callback():
    held = None

    def put(value):
        nonlocal held
        held = value

    table = {"f": lambda x: numeric(x, held)}
    return lambda x: next(map(table["f"], [x])), put


def read_made_by_a_factory():
    def make(value):
        cell = [value]
        return (lambda x: numeric(x, cell[0])), (lambda new: cell.__setitem__(0, new))

    layers = [make(2.0), make(None), make(3.0)]

    def function(x):
        for layer, _ in layers:
            x = layer(x)
        return x

    return function, layers[1][1]


def read_inherited():
    class Base(Plain):
        def use(self, x):
            return numeric(x, self.value)

    class Derived(Base):
        def use(self, x):
            return super().use(x) + 1.0

    held = Derived(None)
    return lambda x: held.use(x), lambda value: setattr(held, "value", value)


WAYS = {name[5:]: function for name, function in globals().items() if name.startswith("read_")}


EVERY_PAIR = ("global", "variable", "default", "attribute")  # others are tried with some
SOME = ("float", "int", "bool", "str", "longer list", "tuple", "dict", "nested", "object")


@pytest.mark.parametrize(
    ("way", "pair"),
    [(way, pair) for way in WAYS for pair in PAIRS if way in EVERY_PAIR or pair in SOME],
)
def test_a_change_is_seen(way, pair):
    (function, put), pair = WAYS[way](), PAIRS[pair]
    put(pair[0])
    step = Counted(function)
    for value in (*pair, *pair):
        put(value)
        for _ in range(2):
            step(ONES)
    assert step.traces <= 4


# ---- numbers become inputs ----------------------------------------------------------------------------------------

RATE = 0.1
STEP = 0


def test_a_learning_rate_in_a_global_is_traced_twice(monkeypatch):
    w = weft.ones(4)

    @weft.compile
    def step(x):
        w.sub_(RATE * x)
        return (w * RATE).sum()

    expected, before = np.ones(4, np.float32), COUNTERS.traces
    for number in range(100):
        monkeypatch.setitem(globals(), "RATE", 0.1 * 0.97**number)
        found = step(weft.ones(4))
        expected = expected - np.float32(RATE)
        np.testing.assert_array_equal(w.numpy(), expected)
        np.testing.assert_allclose(found.item(), (expected * np.float32(RATE)).sum(), rtol=1e-6)
    assert COUNTERS.traces - before == 2
    assert "the global RATE was 0.1 and is 0.097" in step.retraces[0]
    assert len(step.variants) == 1  # the first, with the number in it, is not needed any more


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x * n,
        lambda x, n: x + n,
        lambda x, n: x / n,
        lambda x, n: n / x,
        lambda x, n: n - x,
        lambda x, n: x // n,
        lambda x, n: x % n,
        lambda x, n: x * 0.5**n,
        lambda x, n: x * (1.0 - 0.999**n) / (1 + n),
        lambda x, n: x * (n % 7) - (-n) ** 2 + abs(n - 50) + round(n / 3) + (n >> 1) + divmod(n, 5)[1],
        lambda x, n: weft.where(x > n, x, n),
        lambda x, n: x.clamp(max=n),
        lambda x, n: weft.add(x, x, alpha=n),
        lambda x, n: x.lerp(x * 2.0, 1.0 / n) if x.dtype.kind == "f" else x,
        lambda x, n: weft.full((2,), n) + weft.tensor(n),
        lambda x, n: x + weft.arange(3) * n,
        lambda x, n: (x == n) | (x > n),
        lambda x, n: weft.maximum(x, weft.full_like(x, n)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"])
def test_an_int_that_is_only_a_number_is_traced_twice(function, dtype):
    step = Counted(function)
    x = weft.tensor([1, 2, 3]).to(getattr(weft, dtype))
    for number in range(1, 14):
        found = step(x, number)
        assert found.dtype is function(x, number).dtype
    assert step.traces <= 3


def test_an_int_step_counter_over_100_calls():
    step = Counted(lambda x, t: x * t + t)
    for number in range(100):
        step(ONES, number)
    assert step.traces == 2
    for number in range(100):
        step(x=ONES, t=number)  # by name: another structure of arguments
    assert step.traces <= 4


@pytest.mark.parametrize("number", [2**24 + 1, 2**53 + 1, 2**60 + 1, -(2**62) - 1, 2**31 - 1])
def test_large_ints_round_as_constants_do(number):
    step = Counted(lambda x, n: x * n)
    for dtype in (weft.float32, weft.float64, weft.int64):
        for value in (1, 2, number, number - 2):
            step(ONES.to(dtype), value)


def test_floats_round_as_constants_do():
    step = Counted(lambda x, s: (x * s, x + s)[1])
    for dtype in (weft.float32, weft.float64, weft.float16, weft.bfloat16):
        for value in (0.1, -0.0, 1e-45, 1e300, 65519.9, 65520.0, math.pi, math.inf, math.nan, 1.00390625, 3.3895e38):
            step(ONES.to(dtype), value)
    assert step.traces == 4


def test_an_int_that_does_not_fit_raises_as_without_compile():
    step = Counted(lambda x, n: x + n)
    x = weft.tensor([1, 2]).to(weft.int8)
    for number in (1, 2, 127):
        step(x, number)
    for _ in range(2):
        with pytest.raises(weft.DTypeError, match="the number 128"):
            step.step(x, 128)
    step(x, 5)


def test_division_by_zero_raises_as_without_compile():
    step = Counted(lambda x, n: x * (1.0 / n))
    for number in (1, 2, 4):
        step(ONES, number)
    with pytest.raises(ZeroDivisionError):
        step.step(ONES, 0)
    step(ONES, 8)
    assert step.traces <= 3


def test_a_number_that_decides_a_shape_retraces():
    step = Counted(lambda x, n: x.reshape(-1, n).sum(0) * n)
    x = weft.arange(12).float()
    for number in (2, 3, 4, 2, 3, 4):
        step(x, number)
    assert 3 <= step.traces <= 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x[: n + 1] * n,
        lambda x, n: weft.arange(0, n * 2, n).float() * 2.0,
        lambda x, n: weft.zeros(n, n + 1) + n,
        lambda x, n: x.expand(n, 12) * n,
        lambda x, n: weft.nn.functional.pad(x, (n, n - 1), value=float(n)),
        lambda x, n: weft.nn.functional.pad(x, (1, 1), value=n * 0.5),
        lambda x, n: x.roll(n) + x[n] + x[n:].sum() + x[-n],
        lambda x, n: x.unflatten(0, (n, 12 // n)),
        lambda x, n: weft.cat([x] * n),
        lambda x, n: weft.stack([x * k for k in range(n)]),
        lambda x, n: weft.linspace(0.0, 1.0 * n, n + 2),
        lambda x, n: x.repeat(n).cumsum(0),
        lambda x, n: x.topk(n)[0],
        lambda x, n: weft.nn.functional.one_hot(x.long() % n, n),
        lambda x, n: weft.eye(n) * n,
        lambda x, n: x**n,
        lambda x, n: weft.loop(lambda s, _: (s * n, s[: n - 1]), x, length=n)[1],
    ],
)
def test_numbers_that_decide_shapes(function):
    step = Counted(function)
    x = weft.arange(12).float()
    for number in (2, 3, 4, 2, 3, 4, 6):
        step(x, number)
        step(x, number)
    for node in weft.graph.node.toposort([(x * 2.0).node]):
        assert all(type(extent) is int for extent in node.shape)


def test_a_number_that_decides_a_shape_does_not_count_twice():
    held = Plain(0)

    def function(x, n):
        held.value += 1
        return weft.zeros(n + 1) + held.value

    step = weft.compile(function)
    for count, number in enumerate((2, 3, 4, 4, 5), 1):
        assert step(ONES, number).tolist() == [float(count)] * (number + 1)
        assert held.value == count


def test_a_number_that_decides_a_branch_has_a_trace_for_each():
    step = Counted(lambda x, n: x * n if n % 10 == 0 else x - n)
    for number in range(100):
        step(ONES, number)
    assert step.traces <= 4


def test_a_float_argument_may_decide_a_branch():
    step = Counted(lambda x, s: x * s if s > 0.5 else x - math.sqrt(4.0) * s)
    for number in (0.1, 0.2, 0.9, 0.3, 0.8):
        step(ONES, number)
    assert step.traces == 2


def test_math_functions_get_the_number_itself():
    step = Counted(lambda x, s: x * math.exp(s))
    for number in (0.1, 0.2, 0.3, 0.1, 0.2, 0.3):
        step(ONES, number)
    assert step.traces == 3


def test_what_takes_only_true_numbers_gets_them():
    step = Counted(lambda x, s, n: x * len(json.dumps([s, n])) + n)
    for s, n in ((0.5, 1), (0.25, 2), (0.125, 3), (0.5, 1)):
        step(ONES, s, n)
    assert json.dumps([0.5]) == "[0.5]"


def test_a_mistake_does_not_turn_inputs_into_constants():
    scale = 1.0

    def function(x, s, name):
        return x * s * scale + len(name)

    step = Counted(function)
    with pytest.raises(TypeError, match="len"):
        step.step(ONES, 0.5, 5)
    for number in range(10):
        scale = 1.0 + number
        step(ONES, 0.5 + number, "a")
    assert step.traces == 2


def test_numpy_gets_the_number_itself():
    def function(x, s, n):
        weights = np.ones(3, np.float32) * s
        assert weights.dtype == np.float32
        return x * weights + np.arange(3)[n] + np.full(3, s, np.float32)

    step = Counted(function)
    for s, n in ((0.5, 1), (0.25, 2), (0.125, 0), (0.5, 1)):
        step(ONES, s, n)


def test_uses_that_need_the_value():
    def function(x, n):
        table = {1: 10.0, 2: 20.0, 3: 30.0}
        text = f"{n}|{n:03d}|{n!r}|{n!s}|%d" % n
        items = [1.0, 2.0, 3.0, 4.0]
        return x * table[n] + len(text) + items[n] + sum(range(n)) + len("a" * n) + float(n) + int(n) + max(n, 2)

    step = Counted(function)
    for number in (1, 2, 3, 1, 2, 3):
        step(ONES, number)
    assert step.traces <= 4


def test_a_number_that_comes_back_is_computed_at_each_call():
    compiled = weft.compile(lambda x, n, s: (x * s, n + 1, {"rate": s * 0.5, "text": "a"}))
    for number in range(5):
        _, count, more = compiled(ONES, number, 0.5 + number)
        assert type(count) is int and count == number + 1
        assert type(more["rate"]) is float and more == {"rate": (0.5 + number) * 0.5, "text": "a"}


def test_a_captured_number_that_is_only_returned_or_passed_on():
    held, copy = Plain(1.0), Plain(0.0)

    def function(x):
        copy.value, old = held.value, copy.value
        return x * 2.0, held.value, old

    step, before = weft.compile(function), COUNTERS.traces
    last = 0.0
    for number in range(6):
        held.value = 1.0 + number
        assert step(ONES)[1:] == (1.0 + number, last)
        last = copy.value
        assert last == 1.0 + number and type(last) is float
    assert COUNTERS.traces - before <= 3


def test_numbers_in_lists_dicts_attributes_and_defaults_become_inputs():
    class Schedule:
        def __init__(self):
            self.rate, self.options, self.betas, self.pair = 0.5, {"momentum": 0.9}, [0.9, 0.99], (1.0, 2)

    schedule = Schedule()

    def function(x, decay=0.5, *, scale=1.0):
        x = x * schedule.rate + schedule.options["momentum"] * schedule.betas[1]
        return x * schedule.pair[0] + schedule.pair[1] + decay * scale

    step = Counted(function)
    for number in range(10):
        schedule.rate = 0.5 / (number + 1)
        schedule.options["momentum"] = 0.9 + number
        schedule.betas[1] = 0.99 - number
        schedule.pair = (1.0 + number, 2 + number)
        function.__defaults__ = (0.5 * number,)
        function.__kwdefaults__["scale"] = 1.0 + number
        step(ONES)
        assert type(schedule.rate) is float and type(schedule.pair[1]) is int
        assert type(function.__defaults__[0]) is float and type(function.__kwdefaults__["scale"]) is float
    assert step.traces == 2


def test_a_config_that_is_made_anew_is_the_same_config():
    config = Frozen(0.5)
    step = Counted(lambda x: x * config.value)
    for number in range(10):
        config = Frozen(0.5 + number)
        step(ONES)
    for _ in range(10):
        config = Frozen(config.value)
        step(ONES)
    assert step.traces == 2


def test_one_object_in_two_places():
    first = Plain(1.0)
    held = [first, first]
    step = Counted(lambda x: x * held[0].value + held[1].value)
    step(ONES)
    held[1] = Plain(2.0)
    step(ONES)
    held[0] = held[1]
    step(ONES)
    first.value = 5.0
    step(ONES)
    held[1].value = 7.0
    step(ONES)


def test_a_schedule_over_numbers_of_the_loop_with_gradients():
    w = weft.ones(3, requires_grad=True)
    rate = 0.5

    @weft.compile
    def step(x, t):
        w.grad = None
        (w * x * t).sum().backward()
        with weft.no_grad():
            w.sub_(w.grad * (rate / (1 + t)))
        return w.sum()

    theirs, before = np.ones(3, np.float32), COUNTERS.traces
    for number in range(1, 20):
        rate = 0.5 / number
        step(ONES, number)
        theirs = theirs - np.float32(number) * np.float32(rate / (1 + number))
        np.testing.assert_array_equal(w.numpy(), theirs)
    assert COUNTERS.traces - before == 2


def test_numbers_in_a_loop():
    rate = 0.5

    def function(x, n):
        last, _ = weft.loop(lambda state, now: (state * rate + now * n, None), weft.zeros(3), x)
        return last

    step = Counted(function)
    for number in range(1, 8):
        rate = 0.5 / number
        step(weft.ones(4, 3), number)
    assert step.traces == 2


def test_numbers_in_a_custom_kernel():
    @weft.kernel
    def scaled(i, x, s, out):
        out[i] = x[i] * s

    step = Counted(lambda x, s: scaled(x, s))
    for number in (0.5, 0.25, 0.75):
        step(ONES, number)
    assert step.traces == 1


# ---- what the function assigns ------------------------------------------------------------------------------------


def test_a_counter_that_the_function_advances():
    class Model:
        def __init__(self):
            self.calls, self.history = 0, {"last": 0}

        def __call__(self, x):
            self.calls += 1
            self.history["last"] = self.calls * 10
            return x * self.calls

    ours, theirs = Model(), Model()
    step, before = weft.compile(ours), COUNTERS.traces
    for _ in range(20):
        assert bits(step(ONES)) == bits(theirs(ONES))
        assert (ours.calls, ours.history) == (theirs.calls, theirs.history)
        assert type(ours.calls) is int
    assert COUNTERS.traces - before <= 3
    ours.calls = theirs.calls = 5
    for _ in range(3):
        assert bits(step(ONES)) == bits(theirs(ONES))


def test_a_counter_in_a_global_and_in_a_variable():
    count = 0

    def function(x):
        nonlocal count
        global STEP
        count += 1
        STEP = STEP + count
        return x * STEP + count

    step, before = weft.compile(function), COUNTERS.traces
    total = 0
    for number in range(1, 20):
        total += number
        assert step(ONES).tolist() == [float(total + number)] * 3
        assert (count, STEP) == (number, total)
    assert COUNTERS.traces - before <= 3


def test_a_counter_in_a_function_that_is_called():
    class Clock:
        ticks = 0

        def tick(self):
            self.ticks = self.ticks + 1
            return self.ticks

    clock = Clock()
    step, before = weft.compile(lambda x: x * clock.tick()), COUNTERS.traces
    for number in range(1, 20):
        assert step(ONES).tolist() == [float(number)] * 3
        assert clock.ticks == number
    assert COUNTERS.traces - before <= 4


def test_a_memory_report_assigns_nothing():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        return x * count

    step = weft.compile(function)
    for number in range(1, 6):
        step.memory(ONES)
        assert count == number - 1
        assert step(ONES).tolist() == [float(number)] * 3
        assert count == number


def test_two_values_that_change_places():
    class Pair:
        a, b = 1.0, 2.0

    held = Pair()

    def function(x):
        held.a, held.b = held.b, held.a
        return x * held.a - held.b

    step = weft.compile(function)
    for number in range(6):
        assert step(ONES).tolist() == [1.0 if number % 2 == 0 else -1.0] * 3


def test_a_list_that_the_function_reads_and_changes_is_right():
    held = []

    def function(x):
        held.append(1)
        return x * len(held)

    step = weft.compile(function)
    for number in range(1, 6):
        assert step(ONES).tolist() == [float(number)] * 3


def test_a_list_that_the_function_only_appends_to_is_left_alone():
    log = []

    def function(x):
        log.append("traced")
        return x * 2.0

    step = weft.compile(function)
    for _ in range(5):
        step(ONES)
        log.append("outside")
    assert step.retraces == [] and log.count("traced") == 1


def test_a_function_that_raises_leaves_numbers_as_they_were(monkeypatch):
    held = Plain(1.0)
    fail = False

    def function(x):
        y = x * held.value + RATE
        if fail:
            raise RuntimeError("stop")
        return y

    step = weft.compile(function)
    for number in range(3):
        held.value = 1.0 + number
        monkeypatch.setitem(globals(), "RATE", 0.5 + number)
        step(ONES)
    fail = True
    for error in (RuntimeError, RuntimeError):
        with pytest.raises(error, match="stop"):
            step(ONES)
        assert type(held.value) is float and held.value == 3.0
        assert type(RATE) is float and RATE == 2.5
    fail = False
    assert step(ONES).tolist() == [5.5] * 3


# ---- nothing else retraces ----------------------------------------------------------------------------------------

UNRELATED = 0


def test_what_is_not_read_does_not_retrace(monkeypatch):
    class Trainer:
        def __init__(self):
            self.rate, self.history, self.epoch, self.step = 0.5, [], 0, 0

        def forward(self, x):
            return x * self.rate

    trainer = Trainer()
    outside = []
    step, before = weft.compile(lambda x: trainer.forward(x).sum()), COUNTERS.traces
    for number in range(10):
        step(ONES)
        trainer.history.append(number)
        trainer.epoch += 1
        trainer.step += 1
        outside.append(number)
        monkeypatch.setitem(globals(), "UNRELATED", number)
    assert COUNTERS.traces - before == 1


def test_equal_values_in_new_objects_do_not_retrace():
    held, count, name, items = 0.5, 1000, "sin", [1.5, {"a": 2000}]
    step = Counted(lambda x: getattr(x, name)() * held + count + items[0] * items[1]["a"])
    step(ONES)
    held, count, name = float("0.5"), int("1000"), "".join(["s", "in"])
    items = [float("1.5"), {"a": int("2000")}]
    for _ in range(3):
        step(ONES)
    assert step.traces == 1


def test_a_number_that_nobody_uses_retraces_once():
    held = Plain(0.5)
    held.unused = 0

    def function(x, use=False):
        return x * (held.unused if use else held.value)

    step = Counted(function)
    for number in range(10):
        held.unused = number
        step(ONES)
    assert step.traces <= 2


def test_a_captured_tensor_that_is_replaced_is_seen():
    w = weft.ones(3)
    step = Counted(lambda x: x * w)
    step(ONES)
    w = weft.full((3,), 2.0)
    assert step(ONES).tolist() == [2.0] * 3
    step(ONES)
    assert step.traces == 2


def test_an_attribute_that_was_not_there_is_seen():
    held = Plain(1.0)
    step = Counted(lambda x: x * getattr(held, "gain", 2.0) + (5.0 if hasattr(held, "bias") else 0.0))
    step(ONES)
    step(ONES)
    held.gain = 3.0
    step(ONES)
    held.bias = None
    step(ONES)
    del held.gain
    step(ONES)
    assert step.traces == 4
    assert step.step.retraces[0] == "the variable held.gain was not there"


def test_keys_of_any_kind():
    held = {weft.float32: 1.0, (1, 2): 2.0, len: 3.0, ONES: 4.0}
    step = Counted(lambda x: x * held[weft.float32] + held[1, 2] + held[len] + sum(held.values()))
    for number in range(4):
        held[len] = 1.0 + number
        step(ONES)
    assert step.traces == 2


def test_a_function_and_an_object_that_are_replaced_are_seen():
    class Half:
        def __call__(self, x):
            return x * 0.5

    class Twice:
        def __call__(self, x):
            return x * 2.0

    layers, activation = [Half(), Half()], weft.relu

    def function(x):
        for layer in layers:
            x = layer(x)
        return activation(x)

    step = Counted(function)
    step(ONES)
    layers[1] = Twice()
    step(ONES)
    activation = weft.tanh
    step(ONES)
    layers.append(Twice())
    step(ONES)


def test_arrays_are_compared():
    table = np.array([1.0, 2.0, 3.0], np.float32)
    step = Counted(lambda x: x * table)
    step(ONES)
    step(ONES)
    table[1] = 5.0
    step(ONES)
    assert step.traces == 2


def test_one_number_can_stand_for_all_attributes():
    """What modules will do: whoever changes one of them changes their version."""

    class Module:
        _weft_version = 0

        def __init__(self):
            object.__setattr__(self, "rate", 0.5)

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            object.__setattr__(self, "_weft_version", self._weft_version + 1)

    module = Module()
    step = Counted(lambda x: x * module.rate)
    step(ONES)
    assert sum("rate" in guard.name() for guard in step.step.last.captured.guards) == 0
    module.rate = 0.75
    step(ONES)
    assert step.traces == 2


# ---- warnings -----------------------------------------------------------------------------------------------------


GENERATOR = np.random.default_rng(0)


def imported_rand():
    from random import random as draw

    return draw


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("random.random", lambda: random.random()),
        ("random.random", imported_rand()),
        ("random.uniform", lambda: random.uniform(0, 1)),
        ("random.randint", lambda: random.randint(0, 3)),
        ("random.choice", lambda: random.choice([1.0, 2.0])),
        ("numpy.random", lambda: np.random.rand()),  # noqa: NPY002
        ("numpy.random", lambda: GENERATOR.normal()),
        ("time.time", lambda: time.time()),
        ("time.perf_counter", lambda: time.perf_counter()),
        ("datetime.now", lambda: datetime.datetime.now().microsecond),
        ("os.urandom", lambda: len(os.urandom(2))),
        ("uuid.uuid4", lambda: uuid.uuid4().int % 7),
        ("secrets.randbelow", lambda: secrets.randbelow(7)),
    ],
)
def test_what_differs_at_each_call_warns_once(name, call):
    step = weft.compile(lambda x: x * float(call()))
    with pytest.warns(TraceWarning, match=name) as caught:
        step(ONES)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(ONES)
        step(weft.ones(4))  # traced again, said before


def test_our_own_clocks_and_generators_do_not_warn():
    step = weft.compile(lambda x: x * weft.rand(3) + weft.nn.functional.dropout(x, 0.5))
    step(ONES)
    assert step.retraces == []


def test_eight_retraces_are_told_once():
    step = weft.compile(lambda x: x * 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1, 9):
            step(weft.ones(number))
    with pytest.warns(TraceWarning, match=r"traced again 8 times.*\n  1\. argument 0 was float32\[1\]") as caught:
        step(weft.ones(9))
    assert len(caught) == 1 and caught[0].filename == __file__ and len(step.retraces) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(10, 20):
            step(weft.ones(number))


def test_a_container_too_large_to_compare_is_told():
    table = list(range(10_000))
    step = weft.compile(lambda x: x * table[1])
    with pytest.warns(TraceWarning, match="the variable table: a list of 10000 values, which are not compared"):
        step(ONES)
    array = np.ones(100_000, np.float32)
    step = weft.compile(lambda x: x * array[0])
    with pytest.warns(TraceWarning, match="the variable array: an array of 400000 bytes"):
        step(ONES)


# ---- other things that watch or run beside ------------------------------------------------------------------------


def test_under_a_profiler():
    rate = 0.5
    calls = []
    step = weft.compile(lambda x: x * rate)
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        step(ONES)
        watching = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert watching is not None and calls
    rate = 0.75
    profile = cProfile.Profile()
    with profile:
        assert step(ONES).tolist() == [0.75] * 3
        ONES + 1.0
    assert sys.getprofile() is None


def test_threads_that_trace_and_read_at_once():
    held = Plain(1.0)
    wrong = []

    def work(offset):
        step = weft.compile(lambda x: x * held.value + offset)
        for _ in range(30):
            found = step(ONES).tolist()[0]
            if found - offset not in (1.0, 2.0, 3.0):
                wrong.append(found)

    def change():
        for number in range(300):
            held.value = 1.0 + number % 3
            time.sleep(0)

    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(3)] + [threading.Thread(target=change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert type(held.value) is float


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_process_that_traces_can_trace():
    begun, end = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        end.wait(60)
        return x * 2.0

    thread = threading.Thread(target=weft.compile(slow), args=(ONES,))
    thread.start()
    begun.wait(60)
    child = os.fork()
    if child == 0:
        from weft.captures import TRACING

        os._exit(0 if TRACING.acquire(timeout=10) else 1)
    end.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_captured_is_given_back():
    class Model(Plain):
        def __call__(self, x):
            return x * self.value

    def run():
        model = Model(2.0)
        step = weft.compile(lambda x: model(x))
        step(ONES)
        return weakref.ref(model)

    gone = run()
    gc.collect()
    assert gone() is None


def test_objects_made_inside_do_not_count():
    class Batch:
        def __init__(self, x):
            self.x, self.scale = x, 2.0
            self.own = self

    def function(x):
        return Batch(x).x * Batch(x).scale

    step = Counted(function)
    for _ in range(4):
        step(ONES)
    assert step.traces == 1


def test_defaultdict_and_lambda_tables():
    table = defaultdict(float, {"a": 0.5})
    step = Counted(lambda x: x * table["a"])
    for number in range(5):
        table["a"] = 0.5 * number
        step(ONES)
    assert step.traces == 2


def test_functions_of_another_module(monkeypatch):
    step = Counted(lambda x: captured_elsewhere.scaled(x) + captured_elsewhere.sized(x))
    step(ONES)
    monkeypatch.setattr(captured_elsewhere, "SCALE", 3.0)
    step(ONES)
    captured_elsewhere.SIZES.append(7)
    step(ONES)
    captured_elsewhere.SIZES.pop()
    step(ONES)
