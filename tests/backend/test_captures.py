"""Python values that a compiled function reads, in every way: a change is seen."""

import dataclasses
import functools
import types
from collections import OrderedDict, deque
from typing import NamedTuple

import numpy as np
import pytest

from tests.backend import captured_elsewhere
from tests.backend.captures import ONES, Counted, Frozen, Plain

# ---- every way to read a value, every kind of value ---------------------------------------------------------------


class Config(NamedTuple):
    value: object


@dataclasses.dataclass(slots=True)
class Slotted:
    value: object


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
