"""Results retained by names: variables, arguments, closures, and the stacks of frames."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from weft.cli.retained import Case, check, expect
from weft.core.tensor import Tensor


@check
def local_variable(case: Case) -> None:
    retained = case.step()
    case.replay()
    expect(retained, 1)


@check
def two_local_variables(case: Case) -> None:
    first = case.step()
    second = case.step()
    case.replay()
    expect([first, second], 1, 2)


@check
def variable_assigned_again(case: Case) -> None:
    for k in range(1, 6):
        retained = case.step()
        expect(retained, k)


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
    retained = case.step()
    alias = retained
    del retained
    case.replay()
    expect(alias, 1)


@check
def variable_kept_while_new_one_is_made(case: Case) -> None:
    retained = case.step()
    retained = (retained, case.step())  # type: ignore[assignment]
    case.replay()
    expect(retained, 1, 2)


@check
def argument_of_a_call(case: Case) -> None:
    def later(retained: Tensor) -> None:
        case.replay()
        expect(retained, 1)

    later(case.step())


@check
def argument_passed_on(case: Case) -> None:
    def outer(retained: Tensor) -> None:
        inner(retained)
        expect(retained, 1)

    def inner(retained: Tensor) -> None:
        case.replay()
        expect(retained, 1)

    outer(case.step())


@check
def argument_deleted_by_the_callee(case: Case) -> None:
    def callee(given: Tensor) -> None:
        del given
        case.replay()

    retained = case.step()
    callee(retained)
    expect(retained, 1)


@check
def argument_assigned_by_the_callee(case: Case) -> None:
    def callee(given: Tensor) -> Tensor:
        given = case.step()
        case.replay()
        return given

    retained = case.step()
    expect([callee(retained), retained], 2, 1)


@check
def arguments_evaluated_in_order(case: Case) -> None:
    def callee(*given: Tensor) -> None:
        case.replay()
        expect(given, 1, 2, 3)

    callee(case.step(), case.step(), case.step())


@check
def variable_and_new_result_as_arguments(case: Case) -> None:
    retained = case.step()

    def callee(a: Tensor, b: Tensor, c: Tensor) -> None:
        expect([a, b, c], 1, 2, 1)

    callee(retained, case.step(), retained)
    expect(retained, 1)


@check
def variable_assigned_inside_an_expression(case: Case) -> None:
    retained = case.step()
    both = [retained, (retained := case.step()), retained]
    case.replay()
    expect(both, 1, 2, 2)


@check
def variable_assigned_while_it_is_on_the_stack(case: Case) -> None:
    retained = case.step()

    def replace() -> Tensor:
        nonlocal retained
        retained = case.step()
        return case.step()

    both = (retained, replace(), retained)
    case.replay()
    expect(both, 1, 3, 2)


@check
def keyword_argument(case: Case) -> None:
    def callee(*, retained: Tensor, **others: Tensor) -> None:
        case.replay()
        expect([retained, others["more"]], 1, 2)

    callee(retained=case.step(), more=case.step())


@check
def default_argument(case: Case) -> None:
    def callee(retained: Tensor = case.step()) -> Tensor:  # noqa: B008
        case.replay()
        return retained

    expect(callee(), 1)
    expect(callee(), 1)


@check
def closure(case: Case) -> None:
    retained = case.step()
    read = lambda: retained  # noqa: E731
    case.replay()
    expect(read(), 1)


@check
def closure_after_the_frame(case: Case) -> None:
    def make() -> Callable[[], Tensor]:
        retained = case.step()
        return lambda: retained

    read = make()
    case.replay()
    expect(read(), 1)


@check
def nonlocal_variable(case: Case) -> None:
    retained = None

    def assign() -> None:
        nonlocal retained
        retained = case.step()

    assign()
    case.replay()
    assert retained is not None
    expect(retained, 1)


@check
def global_variable(case: Case) -> None:
    globals()["_retained"] = case.step()
    try:
        case.replay()
        expect(_retained, 1)  # type: ignore[name-defined]  # noqa: F821
    finally:
        del globals()["_retained"]


@check
def recursion(case: Case) -> None:
    def descend(depth: int) -> list[Tensor]:
        retained = case.step()
        return [retained, *(descend(depth - 1) if depth else [])]

    expect(descend(5), 1, 2, 3, 4, 5, 6)


@check
def recursion_read_on_the_way_back(case: Case) -> None:
    def descend(depth: int) -> None:
        retained = case.step()
        if depth:
            descend(depth - 1)
        expect(retained, 6 - depth)

    descend(5)


@check
def returned_through_frames(case: Case) -> None:
    def inner() -> Tensor:
        return case.step()

    def outer() -> Tensor:
        return inner()

    retained = outer()
    case.replay()
    expect(retained, 1)


@check
def returned_from_finally(case: Case) -> None:
    def returning() -> Tensor:
        retained = case.step()
        try:
            return retained
        finally:
            retained = case.step()
            case.replay()

    expect(returning(), 1)


@check
def operands_on_the_stack(case: Case) -> None:
    expect(case.step() + case.step() * case.step(), 1 + 2 * 3)


@check
def chosen_by_a_condition(case: Case) -> None:
    retained = case.step() if case.size else None
    other = None if retained is None else retained
    del retained
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
        retained = case.step()
        assert retained is not None
        return sys._getframe()

    kept = frame()
    case.replay()
    expect(kept.f_locals["retained"], 1)


@check
def evaluated_text(case: Case) -> None:
    names: dict[str, Any] = {"case": case}
    exec("retained = case.step()", names)
    case.replay()
    expect(names["retained"], 1)
