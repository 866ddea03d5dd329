"""The normal form: where values are named, what is computed once, what must not move."""

from __future__ import annotations

import pytest

from tests.unit.kernel_harness import FLOAT, INT, begin, binary, end, load, op
from weft.base import dtypes
from weft.errors import GraphError
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import (
    Accumulator,
    BufferParam,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Reduction,
    ScalarParam,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.normalize import normalise

i, j = Axis("i", 8), Axis("j", 16)
at_i, at_j = axis_index(i), axis_index(j)
at_ij = at_i * 16 + at_j
BUFFERS = (BufferParam("x", FLOAT, False), BufferParam("y", FLOAT, False), BufferParam("out", FLOAT, True))


def normal(*body, definitions=None, buffers=BUFFERS):
    kernel = Kernel("k", buffers, (ScalarParam("scale", FLOAT),), ("begin", "end"), body, definitions or {})
    return normalise(kernel).body


def over_i(*body):
    return Loop(i, begin, end, "task", body)


def over_j(*body):
    return Loop(j, 0, 16, "vector", body, 8)


def show(stmts, depth=0):
    """The statements as short text, nested by indentation."""
    lines = []
    for stmt in stmts:
        pad = "  " * depth
        match stmt:
            case Let(name, value):
                lines.append(f"{pad}{name} = {_text(value)}")
            case Store(buffer, index, value, mask):
                where = "" if mask is None else f" if {_text(mask)}"
                lines.append(f"{pad}{buffer}[{index}] = {_text(value)}{where}")
            case Update(name, value):
                lines.append(f"{pad}{name} <- {_text(value)}")
            case Loop():
                lines += [f"{pad}for {stmt.axis.name}:", *show(stmt.body, depth + 1)]
            case Reduction():
                lines += [f"{pad}reduction:", *show(stmt.body, depth + 1)]
            case If():
                lines += [f"{pad}if {_text(stmt.condition)}:", *show(stmt.body, depth + 1)]
    return lines


def _text(value):
    match value:
        case Literal(number):
            return repr(number)
        case Var(name):
            return name
        case Op(name, args):
            return f"{name}({', '.join(_text(arg) for arg in args)})"
        case Load(buffer, index, _, mask):
            return f"{buffer}[{index}]" + ("" if mask is None else f" if {_text(mask)}")
        case IndexValue(index):
            return f"index({index})"
    return repr(value)


def test_equal_expressions_are_computed_once():
    value = op("add", op("mul", load("x", at_i), load("x", at_i)), op("mul", load("x", at_i), load("x", at_i)))
    assert show(normal(over_i(Store("out", at_i, value)))) == [
        "for i:", "  t0 = x[i]", "  t1 = mul(t0, t0)", "  t2 = add(t1, t1)", "  out[i] = t2",
    ]  # fmt: skip


def test_values_move_to_the_outermost_block_that_defines_them():
    row = op("mul", load("y", at_i), op("neg", Var("scale", FLOAT)))
    body = over_i(over_j(Store("out", at_ij, op("add", load("x", at_ij), row))))
    assert show(normal(body)) == [
        "t2 = neg(scale)", "for i:", "  t1 = y[i]", "  t3 = mul(t1, t2)", "  for j:",
        "    t0 = x[16*i + j]", "    t4 = add(t0, t3)", "    out[16*i + j] = t4",
    ]  # fmt: skip


def test_a_finished_accumulator_is_used_after_its_reduction():
    reduction = Reduction((Accumulator("a", "sum", FLOAT),), (over_j(Update("a", load("x", at_ij))),))
    inverse = op("div", Literal(1.0, FLOAT), Var("a", FLOAT))
    body = over_i(reduction, over_j(Store("out", at_ij, op("mul", load("x", at_ij), inverse))))
    assert show(normal(body)) == [
        "for i:", "  reduction:", "    for j:", "      t0 = x[16*i + j]", "      a <- t0",
        "  t2 = div(1.0, a)", "  for j:", "    t1 = x[16*i + j]", "    t3 = mul(t1, t2)", "    out[16*i + j] = t3",
    ]  # fmt: skip


def test_arithmetic_leaves_an_if_but_loads_do_not():
    test = binary("lt", begin, Literal(3, INT))
    value = op("add", load("x", at_i), op("neg", Var("scale", FLOAT)))
    assert show(normal(over_i(If(test, (over_j(Store("out", at_ij, value)),))))) == [
        "t0 = lt(begin, 3)", "t2 = neg(scale)", "for i:", "  if t0:", "    t1 = x[i]", "    t3 = add(t1, t2)",
        "    for j:", "      out[16*i + j] = t3",
    ]  # fmt: skip


def test_loads_of_written_memory_stay_and_are_read_again_after_a_store():
    here = load("out", at_i)
    once = Store("out", at_i, op("add", here, here))
    assert show(normal(over_i(once, once))) == [
        "for i:", "  t0 = out[i]", "  t1 = add(t0, t0)", "  out[i] = t1",
        "  t2 = out[i]", "  t3 = add(t2, t2)", "  out[i] = t3",
    ]  # fmt: skip


def test_a_let_keeps_a_value_over_a_store():
    body = (
        Let("old", load("out", at_i)),
        Store("out", at_i, Literal(0.0, FLOAT)),
        Store("out", at_i, Var("old", FLOAT)),
    )
    assert show(normal(over_i(*body))) == ["for i:", "  t0 = out[i]", "  out[i] = 0.0", "  out[i] = t0"]


def test_written_memory_is_not_read_outside_the_loop_that_uses_it():
    body = over_i(over_j(Store("out", at_j, op("add", load("out", at_i), load("x", at_i)))))
    assert show(normal(body)) == [
        "for i:", "  t1 = x[i]", "  for j:", "    t0 = out[i]", "    t2 = add(t0, t1)", "    out[j] = t2",
    ]  # fmt: skip


def test_local_arrays_are_written_memory():
    body = (
        Local("tmp", FLOAT, 16),
        over_j(Store("tmp", at_j, load("x", at_j))),
        over_i(over_j(Store("out", at_ij, load("tmp", at_i)))),
    )
    assert show(normal(*body))[3:] == ["for i:", "  for j:", "    t1 = tmp[i]", "    out[16*i + j] = t1"]


def test_value_axes_become_lets_of_their_name():
    row = Axis("row", 5, "value")
    index = Load("index", at_i, INT)
    body = over_i(over_j(Store("out", at_ij, load("x", row * 16 + at_j))))
    buffers = (*BUFFERS, BufferParam("index", INT, False))
    assert show(normal(body, definitions={"row": index}, buffers=buffers)) == [
        "for i:", "  row = index[i]", "  for j:", "    t1 = x[j + 16*row]", "    out[16*i + j] = t1",
    ]  # fmt: skip


def test_a_value_axis_whose_value_has_a_name_already():
    row = Axis("row", 5, "value")
    index = Load("index", at_i, INT)
    buffers = (*BUFFERS, BufferParam("index", INT, False), BufferParam("seen", INT, True))
    body = over_i(Store("seen", at_i, index), Store("out", at_i, load("x", axis_index(row))))
    assert show(normal(body, definitions={"row": index}, buffers=buffers)) == [
        "for i:", "  t0 = index[i]", "  seen[i] = t0", "  row = t0", "  t1 = x[row]", "  out[i] = t1",
    ]  # fmt: skip


def test_masks_and_bounds_are_normalised():
    number = IndexValue(at_i, INT)
    mask = binary("lt", number, Literal(4, INT))
    stop = op("add", begin, Literal(0, INT))
    loop = Loop(i, 0, stop, "serial", (Store("out", at_i, Load("x", at_i, FLOAT, mask), mask),))
    (found,) = normal(loop)
    assert isinstance(found.stop, Var) and found.stop.name == "begin"
    assert show(found.body) == ["t0 = index(i)", "t1 = lt(t0, 4)", "t2 = x[i] if t1", "out[i] = t2 if t1"]


def test_constant_masks_vanish():
    true, false = Literal(True, dtypes.bool_), Literal(False, dtypes.bool_)
    both = Op("and", (true, true), dtypes.bool_)
    body = over_i(Store("out", at_i, Load("x", at_i, FLOAT, both)), Store("out", at_i, Load("x", at_i, FLOAT, false)))
    assert show(normal(body)) == ["for i:", "  t0 = x[i]", "  out[i] = t0", "  out[i] = 0.0"]
    assert show(normal(over_i(Store("out", at_i, load("x", at_i), false)))) == ["for i:"]


def test_folding_keeps_float_semantics():
    zero, minus = Literal(0.0, FLOAT), Literal(-0.0, FLOAT)
    body = over_i(
        Store("out", at_i, op("add", load("x", at_i), zero)), Store("out", at_i, op("mul", load("x", at_i), minus))
    )
    assert show(normal(body))[2:] == ["  t1 = add(t0, 0.0)", "  out[i] = t1", "  t2 = mul(t0, -0.0)", "  out[i] = t2"]
    third = op("add", Literal(0.1, FLOAT), Literal(0.2, FLOAT))
    (store,) = normal(Store("out", ix.ZERO, third))
    assert store.value.value == pytest.approx(0.30000001192092896, abs=1e-17)


def test_zero_and_minus_zero_are_not_one_value():
    a, b = (op("mul", load("x", at_i), Literal(zero, FLOAT)) for zero in (0.0, -0.0))
    assert len(show(normal(over_i(Store("out", at_i, a), Store("out", at_i, b))))) == 6


def test_deep_chains_do_not_reach_the_stack_limit():
    value = load("x", at_i)
    for _ in range(5000):
        value = op("neg", value)
    assert len(show(normal(over_i(Store("out", at_i, value))))) == 5003


def test_shared_graphs_take_linear_time():
    value = load("x", at_i)
    for _ in range(200):
        value = op("add", value, value)
    assert len(show(normal(over_i(Store("out", at_i, value))))) == 203


def test_a_name_outside_its_block_is_refused():
    with pytest.raises(GraphError, match="use of 'j' outside the block that defines it"):
        normal(over_j(), Store("out", at_j, Literal(0.0, FLOAT)))
