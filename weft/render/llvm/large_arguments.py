"""The functions of `kernels.math.large_arguments` in LLVM IR: of scalars, and of vectors, which go through the lanes
that need one."""

from __future__ import annotations

from collections.abc import Iterable

from weft.base.dtypes import DType
from weft.kernels.ir.language import Op
from weft.kernels.math import large_arguments
from weft.render.llvm import operations as ops
from weft.render.llvm.blocks import BlockWriter
from weft.render.llvm.operations import register_type, vector_type

Call = tuple[str, DType, int]  # an operation, its dtype and its lanes (0: a scalar)


def symbol(call: Call) -> str:
    """The name of the function that is called."""
    name, dtype, lanes = call
    return f"@{name}_{dtype.name}" + (f"_v{lanes}" if lanes else "")


def functions(calls: Iterable[Call]) -> tuple[list[str], set[str]]:
    """The definitions of all that is called, and the declarations that they need."""
    lines: list[str] = []
    declared: set[str] = set()
    calls = list(calls)
    for name, dtype in dict.fromkeys([(name, dtype) for name, dtype, _ in calls]):
        writer, scalar, kind = BlockWriter(), large_arguments.function(name, dtype), register_type(dtype)
        for parameter in scalar.parameters:
            writer.bind(parameter.name, f"%{parameter.name}", dtype, 0)
        for let in scalar.body:
            assert isinstance(let.value, Op), let
            texts = [writer.value(arg).text for arg in let.value.args]
            writer.bind(let.name, ops.operation(writer, let.value, texts, 0), let.value.dtype, 0)
        declared |= writer.declared
        given = ", ".join(f"{kind} %{parameter.name}" for parameter in scalar.parameters)
        lines += [f"define internal {kind} {symbol((name, dtype, 0))}({given}) noinline nounwind {{", "entry:"]
        lines += [*writer.scope.lines, f"  ret {kind} {writer.value(scalar.result).text}", "}"]
    for call in calls:
        if call[2]:
            lines += _lane_by_lane(call)
    return lines, declared


def _lane_by_lane(call: Call) -> list[str]:
    """A function of (which lanes need it, the value of the others, arguments), all vectors."""
    name, dtype, lanes = call
    kind = register_type(dtype)
    vector, test = vector_type(kind, lanes), vector_type("i1", lanes)
    names = [parameter.name for parameter in large_arguments.function(name, dtype).parameters]
    given = ", ".join([f"{test} %needed", f"{vector} %common", *[f"{vector} %{one}" for one in names]])
    picked = [f"  %{one}.lane = extractelement {vector} %{one}, i64 %lane" for one in names]
    passed = ", ".join(f"{kind} %{one}.lane" for one in names)
    return [
        f"define internal {vector} {symbol(call)}({given}) noinline nounwind {{",
        "entry:",
        "  br label %head",
        "head:",
        "  %lane = phi i64 [ 0, %entry ], [ %next, %end ]",
        f"  %all = phi {vector} [ %common, %entry ], [ %changed, %end ]",
        f"  %test = extractelement {test} %needed, i64 %lane",
        "  br i1 %test, label %call, label %end",
        "call:",
        *picked,
        f"  %value = call {kind} {symbol((name, dtype, 0))}({passed})",
        f"  %inserted = insertelement {vector} %all, {kind} %value, i64 %lane",
        "  br label %end",
        "end:",
        f"  %changed = phi {vector} [ %all, %head ], [ %inserted, %call ]",
        "  %next = add i64 %lane, 1",
        f"  %again = icmp ult i64 %next, {lanes}",
        "  br i1 %again, label %head, label %done",
        "done:",
        f"  ret {vector} %changed",
        "}",
    ]
