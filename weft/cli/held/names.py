"""Results held by names: variables, arguments, closures, and the stacks of frames."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from weft.cli.held import Case, check, expect
from weft.tensor import Tensor


@check
def local_variable(case: Case) -> None:
    held = case.step()
    case.replay()
    expect(held, 1)


@check
def two_local_variables(case: Case) -> None:
    first = case.step()
    second = case.step()
    case.replay()
    expect([first, second], 1, 2)


@check
def variable_assigned_again(case: Case) -> None:
    for k in range(1, 6):
        held = case.step()
        expect(held, k)


@check
def previous_and_present(case: Case) -> None:
    previous = case.step()
    for k in range(2, 6):
        present = case.step()
        expect([previous, present], k - 1, k)
        previous = present


@check
def swapped_variables(case: Case) -> None:
    a, b = case.step(), case.step()
    a, b = b, a
    case.replay()
    expect([a, b], 2, 1)


@check
def variable_deleted_after_alias(case: Case) -> None:
    held = case.step()
    alias = held
    del held
    case.replay()
    expect(alias, 1)


@check
def variable_kept_while_new_one_is_made(case: Case) -> None:
    held = case.step()
    held = (held, case.step())  # type: ignore[assignment]
    case.replay()
    expect(held, 1, 2)


@check
def argument_of_a_call(case: Case) -> None:
    def later(held: Tensor) -> None:
        case.replay()
        expect(held, 1)

    later(case.step())


@check
def argument_passed_on(case: Case) -> None:
    def outer(held: Tensor) -> None:
        inner(held)
        expect(held, 1)

    def inner(held: Tensor) -> None:
        case.replay()
        expect(held, 1)

    outer(case.step())


@check
def argument_deleted_by_the_callee(case: Case) -> None:
    def callee(given: Tensor) -> None:
        del given
        case.replay()

    held = case.step()
    callee(held)
    expect(held, 1)


@check
def argument_assigned_by_the_callee(case: Case) -> None:
    def callee(given: Tensor) -> Tensor:
        given = case.step()
        case.replay()
        return given

    held = case.step()
    expect([callee(held), held], 2, 1)


@check
def arguments_evaluated_in_order(case: Case) -> None:
    def callee(*given: Tensor) -> None:
        case.replay()
        expect(given, 1, 2, 3)

    callee(case.step(), case.step(), case.step())


@check
def variable_and_new_result_as_arguments(case: Case) -> None:
    held = case.step()

    def callee(a: Tensor, b: Tensor, c: Tensor) -> None:
        expect([a, b, c], 1, 2, 1)

    callee(held, case.step(), held)
    expect(held, 1)


@check
def variable_assigned_inside_an_expression(case: Case) -> None:
    held = case.step()
    both = [held, (held := case.step()), held]
    case.replay()
    expect(both, 1, 2, 2)


@check
def variable_assigned_while_it_is_on_the_stack(case: Case) -> None:
    held = case.step()

    def replace() -> Tensor:
        nonlocal held
        held = case.step()
        return case.step()

    both = (held, replace(), held)
    case.replay()
    expect(both, 1, 3, 2)


@check
def keyword_argument(case: Case) -> None:
    def callee(*, held: Tensor, **others: Tensor) -> None:
        case.replay()
        expect([held, others["more"]], 1, 2)

    callee(held=case.step(), more=case.step())


@check
def default_argument(case: Case) -> None:
    def callee(held: Tensor = case.step()) -> Tensor:  # noqa: B008
        case.replay()
        return held

    expect(callee(), 1)
    expect(callee(), 1)


@check
def closure(case: Case) -> None:
    held = case.step()
    read = lambda: held  # noqa: E731
    case.replay()
    expect(read(), 1)


@check
def closure_after_the_frame(case: Case) -> None:
    def make() -> Callable[[], Tensor]:
        held = case.step()
        return lambda: held

    read = make()
    case.replay()
    expect(read(), 1)


@check
def nonlocal_variable(case: Case) -> None:
    held = None

    def assign() -> None:
        nonlocal held
        held = case.step()

    assign()
    case.replay()
    assert held is not None
    expect(held, 1)


@check
def global_variable(case: Case) -> None:
    globals()["_held"] = case.step()
    try:
        case.replay()
        expect(_held, 1)  # type: ignore[name-defined]  # noqa: F821
    finally:
        del globals()["_held"]


@check
def recursion(case: Case) -> None:
    def descend(depth: int) -> list[Tensor]:
        held = case.step()
        return [held, *(descend(depth - 1) if depth else [])]

    expect(descend(5), 1, 2, 3, 4, 5, 6)


@check
def recursion_read_on_the_way_back(case: Case) -> None:
    def descend(depth: int) -> None:
        held = case.step()
        if depth:
            descend(depth - 1)
        expect(held, 6 - depth)

    descend(5)


@check
def returned_through_frames(case: Case) -> None:
    def inner() -> Tensor:
        return case.step()

    def outer() -> Tensor:
        return inner()

    held = outer()
    case.replay()
    expect(held, 1)


@check
def returned_from_finally(case: Case) -> None:
    def returning() -> Tensor:
        held = case.step()
        try:
            return held
        finally:
            held = case.step()
            case.replay()

    expect(returning(), 1)


@check
def operands_on_the_stack(case: Case) -> None:
    expect(case.step() + case.step() * case.step(), 1 + 2 * 3)


@check
def chosen_by_a_condition(case: Case) -> None:
    held = case.step() if case.size else None
    other = None if held is None else held
    del held
    case.replay()
    assert other is not None
    expect(other, 1)


@check
def pattern_matching(case: Case) -> None:
    match case.several():
        case (first, {"double": double, "rest": [third, _]}):
            case.replay()
            expect([first, double, third], 1, 2, 3)
        case _:
            raise AssertionError("the results have another structure")


@check
def starred_assignment(case: Case) -> None:
    first, *rest = [case.step() for _ in range(4)]
    case.replay()
    expect([first, *rest], 1, 2, 3, 4)


@check
def frame_object(case: Case) -> None:
    def frame() -> types.FrameType:
        held = case.step()
        assert held is not None
        return sys._getframe()

    kept = frame()
    case.replay()
    expect(kept.f_locals["held"], 1)


@check
def evaluated_text(case: Case) -> None:
    names: dict[str, Any] = {"case": case}
    exec("held = case.step()", names)
    case.replay()
    expect(names["held"], 1)
