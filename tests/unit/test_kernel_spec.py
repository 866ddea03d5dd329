"""The spec of nests and kernels: each rule is broken on purpose, and the error names what is wrong."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.base.dtypes import bfloat16, bool_, float16, float32, int32, int64, uint32
from weft.compiler.lowering import expressions
from weft.errors import GraphError
from weft.kernels.cpu import schedule
from weft.kernels.ir.index import MAX_EXTENT, ZERO, Axis, Index, axis_index
from weft.kernels.ir.kernel_spec import check_kernel
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Accumulator,
    AsyncCopy,
    AwaitCopies,
    Barrier,
    BufferParam,
    Copy,
    Geometry,
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
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    Update,
    Var,
)
from weft.kernels.ir.nest import ColumnSum, Nest, Span, copy_nest
from weft.kernels.ir.spec import check_nest

pytestmark = pytest.mark.unit

ONE, TRUE = Literal(1.0, float32), Literal(True, bool_)


# --- nests -----------------------------------------------------------------------------------------------------------

ROW, R, G = Axis("row", 4), Axis("r", 8, "reduce"), Axis("g0", 5, "value")
AT = ROW * 8 + R
X = Load("x", AT, float32)
PICKED = Load("table", axis_index(G), float32)
MAXIMUM, TOTAL = Accumulator("acc0", "max", float32), Accumulator("acc1", "sum", float32)
MAX_VAR, TOTAL_VAR = Var("acc0", float32), Var("acc1", float32)
NUMBER = Load("index", axis_index(ROW), int64)
BUFFERS = (
    BufferParam("x", float32, False),
    BufferParam("sums", float32, True),
    BufferParam("out", float32, True),
    BufferParam("index", int64, False),
    BufferParam("table", float32, False),
)
SIZES = {"x": 32, "sums": 4, "out": 32, "index": 4, "table": 5}
POINT = Store("sums", axis_index(ROW), TOTAL_VAR)
INNER = Store("out", AT, (X - MAX_VAR) * Var("s0", float32) + PICKED)
CHECK = Store("sums", axis_index(ROW), X)


def nest(**changes: Any) -> Nest:
    """Rows reduced in two stages, with a row of a table that is picked by a loaded index."""
    legal = Nest(
        "rows", ROW, "inner", None, (Span(R, 0, 8),), (((MAXIMUM, X),), ((TOTAL, X - MAX_VAR),)), (POINT,), (INNER,),
        (), BUFFERS, (ScalarParam("s0", float32),), {"g0": NUMBER.max(0).min(4)},
    )  # fmt: skip
    return replace(legal, **changes)


def columns(**changes: Any) -> Nest:
    """The sum over the points of each column."""
    sums = replace(ColumnSum("sums", axis_index(R), 8, Accumulator("", "sum", float32), X), **changes)
    scalars = (ScalarParam("s0", float32), ScalarParam("points", int64), ScalarParam("per_chunk", int64))
    return nest(stages=(), point_stores=(), inner_stores=(), columns=(sums,), definitions={}, scalars=scalars)


def stored(value: Any, at: Index = AT, mask: Any = None) -> Nest:
    return nest(inner_stores=(Store("out", at, value, mask),))


def operation(name: str, args: tuple, dtype: Any) -> Nest:
    return stored(Op("cast", (Op(name, args, dtype),), float32))


HALF, WORD = Literal(1.0, float16), Literal(1, uint32)
WRONG_NESTS = {
    # names
    "a scalar twice": (nest(scalars=(ScalarParam("s0", float32), ScalarParam("s0", int64))), "'s0' defined twice"),
    "a buffer twice": (nest(buffers=(*BUFFERS, BUFFERS[0])), "'x' defined twice"),
    "an axis like a buffer": (nest(points=Axis("x", 4)), "'x' defined twice"),
    "an axis twice": (nest(inner=(Span(ROW, 0, 4),)), "'row' defined twice"),
    "a definition like an axis": (nest(definitions={"g0": NUMBER, "row": NUMBER}), "'row' defined twice"),
    "an accumulator twice": (nest(stages=(((MAXIMUM, X),), ((MAXIMUM, X),))), "'acc0' defined twice"),
    "an unknown scalar": (stored(X + Var("s1", float32)), "variable 's1' of float32; expected a name that is defined"),
    "a scalar of another dtype": (stored(Var("s0", int64).cast(float32)), "'s0' of int64, float32"),
    "an unknown axis": (stored(X, at=axis_index(Axis("k", 4))), "the axis 'k'; expected an axis of a loop"),
    "an index without definition": (nest(definitions={}), "the axis 'g0'; expected an axis of a loop"),
    "a definition by itself": (
        nest(definitions={"g0": Load("index", axis_index(Axis("g0", 4, "value")), int64)}),
        r"\['g0'\] defined by themselves",
    ),
    "a definition of floats": (nest(definitions={"g0": X}), "'g0' of float32; expected an integer"),
    "an inner axis at a point": (nest(point_stores=(Store("sums", ZERO, X),)), "the axis 'r'"),
    "a reduction before its stage": (nest(stages=(((MAXIMUM, X - TOTAL_VAR),), ((TOTAL, X),))), "variable 'acc1'"),
    "a reduction in a check": (nest(checks=(replace(CHECK, value=MAX_VAR),)), "variable 'acc0'"),
    # loops
    "an unknown vector axis": (nest(vector_axis="rows"), "vector axis 'rows'"),
    "an empty axis": (nest(points=Axis("row", 0)), "'row' of extent 0; expected a positive extent"),
    "a loop over what is loaded": (nest(inner=(Span(Axis("r", 8, "value"), 0, 8),)), "over 'r', which is loaded"),
    "a loop that does not run": (nest(inner=(Span(R, 8, 8),)), "a loop from 8 to 8"),
    "a loop beyond its axis": (nest(inner=(Span(R, 0, 9),)), "a loop to 9 over"),
    "a loop to a float": (nest(inner=(Span(R, 0, ONE),)), "a loop bound of float32"),
    "stages without a loop": (nest(inner=()), "expected inner axes for them"),
    "nothing stored": (nest(point_stores=(), inner_stores=()), "no stores"),
    # memory
    "a store to what is read": (nest(inner_stores=(Store("x", AT, X),)), "a store to 'x'; expected a buffer that is"),
    "a store to nothing": (nest(inner_stores=(Store("y", AT, X),)), "a store to 'y'"),
    "a store of another dtype": (stored(X.cast(int32)), "int32 stored to 'out', float32"),
    "a load from nothing": (stored(Load("y", AT, float32)), "a load from 'y'"),
    "a load of another dtype": (stored(Load("index", ZERO, float32)), "float32 from 'index', int64"),
    "a load under a number": (stored(Load("x", AT, float32, Literal(1, int64))), "a condition of int64"),
    "a store under a number": (stored(X, mask=ONE), "a condition of float32"),
    "a load behind the end": (stored(Load("x", AT + 1, float32)), "element 32 of 'x' .*row = 3.*; expected one of 32"),
    "a load before the start": (stored(Load("x", AT - 1, float32)), "element -1 of 'x'"),
    "a store behind the end": (stored(X, at=ROW * 9 + R), "element 34 of 'out'"),
    "a load behind the end of a table": (stored(Load("table", axis_index(Axis("g0", 6, "value")), float32)), "element"),
    "a load behind the end in reverse": (stored(Load("x", 32 - AT, float32)), "element 32 of 'x'"),
    "a mask that lets the end through": (
        stored(Load("x", AT + 1, float32, IndexValue(AT + 1, int64) <= 32)),
        "element 32 of 'x'",
    ),
    "scratch that is not written": (nest(scratch=("x",)), "scratch memory 'x'"),
    # operations
    "an unknown operation": (operation("power", (ONE, ONE), float32), "the operation 'power'"),
    "an operation of GPUs": (operation("exchange", (ONE, ONE), float32), "operations of GPUs in kernels for GPUs"),
    "a function of a device": (operation("tanh", (ONE,), float32), "operations of GPUs in kernels for GPUs"),
    "too few operands": (operation("add", (ONE,), float32), "'add' with 1 operands; expected 2"),
    "a square root of integers": (operation("sqrt", (WORD,), uint32), "'sqrt' of uint32"),
    "a sum of two dtypes": (operation("add", (ONE, HALF), float32), r"'add' of \(float32, float16\) as float32"),
    "a comparison as a number": (operation("lt", (ONE, ONE), float32), "'lt' of .* as float32"),
    "a selection by a number": (operation("select", (ONE, ONE, ONE), float32), "'select' of"),
    "bits of another size": (operation("bitcast", (HALF,), float32), r"'bitcast' of \(float16\) as float32"),
    "a high part of integers": (operation("mulhi", (Literal(1, int32),) * 2, int32), "'mulhi' of"),
    "a large argument": (operation("sin_large", (ONE, ONE, ONE), float32), "'sin_large' of"),
    "an index as a float": (stored(IndexValue(AT, float32)), "an index as float32"),
    # reductions
    "an unknown reduction": (nest(stages=(((Accumulator("acc0", "mean", float32), X),),)), "a reduction by 'mean'"),
    "a reduction of another dtype": (
        nest(stages=(((Accumulator("acc0", "sum", int64), X),),)),
        "float32 for 'acc0', int64",
    ),
    "a compensated maximum": (
        nest(stages=(((replace(MAXIMUM, compensated=True), X),),)),
        "a compensated max of float32",
    ),
    "columns of what is read": (columns(buffer="x"), "column sums in 'x'"),
    "columns of another dtype": (columns(value=X.cast(int32)), "column sums of int32"),
    "columns beside their width": (columns(index=R + 1), "element 8 of 'sums'"),
    "columns without chunks": (replace(columns(), scalars=(ScalarParam("s0", float32),)), "'per_chunk', 'points'"),
}


def test_legal_nests():
    check_nest(nest(), SIZES)
    check_nest(nest(checks=(CHECK,), scratch=("out",)), SIZES)
    check_nest(columns(), SIZES)
    check_nest(copy_nest(float32), {})
    inside = Load("x", AT + 1, float32, IndexValue(AT + 1, int64) < 32)  # the mask keeps it inside
    check_nest(stored(inside), SIZES)
    check_nest(stored(Load("x", AT % 32, float32)), SIZES)  # no range proves it, and no corner is outside
    batch, col = Axis("batch", 3), Axis("col", 8)
    epilogue = replace(nest(), lane=col, inner=(), stages=(), inner_stores=())
    at = batch * 32 + ROW * 8 + col
    check_nest(replace(epilogue, point_stores=(Store("out", at, ONE),)), SIZES | {"out": 96}, (batch, ROW, col))


@pytest.mark.parametrize("rule", WRONG_NESTS)
def test_a_nest_that_breaks_a_rule(rule):
    wrong, words = WRONG_NESTS[rule]
    with pytest.raises(GraphError, match=words) as caught:
        check_nest(wrong, SIZES)
    assert "nest rows" in str(caught.value)


def test_definitions_never_change():
    definitions = {"g0": NUMBER}
    kernel = Kernel("one", BUFFERS, (), LAUNCH_RANGES, (), definitions)
    for made in (nest(definitions=definitions), kernel):
        with pytest.raises(TypeError):
            made.definitions["g1"] = NUMBER  # type: ignore[index]
        with pytest.raises(FrozenInstanceError):
            made.definitions = {}  # type: ignore[misc]
    definitions["g1"] = NUMBER
    assert set(nest(definitions=kernel.definitions).definitions) == set(kernel.definitions) == {"g0"}


# --- kernels ---------------------------------------------------------------------------------------------------------

P, J = Axis("i", MAX_EXTENT), Axis("j", 4)
BEGIN, END = Var("begin", int64), Var("end", int64)
OUT = BufferParam("out", float32, True)
HERE = Store("out", axis_index(P), ONE)


def on_cpu(*body: Stmt, top: tuple[Stmt, ...] = ()) -> Kernel:
    loop = Loop(P, BEGIN, END, "task", body)
    return Kernel("kernel", (BUFFERS[0], OUT), (ScalarParam("s0", float32),), LAUNCH_RANGES, (*top, loop))


LANES = 32
LANE, WHOLE = Axis("lane", LANES), Loop(Axis("lane", LANES), 0, LANES, "lanes", (), LANES)
SHARED, OWN = Local("shared", float32, 64), Local("own", float32, 4, "lane")
WORDS, SHARED_16 = Local("words", uint32, 4, "lane"), Local("shared16", bfloat16, 64)
FIRST = IndexValue(axis_index(LANE), int64).eq(0)


def on_gpu(*body: Stmt, definitions: dict | None = None) -> Kernel:
    """One workgroup for each point, in whose lanes `body` runs."""
    lanes = Loop(LANE, 0, LANES, "lanes", body, LANES)
    arrays = (SHARED, SHARED_16, OWN, WORDS)
    task = Loop(P, BEGIN, END, "task", (lanes,))
    geometry = Geometry(LANES, LANES)
    return Kernel("kernel", (BUFFERS[0], OUT), (), LAUNCH_RANGES, (*arrays, task), definitions or {}, geometry)


def over(axis: Axis, start: Any, stop: Any, kind: str, *body: Stmt, width: int = 1) -> Loop:
    return Loop(axis, start, stop, kind, body, width)


SUM = Accumulator("sum", "sum", float32)
COPY = Copy("own", ZERO, "x", ZERO, 4, float32)
ASYNC = AsyncCopy("shared", ZERO, "x", ZERO, 4, 4)
TILE = TileLoad("words", ZERO, "shared16", ZERO, 16, 1, "a")
PRODUCT = TileProduct("own", ZERO, "words", ZERO, "words", ZERO, bfloat16)
UNIFORM = IndexValue(axis_index(P), int64) < 3
VARYING = {"thread": IndexValue(axis_index(LANE), int64)}
OF_THREAD = IndexValue(axis_index(Axis("thread", LANES, "value")), int64)

WRONG_KERNELS = {
    # names
    "a value before it is named": (on_cpu(Store("out", axis_index(P), Var("v", float32)), Let("v", ONE)), "'v'"),
    "a value after its block": (
        on_cpu(over(J, 0, 4, "serial", Let("v", ONE)), Store("out", axis_index(P), Var("v", float32))),
        "variable 'v' of float32; expected a name that is defined before",
    ),
    "a value like a scalar": (on_cpu(Let("s0", ONE)), "'s0' defined twice"),
    "a value like a buffer": (on_cpu(Let("x", ONE)), "'x' defined twice"),
    "a value like a loop": (on_cpu(Let("i", ONE)), "'i' defined twice"),
    "a loop in itself": (on_cpu(over(P, 0, 4, "serial", HERE)), "'i' defined twice"),
    "an axis after its loop": (
        on_cpu(over(J, 0, 4, "serial", HERE), Store("out", axis_index(J), ONE)),
        "the axis 'j'; expected an axis of a loop",
    ),
    "an accumulator in its reduction": (
        on_cpu(Reduction((SUM,), (Update("sum", Var("sum", float32)),))),
        "variable 'sum'",
    ),
    "an accumulator twice": (on_cpu(Reduction((SUM,), (Reduction((SUM,), ()),))), "'sum' defined twice"),
    "an array twice": (on_cpu(Local("a", float32, 4), Local("a", float32, 4)), "'a' defined twice"),
    # statements
    "a loop of GPUs": (on_cpu(over(J, 0, 4, "lanes", HERE)), "a loop of kind 'lanes'"),
    "a loop of CPUs": (on_gpu(over(J, 0, 4, "vector", HERE)), "a loop of kind 'vector'"),
    "a loop of no width": (on_cpu(over(J, 0, 4, "vector", HERE, width=0)), "of width 0"),
    "a loop that ends before it begins": (on_cpu(over(J, 3, 2, "serial", HERE)), "a loop from 3 to 2"),
    "a loop beyond its axis": (on_cpu(over(J, 0, 5, "serial", HERE)), "a loop from 0 to 5"),
    "an unrolled loop to a variable": (on_gpu(over(J, 0, BEGIN, "unrolled", HERE)), "integers as its bounds"),
    "a loop over other lanes": (
        replace(on_gpu(), body=(over(J, 0, 4, "lanes", HERE, width=16),)),
        "a loop over 16 lanes; expected 32, as launched",
    ),
    "lanes in lanes": (
        replace(on_gpu(), body=(over(P, BEGIN, END, "grid", over(LANE, 0, 9, "lanes", width=LANES), width=LANES),)),
        "the loop over 'lane' in lanes, inside of another one",
    ),
    "a condition that is a number": (on_cpu(If(ONE, (HERE,))), "a condition of float32"),
    "an update outside": (on_cpu(Update("sum", ONE)), "an update of 'sum'"),
    "an update of another dtype": (
        on_cpu(Reduction((SUM,), (Update("sum", Literal(1, int64)),))),
        "int64 for 'sum', float32",
    ),
    "a factor for a maximum": (
        on_cpu(Reduction((MAXIMUM,), (Update("acc0", ONE, ONE),))),
        "a factor for a max; expected factors for sums",
    ),
    "a store to what is read": (on_cpu(Store("x", axis_index(P), ONE)), "a store to 'x'"),
    "an empty array": (on_cpu(Local("a", float32, 0)), "the array 'a' of 0 elements"),
    "a lane's array on a CPU": (on_cpu(Local("a", float32, 4, "lane")), "'a' of scope 'lane'"),
    "a definition by itself": (
        on_gpu(HERE, definitions={"thread": OF_THREAD}),
        r"\['thread'\] defined by themselves",
    ),
    "behind the end of an array": (
        on_cpu(Local("a", float32, 4), over(J, 0, 4, "serial", Store("a", J + 1, ONE))),
        "element 4 of 'a'",
    ),
    # GPUs
    **{
        f"{type(stmt).__name__} on a CPU": (
            on_cpu(stmt),
            f"a {type(stmt).__name__} in a kernel",
        )
        for stmt in (Barrier(), COPY, ASYNC, AwaitCopies(), TILE, PRODUCT)
    },
    "pending copies": (on_gpu(AwaitCopies(-1)), "-1 pending copies"),
    "a copy of three": (on_gpu(replace(COPY, count=3)), "a copy of 3 elements"),
    "a copy of two dtypes": (on_gpu(replace(COPY, target="words", dtype=uint32)), "a copy of 'x' to 'words'"),
    "a copy to what is read": (on_gpu(replace(COPY, target="x", source="own")), "a copy to or from 'x'"),
    "a copy from nothing": (on_gpu(replace(COPY, source="y")), "a copy to or from 'y'"),
    "an asynchronous copy of three": (on_gpu(replace(ASYNC, count=3)), "a copy of 3 elements"),
    "an asynchronous copy to a buffer": (on_gpu(replace(ASYNC, target="out")), "an asynchronous copy to 'out'"),
    "a tile of floats": (on_gpu(replace(TILE, target="own")), "a tile loaded to 'own'"),
    "products of words": (on_gpu(replace(PRODUCT, sums="words")), "products added to 'words'"),
    "a rounding of integers": (
        on_gpu(Let("v", Op("narrow", (WORD,), bfloat16))),
        r"'narrow' of \(uint32\) as bfloat16",
    ),
    # barriers
    "a barrier for some lanes": (on_gpu(If(FIRST, (Barrier(),))), "under a condition that differs between lanes"),
    "a barrier for some lanes, by name": (
        on_gpu(Let("first", FIRST), If(Var("first", bool_), (Barrier(),))),
        "under a condition that differs between lanes",
    ),
    "a barrier for some lanes, by definition": (
        on_gpu(If(OF_THREAD < 3, (Barrier(),)), definitions=VARYING),
        "under a condition that differs between lanes",
    ),
    "a barrier by a lane's own memory": (
        on_gpu(If(Load("own", ZERO, float32) < 3, (Barrier(),))),
        "under a condition that differs between lanes",
    ),
    "a barrier where lanes iterate": (
        replace(on_gpu(), body=(over(LANE, 0, END, "lanes", Barrier(), width=LANES),)),
        "a barrier in the loop over 'lane'; expected one that all lanes reach",
    ),
    "a barrier in a grid": (
        replace(on_gpu(), body=(over(P, BEGIN, END, "grid", Barrier(), width=LANES),)),
        "a barrier in the loop over 'i'",
    ),
    "a barrier in a loop of each lane": (
        on_gpu(over(J, 0, IndexValue(axis_index(LANE), int64), "serial", Barrier())),
        "whose bounds differ between lanes",
    ),
}


def test_legal_kernels():
    at = Load("x", axis_index(P), float32)
    total = Reduction((SUM,), (over(J, 0, 4, "vector", Update("sum", at, ONE), width=4),))
    check_kernel(on_cpu(total, Store("out", axis_index(P), Var("sum", float32), UNIFORM)))
    check_kernel(on_cpu(over(J, 0, 4, "serial", Let("v", ONE)), Let("v", at), HERE))  # the name of an earlier one
    check_kernel(on_cpu(over(J, 0, 0, "serial", HERE)))  # as users write them
    array = Local("a", float32, 4)
    check_kernel(on_cpu(array, over(J, 0, 4, "serial", If(UNIFORM, (Store("a", J + 1, ONE),)))))  # not all j come there
    check_kernel(on_gpu(COPY, ASYNC, AwaitCopies(), Barrier(), TILE, PRODUCT, If(UNIFORM, (Barrier(),))))
    check_kernel(on_gpu(Let("v", Load("shared", ZERO, float32) < 3), If(Var("v", bool_), (Barrier(),))))
    check_kernel(on_gpu(Let("v", Op("exchange", (ONE, Literal(1, int32)), float32)), definitions=VARYING))


@pytest.mark.parametrize("rule", WRONG_KERNELS)
def test_a_kernel_that_breaks_a_rule(rule):
    wrong, words = WRONG_KERNELS[rule]
    with pytest.raises(GraphError, match=words) as caught:
        check_kernel(wrong)
    assert "kernel kernel" in str(caught.value)


# --- the compiler ----------------------------------------------------------------------------------------------------


def test_the_compiler_checks_what_lowering_gives(monkeypatch):
    """An address that is wrong by one element is found before anything runs."""
    monkeypatch.setattr("weft.compiler.realize._plans", type("Empty", (dict,), {"move_to_end": None})())
    x = weft.tensor(np.ones((3, 5), np.float32))
    address = expressions.address
    monkeypatch.setattr(expressions, "address", lambda at, strides, offset: address(at, strides, offset) + 1)
    with pytest.raises(GraphError, match=r"kernel spec, nest map_.*: given element 15 of 'b.'.*; expected one of 15"):
        weft.eval(x + 1)


def test_the_compiler_checks_what_schedules_give(monkeypatch):
    """A schedule that forgets to name a reduction is found before it is rendered."""
    monkeypatch.setattr("weft.compiler.realize._plans", type("Empty", (dict,), {"move_to_end": None})())
    monkeypatch.setattr(schedule, "Reduction", lambda accumulators, body: Reduction((), ()))
    with pytest.raises(GraphError, match=r"kernel spec, kernel rows_.*: given the variable 'acc0'"):
        weft.eval(weft.tensor(np.ones((3, 500), np.float32)).sum(1))
