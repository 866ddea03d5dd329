"""Results retained by containers and by attributes of objects."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import gc
import operator
import queue
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.cli.retained import Case, check, expect
from weft.core.tensor import Tensor

# --- containers -------------------------------------------------------------------------------------------------------


@check
def list_comprehension(case: Case) -> None:
    expect([case.step() for _ in range(6)], 1, 2, 3, 4, 5, 6)


@check
def list_display(case: Case) -> None:
    expect([case.step(), case.step(), case.step()], 1, 2, 3)


@check
def list_appended(case: Case) -> None:
    retained: list[Tensor] = []
    for _ in range(5):
        retained.append(case.step())
    expect(retained, 1, 2, 3, 4, 5)


@check
def list_extended(case: Case) -> None:
    retained: list[Tensor] = []
    retained.extend(case.step() for _ in range(5))
    retained += [case.step()]
    expect(retained, 1, 2, 3, 4, 5, 6)


@check
def list_with_elements_dropped(case: Case) -> None:
    retained = [case.step() for _ in range(6)]
    del retained[1::2]
    case.replay()
    expect(retained, 1, 3, 5)


@check
def list_element_replaced(case: Case) -> None:
    retained = [case.step() for _ in range(3)]
    retained[1] = case.step()
    case.replay()
    expect(retained, 1, 4, 3)


@check
def tuple_display(case: Case) -> None:
    retained = case.step(), case.step()
    case.replay()
    expect(retained, 1, 2)


@check
def nested_containers(case: Case) -> None:
    retained = {"a": [case.step(), (case.step(),)], "b": {"c": case.step()}}
    case.replay()
    a, b = retained["a"], retained["b"]
    expect([a[0], a[1][0], b["c"]], 1, 2, 3)  # type: ignore[index]


@check
def dict_values(case: Case) -> None:
    retained = {k: case.step() for k in range(5)}
    expect(retained.values(), 1, 2, 3, 4, 5)


@check
def dict_value_replaced(case: Case) -> None:
    retained = {"last": case.step(), "best": case.step()}
    for _ in range(4):
        retained["last"] = case.step()
    expect([retained["last"], retained["best"]], 6, 2)


@check
def dict_keys(case: Case) -> None:
    retained = {id(key): key for key in [case.step(), case.step()]}
    case.replay()
    expect(retained.values(), 1, 2)


@check
def set_of_objects(case: Case) -> None:
    retained = {operator.attrgetter("node")(case.step()) for _ in range(3)}  # graph nodes compare by identity
    case.replay()
    assert sorted(float(Tensor(node).numpy().reshape(-1)[0]) for node in retained) == [1, 2, 3]


@check
def deque_of_fixed_length(case: Case) -> None:
    retained = collections.deque((case.step() for _ in range(7)), maxlen=3)
    case.replay()
    expect(retained, 5, 6, 7)


@check
def queue_of_results(case: Case) -> None:
    waiting: queue.Queue[Tensor] = queue.Queue()
    for _ in range(4):
        waiting.put(case.step())
    case.replay()
    expect([waiting.get() for _ in range(4)], 1, 2, 3, 4)


@check
def array_of_objects(case: Case) -> None:
    retained = np.empty(3, object)
    for k in range(3):
        retained[k] = case.step()
    case.replay()
    expect(retained.tolist(), 1, 2, 3)


@check
def container_that_holds_itself(case: Case) -> None:
    retained: list[Any] = [case.step()]
    retained.append(retained)
    case.replay()
    gc.collect()
    case.replay()
    expect(retained[1][0], 1)


@check
def mapped(case: Case) -> None:
    expect(list(map(lambda _: case.step(), range(4))), 1, 2, 3, 4)  # noqa: C417


@check
def zipped(case: Case) -> None:
    pairs = list(zip((case.step() for _ in range(3)), (case.step() for _ in range(3)), strict=True))
    expect([one for pair in pairs for one in pair], 1, 2, 3, 4, 5, 6)


@check
def accumulated(case: Case) -> None:
    total = functools.reduce(operator.add, [case.step() for _ in range(4)])
    case.replay()
    expect(total, 10)


@check
def sorted_by_value(case: Case) -> None:
    retained = sorted([case.step() for _ in range(4)], key=lambda one: -one.numpy().reshape(-1)[0])
    case.replay()
    expect(retained, 4, 3, 2, 1)


@check
def shallow_copy_of_a_container(case: Case) -> None:
    retained = copy.copy([case.step(), case.step()])
    case.replay()
    expect(retained, 1, 2)


# --- objects ----------------------------------------------------------------------------------------------------------


@check
def attribute(case: Case) -> None:
    holder = types.SimpleNamespace()
    holder.retained = case.step()
    case.replay()
    expect(holder.retained, 1)


@check
def attribute_assigned_again(case: Case) -> None:
    holder = types.SimpleNamespace(best=case.step())
    for k in range(2, 6):
        holder.last = case.step()
        expect([holder.best, holder.last], 1, k)


@check
def slot_attribute(case: Case) -> None:
    class Holder:
        __slots__ = ("retained",)

    holder = Holder()
    holder.retained = case.step()  # type: ignore[attr-defined]
    case.replay()
    expect(holder.retained, 1)  # type: ignore[attr-defined]


@check
def class_attribute(case: Case) -> None:
    class Holder:
        retained = case.step()

    case.replay()
    expect(Holder.retained, 1)


@check
def dataclass_field(case: Case) -> None:
    @dataclasses.dataclass
    class Holder:
        retained: Any
        more: list = dataclasses.field(default_factory=lambda: [case.step()])

    holder = Holder(case.step())
    case.replay()
    expect([holder.retained, *holder.more], 1, 2)


@check
def named_tuple(case: Case) -> None:
    Pair = collections.namedtuple("Pair", "a b")
    pair = Pair(case.step(), case.step())
    case.replay()
    expect(pair, 1, 2)


@check
def property_that_caches(case: Case) -> None:
    class Holder:
        @functools.cached_property
        def retained(self) -> Tensor:
            return case.step()

    holder = Holder()
    expect(holder.retained, 1)
    case.replay()
    expect(holder.retained, 1)


@check
def cached_function(case: Case) -> None:
    cached = functools.lru_cache(lambda key: case.step())
    first, second = cached(1), cached(2)
    del first, second
    case.replay()
    expect([cached(1), cached(2)], 1, 2)


@check
def partial_function(case: Case) -> None:
    read = functools.partial(lambda retained: retained, case.step())
    case.replay()
    expect(read(), 1)


@check
def bound_method(case: Case) -> None:
    read = case.step().numpy
    case.replay()
    expect(read(), 1)


@check
def context_variable(case: Case) -> None:
    variable = contextvars.ContextVar[Any]("retained")
    context = contextvars.copy_context()
    context.run(variable.set, case.step())
    case.replay()
    expect(context[variable], 1)


@check
def context_manager(case: Case) -> None:
    @contextlib.contextmanager
    def holding() -> Iterator[Tensor]:
        retained = case.step()
        yield retained
        expect(retained, 1)

    with holding() as retained:
        case.replay()
        expect(retained, 1)


@check
def weak_reference_to_what_is_retained(case: Case) -> None:
    retained = case.step()
    reference = weakref.ref(retained)
    case.replay()
    expect(reference(), 1)
    assert reference() is retained


@check
def weak_reference_to_what_was_dropped(case: Case) -> None:
    reference = weakref.ref(case.step())
    assert reference() is None, "a result without references is still there"
    case.replay()


@check
def weak_value_dictionary(case: Case) -> None:
    retained = case.step()
    known = weakref.WeakValueDictionary({"retained": retained, "dropped": case.step()})
    case.replay()
    assert list(known) == ["retained"]
    expect(known["retained"], 1)


@check
def finalizer_of_what_was_dropped(case: Case) -> None:
    called: list[int] = []
    weakref.finalize(case.step(), called.append, 1)
    case.replay()
    assert called == [1]


@check
def resurrected_by_a_finalizer(case: Case) -> None:
    saved: list[Tensor] = []

    class Holder:
        def __init__(self) -> None:
            self.retained = case.step()

        def __del__(self) -> None:
            saved.append(self.retained)

    Holder()
    gc.collect()
    case.replay()
    expect(saved, 1)
