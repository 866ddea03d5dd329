"""Results held by containers, attributes, generators, exceptions and threads."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import gc
import itertools
import operator
import queue
import threading
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import weft
from weft.cli.held import Case, check, expect
from weft.tensor import Tensor

# --- containers -------------------------------------------------------------------------------------------------------


@check
def list_comprehension(case: Case) -> None:
    expect([case.step() for _ in range(6)], 1, 2, 3, 4, 5, 6)


@check
def list_display(case: Case) -> None:
    expect([case.step(), case.step(), case.step()], 1, 2, 3)


@check
def list_appended(case: Case) -> None:
    held: list[Tensor] = []
    for _ in range(5):
        held.append(case.step())
    expect(held, 1, 2, 3, 4, 5)


@check
def list_extended(case: Case) -> None:
    held: list[Tensor] = []
    held.extend(case.step() for _ in range(5))
    held += [case.step()]
    expect(held, 1, 2, 3, 4, 5, 6)


@check
def list_with_elements_dropped(case: Case) -> None:
    held = [case.step() for _ in range(6)]
    del held[1::2]
    case.replay()
    expect(held, 1, 3, 5)


@check
def list_element_replaced(case: Case) -> None:
    held = [case.step() for _ in range(3)]
    held[1] = case.step()
    case.replay()
    expect(held, 1, 4, 3)


@check
def tuple_display(case: Case) -> None:
    held = case.step(), case.step()
    case.replay()
    expect(held, 1, 2)


@check
def nested_containers(case: Case) -> None:
    held = {"a": [case.step(), (case.step(),)], "b": {"c": case.step()}}
    case.replay()
    a, b = held["a"], held["b"]
    expect([a[0], a[1][0], b["c"]], 1, 2, 3)  # type: ignore[index]


@check
def dict_values(case: Case) -> None:
    held = {k: case.step() for k in range(5)}
    expect(held.values(), 1, 2, 3, 4, 5)


@check
def dict_value_replaced(case: Case) -> None:
    held = {"last": case.step(), "best": case.step()}
    for _ in range(4):
        held["last"] = case.step()
    expect([held["last"], held["best"]], 6, 2)


@check
def dict_keys(case: Case) -> None:
    held = {id(key): key for key in [case.step(), case.step()]}
    case.replay()
    expect(held.values(), 1, 2)


@check
def set_of_objects(case: Case) -> None:
    held = {operator.attrgetter("node")(case.step()) for _ in range(3)}  # graph nodes compare by identity
    case.replay()
    assert sorted(float(Tensor(node).numpy().reshape(-1)[0]) for node in held) == [1, 2, 3]


@check
def deque_of_fixed_length(case: Case) -> None:
    held = collections.deque((case.step() for _ in range(7)), maxlen=3)
    case.replay()
    expect(held, 5, 6, 7)


@check
def queue_of_results(case: Case) -> None:
    waiting: queue.Queue[Tensor] = queue.Queue()
    for _ in range(4):
        waiting.put(case.step())
    case.replay()
    expect([waiting.get() for _ in range(4)], 1, 2, 3, 4)


@check
def array_of_objects(case: Case) -> None:
    held = np.empty(3, object)
    for k in range(3):
        held[k] = case.step()
    case.replay()
    expect(held.tolist(), 1, 2, 3)


@check
def container_that_holds_itself(case: Case) -> None:
    held: list[Any] = [case.step()]
    held.append(held)
    case.replay()
    gc.collect()
    case.replay()
    expect(held[1][0], 1)


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
    held = sorted([case.step() for _ in range(4)], key=lambda one: -one.numpy().reshape(-1)[0])
    case.replay()
    expect(held, 4, 3, 2, 1)


@check
def shallow_copy_of_a_container(case: Case) -> None:
    held = copy.copy([case.step(), case.step()])
    case.replay()
    expect(held, 1, 2)


# --- objects ----------------------------------------------------------------------------------------------------------


@check
def attribute(case: Case) -> None:
    holder = types.SimpleNamespace()
    holder.held = case.step()
    case.replay()
    expect(holder.held, 1)


@check
def attribute_assigned_again(case: Case) -> None:
    holder = types.SimpleNamespace(best=case.step())
    for k in range(2, 6):
        holder.last = case.step()
        expect([holder.best, holder.last], 1, k)


@check
def slot_attribute(case: Case) -> None:
    class Holder:
        __slots__ = ("held",)

    holder = Holder()
    holder.held = case.step()  # type: ignore[attr-defined]
    case.replay()
    expect(holder.held, 1)  # type: ignore[attr-defined]


@check
def class_attribute(case: Case) -> None:
    class Holder:
        held = case.step()

    case.replay()
    expect(Holder.held, 1)


@check
def dataclass_field(case: Case) -> None:
    @dataclasses.dataclass
    class Holder:
        held: Any
        more: list = dataclasses.field(default_factory=lambda: [case.step()])

    holder = Holder(case.step())
    case.replay()
    expect([holder.held, *holder.more], 1, 2)


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
        def held(self) -> Tensor:
            return case.step()

    holder = Holder()
    expect(holder.held, 1)
    case.replay()
    expect(holder.held, 1)


@check
def cached_function(case: Case) -> None:
    cached = functools.lru_cache(lambda key: case.step())
    first, second = cached(1), cached(2)
    del first, second
    case.replay()
    expect([cached(1), cached(2)], 1, 2)


@check
def partial_function(case: Case) -> None:
    read = functools.partial(lambda held: held, case.step())
    case.replay()
    expect(read(), 1)


@check
def bound_method(case: Case) -> None:
    read = case.step().numpy
    case.replay()
    expect(read(), 1)


@check
def context_variable(case: Case) -> None:
    variable = contextvars.ContextVar[Any]("held")
    context = contextvars.copy_context()
    context.run(variable.set, case.step())
    case.replay()
    expect(context[variable], 1)


@check
def context_manager(case: Case) -> None:
    @contextlib.contextmanager
    def holding() -> Iterator[Tensor]:
        held = case.step()
        yield held
        expect(held, 1)

    with holding() as held:
        case.replay()
        expect(held, 1)


@check
def weak_reference_to_what_is_held(case: Case) -> None:
    held = case.step()
    reference = weakref.ref(held)
    case.replay()
    expect(reference(), 1)
    assert reference() is held


@check
def weak_reference_to_what_was_dropped(case: Case) -> None:
    reference = weakref.ref(case.step())
    assert reference() is None, "a result that nobody holds is still there"
    case.replay()


@check
def weak_value_dictionary(case: Case) -> None:
    held = case.step()
    known = weakref.WeakValueDictionary({"held": held, "dropped": case.step()})
    case.replay()
    assert list(known) == ["held"]
    expect(known["held"], 1)


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
            self.held = case.step()

        def __del__(self) -> None:
            saved.append(self.held)

    Holder()
    gc.collect()
    case.replay()
    expect(saved, 1)


# --- generators, exceptions, threads ----------------------------------------------------------------------------------


@check
def generator_that_holds(case: Case) -> None:
    def generate() -> Iterator[Tensor]:
        held = case.step()
        for _ in range(3):
            yield held

    generator = generate()
    expect(next(generator), 1)
    case.replay()
    expect(next(generator), 1)


@check
def generator_of_results(case: Case) -> None:
    held = list(case.step() for _ in range(5))  # noqa: C400
    expect(held, 1, 2, 3, 4, 5)


@check
def generator_with_results_on_its_stack(case: Case) -> None:
    def generate() -> Iterator[Any]:
        yield [case.step(), (yield "wait"), case.step()]

    generator = generate()
    assert next(generator) == "wait"
    case.replay()
    calls = case.calls
    sent = generator.send(None)  # type: ignore[attr-defined]
    expect([sent[0], sent[2]], 1, calls + 1)


@check
def generator_sent_a_result(case: Case) -> None:
    def generate() -> Iterator[Any]:
        held = yield None
        yield None
        yield held

    generator = generate()
    next(generator)
    generator.send(case.step())  # type: ignore[attr-defined]
    case.replay()
    expect(next(generator), 1)


@check
def generator_delegating(case: Case) -> None:
    def inner() -> Iterator[Any]:
        held = case.step()
        yield held
        yield held

    def outer() -> Iterator[Any]:
        held = case.step()
        yield from inner()
        yield held

    generator = outer()
    next(generator)
    case.replay()
    expect(generator, 2, 1)


@check
def iterators_side_by_side(case: Case) -> None:
    first, second = itertools.tee(case.step() for _ in range(3))
    expect(list(first), 1, 2, 3)
    case.replay()
    expect(list(second), 1, 2, 3)


@check
def coroutine(case: Case) -> None:
    async def work() -> list[Tensor]:
        held = case.step()
        await asyncio.sleep(0)
        case.replay()
        return [held]

    async def main() -> list[Tensor]:
        return list(itertools.chain(*await asyncio.gather(work(), work())))

    values = sorted(float(one.numpy().reshape(-1)[0]) for one in asyncio.run(main()))
    assert values == [1, 2], values


@check
def exception_argument(case: Case) -> None:
    error = ValueError("held", case.step())
    case.replay()
    expect(error.args[1], 1)


@check
def exception_traceback(case: Case) -> None:
    def fails() -> None:
        held = case.step()
        raise ValueError(held is None)

    try:
        fails()
    except ValueError as error:
        case.replay()
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        expect(error.__traceback__.tb_next.tb_frame.f_locals["held"], 1)


@check
def exception_while_results_are_on_the_stack(case: Case) -> None:
    def fails() -> Tensor:
        raise ValueError

    held = case.step()
    with contextlib.suppress(ValueError):
        expect([held, case.step(), fails()], 0)
    case.replay()
    expect(held, 1)


@check
def exception_inside_the_function(case: Case) -> None:
    held = case.step()
    with contextlib.suppress(Exception):
        case._step(weft.ones(case.size + 1))
    case.replay()
    expect(held, 1)


@check
def thread_that_holds(case: Case) -> None:
    found: list[float] = []
    ready, go = threading.Event(), threading.Event()

    def work(held: Tensor) -> None:
        ready.set()
        go.wait(30)
        found.append(float(held.numpy().reshape(-1)[0]))

    thread = threading.Thread(target=work, args=(case.step(),))
    thread.start()
    ready.wait(30)
    case.replay()
    go.set()
    thread.join(30)
    assert found == [1], found


@check
def threads_that_call(case: Case) -> None:
    with ThreadPoolExecutor(3) as pool:
        held = list(pool.map(lambda _: case._step(case.one), range(12)))
    values = sorted(float(one.numpy().reshape(-1)[0]) for one in held)
    assert values == list(range(1, 13)), values


@check
def thread_local_storage(case: Case) -> None:
    local = threading.local()
    local.held = case.step()
    case.replay()
    expect(local.held, 1)
