"""Results retained by generators, coroutines, exceptions and threads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import weft
from weft.cli.retained import Case, check, expect
from weft.core.tensor import Tensor


@check
def generator_that_holds(case: Case) -> None:
    def generate() -> Iterator[Tensor]:
        retained = case.step()
        for _ in range(3):
            yield retained

    generator = generate()
    expect(next(generator), 1)
    case.replay()
    expect(next(generator), 1)


@check
def generator_of_results(case: Case) -> None:
    retained = list(case.step() for _ in range(5))  # noqa: C400
    expect(retained, 1, 2, 3, 4, 5)


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
        retained = yield None
        yield None
        yield retained

    generator = generate()
    next(generator)
    generator.send(case.step())  # type: ignore[attr-defined]
    case.replay()
    expect(next(generator), 1)


@check
def generator_delegating(case: Case) -> None:
    def inner() -> Iterator[Any]:
        retained = case.step()
        yield retained
        yield retained

    def outer() -> Iterator[Any]:
        retained = case.step()
        yield from inner()
        yield retained

    generator = outer()
    next(generator)
    case.replay()
    expect(generator, 2, 1)


@check
def interleaved_iterators(case: Case) -> None:
    first, second = itertools.tee(case.step() for _ in range(3))
    expect(list(first), 1, 2, 3)
    case.replay()
    expect(list(second), 1, 2, 3)


@check
def coroutine(case: Case) -> None:
    async def work() -> list[Tensor]:
        retained = case.step()
        await asyncio.sleep(0)
        case.replay()
        return [retained]

    async def main() -> list[Tensor]:
        return list(itertools.chain(*await asyncio.gather(work(), work())))

    values = sorted(float(one.numpy().reshape(-1)[0]) for one in asyncio.run(main()))
    assert values == [1, 2], values


@check
def exception_argument(case: Case) -> None:
    error = ValueError("retained", case.step())
    case.replay()
    expect(error.args[1], 1)


@check
def exception_traceback(case: Case) -> None:
    def fails() -> None:
        retained = case.step()
        raise ValueError(retained is None)

    try:
        fails()
    except ValueError as error:
        case.replay()
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        expect(error.__traceback__.tb_next.tb_frame.f_locals["retained"], 1)


@check
def exception_while_results_are_on_the_stack(case: Case) -> None:
    def fails() -> Tensor:
        raise ValueError

    retained = case.step()
    with contextlib.suppress(ValueError):
        expect([retained, case.step(), fails()], 0)
    case.replay()
    expect(retained, 1)


@check
def exception_inside_the_function(case: Case) -> None:
    retained = case.step()
    with contextlib.suppress(Exception):
        case._step(weft.ones(case.size + 1))
    case.replay()
    expect(retained, 1)


@check
def thread_that_holds(case: Case) -> None:
    found: list[float] = []
    ready, go = threading.Event(), threading.Event()

    def work(retained: Tensor) -> None:
        ready.set()
        go.wait(30)
        found.append(float(retained.numpy().reshape(-1)[0]))

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
        retained = list(pool.map(lambda _: case._step(case.one), range(12)))
    values = sorted(float(one.numpy().reshape(-1)[0]) for one in retained)
    assert values == list(range(1, 13)), values


@check
def thread_local_storage(case: Case) -> None:
    local = threading.local()
    local.retained = case.step()
    case.replay()
    expect(local.retained, 1)
