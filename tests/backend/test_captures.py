"""Python values that a compiled function reads, in every way: a change is seen."""

import cProfile
import dataclasses
import functools
import gc
import os
import sys
import threading
import time
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import NamedTuple

import numpy as np
import pytest

import weft
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
        end.wait(1)  # a fork waits for traces
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


def test_what_an_import_reads_is_not_captured(tmp_path, monkeypatch):
    """The finders of the import system run once: what they read is no input of the function."""

    class Finder:
        def __init__(self):
            self.known = dict.fromkeys(range(5000), 1)

        def find_spec(self, name, path=None, target=None):
            return self.known.get(name)

    (tmp_path / "imported_while_traced.py").write_text("FACTOR = 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    @weft.compile
    def step(x):
        import imported_while_traced

        return x * imported_while_traced.FACTOR

    assert step(weft.ones(2)).tolist() == [3.0, 3.0]  # without a TraceWarning, which would be an error
    finder.known.clear()
    before = weft.counters()["traces"]
    step(weft.ones(2))
    assert weft.counters()["traces"] == before
