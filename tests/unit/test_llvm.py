"""Kernels written by hand in the kernel language, rendered to LLVM IR, compiled and run against NumPy."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from tests.unit.kernel_harness import FLOAT, INT, begin, binary, call, end, kernel_of, load, op, run
from weft import dtypes
from weft.errors import GraphError
from weft.kernels import index as ix
from weft.kernels import math as km
from weft.kernels.index import Axis, axis_index
from weft.kernels.language import (
    Accumulator,
    BufferParam,
    Fold,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    ScalarParam,
    Store,
    Update,
    Var,
)
from weft.kernels.normal import normalise
from weft.render.llvm import render, symbol_of

rng = np.random.default_rng(0)


def at(index, *terms):
    """A linear index: pairs of (axis, factor), plus a constant."""
    for axis, factor in terms:
        index = ix.add(index, ix.scale(axis_index(axis), factor))
    return index


def position(*terms, const=0):
    return at(ix.const(const), *terms)


@pytest.mark.parametrize("n", [1, 5, 15, 16, 17, 32, 100])
@pytest.mark.parametrize("static", [True, False])
def test_elementwise_with_tail(n, static):
    i = Axis("i", n)
    value = op("add", op("mul", load("x", axis_index(i)), load("y", axis_index(i))), Literal(1.5, FLOAT))
    start, stop = (0, n) if static else (begin, end)
    x, y = rng.standard_normal(n).astype("f"), rng.standard_normal(n).astype("f")
    out = np.full(n + 8, 7.0, "f")
    run(
        "fma",
        {"x": x, "y": y},
        {"out": out},
        (Loop(i, start, stop, "vector", (Store("out", axis_index(i), value),), 16),),
        n,
    )
    np.testing.assert_array_equal(out[:n], x * y + np.float32(1.5))
    assert (out[n:] == 7.0).all()


def test_a_chunk_gives_the_bits_of_the_whole():
    n = 100
    i = Axis("i", n)
    body = (Loop(i, begin, end, "vector", (Store("out", axis_index(i), km.exp(load("x", axis_index(i)))),), 16),)
    x = rng.standard_normal(n).astype("f")
    whole, parts = np.zeros(n, "f"), np.zeros(n, "f")
    run("exp", {"x": x}, {"out": whole}, body, n)
    for first in range(0, n, 7):
        call("exp", {"x": x}, {"out": parts}, body, (first, min(first + 7, n)))
    assert whole.tobytes() == parts.tobytes()


@pytest.mark.parametrize("factor", [1, -1, 2, 3, -2])
@pytest.mark.parametrize("n", [16, 21])
def test_strided_load_and_store(factor, n):
    i = Axis("i", n)
    span = abs(factor) * n
    index = position((i, factor), const=0 if factor > 0 else span - 1)
    x = rng.standard_normal(span).astype("f")
    out, back = np.zeros(n, "f"), np.zeros(span, "f")
    store = Store("out", axis_index(i), load("x", index))
    run("load", {"x": x}, {"out": out}, (Loop(i, 0, n, "vector", (store,), 16),), n)
    picked = [span - 1 + factor * j if factor < 0 else factor * j for j in range(n)]
    np.testing.assert_array_equal(out, x[picked])
    store = Store("back", index, load("out", axis_index(i)))
    run("store", {"out": out}, {"back": back}, (Loop(i, 0, n, "vector", (store,), 16),), n)
    expected = np.zeros(span, "f")
    expected[picked] = out
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize(("factor", "divisor"), [(2, 1), (3, 1), (4, 1), (1, 2), (1, 4), (2, 4)])
@pytest.mark.parametrize("n", [16, 21, 5])
def test_stretches_stay_inside_memory(factor, divisor, n):
    """Lanes near each other are loaded as one stretch. Here the array ends where unreadable memory begins."""
    count = factor * ((n - 1) // divisor) + 1
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + mmap.PAGESIZE
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    x = np.frombuffer(memory, "f", count, mmap.PAGESIZE - 4 * count)
    x[:] = rng.standard_normal(count)
    i = Axis("i", n)
    out = np.zeros(n, "f")
    store = Store("out", axis_index(i), load("x", ix.scale(ix.floordiv(axis_index(i), divisor), factor)))
    kernel = kernel_of("near", {"x": x}, {"out": out}, (Loop(i, 0, n, "vector", (store,), 16),))
    assert protect(guard, mmap.PAGESIZE, 0) == 0
    try:
        assert "masked.gather" not in render(normalise(kernel))
        call(kernel, {"x": x}, {"out": out}, None, (0, n))
    finally:
        protect(guard, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    np.testing.assert_array_equal(out, [x[factor * (j // divisor)] for j in range(n)])


def test_quotients_and_remainders_in_lanes():
    n = 5 * 7 * 3
    i = Axis("i", n)
    whole, part = ix.floordiv(axis_index(i), 21), ix.remainder(axis_index(i), 7)
    value = op("add", load("x", whole), load("y", part))
    x, y, out = rng.standard_normal(5).astype("f"), rng.standard_normal(7).astype("f"), np.zeros(n, "f")
    run(
        "broadcast",
        {"x": x, "y": y},
        {"out": out},
        (Loop(i, begin, end, "vector", (Store("out", axis_index(i), value),), 8),),
        n,
    )
    np.testing.assert_array_equal(out, x[np.arange(n) // 21] + y[np.arange(n) % 7])


@pytest.mark.parametrize("kind", ["serial", "vector"])
@pytest.mark.parametrize("divisor", [3, 4])
def test_negative_index_parts_round_down(kind, divisor):
    n = 24
    i = Axis("i", n)
    value = ix.add(position((i, 1)), ix.const(-11))
    quotient, rest = ix.floordiv(value, divisor), ix.remainder(value, divisor)
    body = (
        Store("q", axis_index(i), IndexValue(quotient, dtypes.int64)),
        Store("r", axis_index(i), IndexValue(rest, dtypes.int64)),
    )
    q, r = np.zeros(n, np.int64), np.zeros(n, np.int64)
    run("floor", {}, {"q": q, "r": r}, (Loop(i, begin, end, kind, body, 8),), n)
    np.testing.assert_array_equal(q, (np.arange(n) - 11) // divisor)
    np.testing.assert_array_equal(r, (np.arange(n) - 11) % divisor)


def test_gather_through_a_loaded_index():
    n, rows = 21, 10
    i, row = Axis("i", n), Axis("row", rows, "value")
    index = Load("index", axis_index(i), dtypes.int64)
    store = Store("out", axis_index(i), load("x", position((row, 3), const=1)))
    numbers = rng.integers(0, rows, n)
    x, out = rng.standard_normal(rows * 3).astype("f"), np.zeros(n, "f")
    body = (Loop(i, begin, end, "vector", (store,), 8),)
    run("gather", {"x": x, "index": numbers}, {"out": out}, body, n, definitions={"row": index})
    np.testing.assert_array_equal(out, x[numbers * 3 + 1])


def test_masked_load_reads_zero_outside():
    n, low = 40, 5
    i = Axis("i", n)
    number = IndexValue(axis_index(i), dtypes.int64)
    inside = op("and", binary("le", Literal(low, INT), number), binary("lt", number, Literal(30, INT)))
    value = Load("x", position((i, 1), const=-low), FLOAT, inside)
    x, out = rng.standard_normal(25).astype("f"), np.full(n, 9.0, "f")
    for kind in ("vector", "serial"):
        out[:] = 9
        run("pad", {"x": x}, {"out": out}, (Loop(i, begin, end, kind, (Store("out", axis_index(i), value),), 16),), n)
        np.testing.assert_array_equal(out, np.pad(x, (low, 10)))


def test_masked_store_leaves_the_rest():
    n = 21
    i = Axis("i", n)
    mask = binary("lt", load("x", axis_index(i)), Literal(0.0, FLOAT))
    x = rng.standard_normal(n).astype("f")
    for kind in ("vector", "serial"):
        out = np.full(n, 3.0, "f")
        store = Store("out", axis_index(i), Literal(1.0, FLOAT), mask)
        run("negative", {"x": x}, {"out": out}, (Loop(i, begin, end, kind, (store,), 8),), n)
        np.testing.assert_array_equal(out, np.where(x < 0, np.float32(1), np.float32(3)))


def _softmax(rows, columns, width):
    r, c, d = Axis("r", rows), Axis("c", columns, "reduce"), Axis("d", columns)
    at_c, at_d = position((r, columns), (c, 1)), position((r, columns), (d, 1))
    top = Fold(
        (Accumulator("top", "max", FLOAT),), (Loop(c, 0, columns, "vector", (Update("top", load("x", at_c)),), width),)
    )
    shifted = km.exp(op("sub", load("x", at_c), Var("top", FLOAT)))
    loop = Loop(c, 0, columns, "vector", (Store("tmp", axis_index(c), shifted), Update("total", shifted)), width)
    total = Fold((Accumulator("total", "sum", FLOAT),), (loop,))
    value = op("div", load("tmp", axis_index(d)), Var("total", FLOAT))
    body = (top, total, Loop(d, 0, columns, "vector", (Store("out", at_d, value),), width))
    return (Local("tmp", FLOAT, columns), Loop(r, begin, end, "task", body))


@pytest.mark.parametrize("columns", [1, 7, 16, 40])
def test_softmax_has_three_stages_and_a_local_row(columns):
    x, out = rng.standard_normal((6, columns)).astype("f"), np.zeros((6, columns), "f")
    run("softmax", {"x": x}, {"out": out}, _softmax(6, columns, 16), 6)
    e = np.exp(x.astype("d") - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("name,numpy", [("sum", np.sum), ("max", np.max), ("min", np.min), ("prod", np.prod)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64, dtypes.uint32])
@pytest.mark.parametrize("kind", ["vector", "serial"])
def test_reductions(name, numpy, dtype, kind):
    rows, columns = 3, 21
    r, c = Axis("r", rows), Axis("c", columns, "reduce")
    value = Load("x", position((r, columns), (c, 1)), dtype)
    fold = Fold((Accumulator("a", name, dtype),), (Loop(c, 0, columns, kind, (Update("a", value),), 8),))
    body = (Loop(r, begin, end, "task", (fold, Store("out", axis_index(r), Var("a", dtype)))),)
    x = (rng.standard_normal((rows, columns)) * 3).astype(dtype.numpy)
    out = np.zeros(rows, dtype.numpy)
    run("reduce", {"x": x}, {"out": out}, body, rows)
    np.testing.assert_allclose(
        out, numpy(x, axis=1, dtype=dtype.numpy) if name in ("sum", "prod") else numpy(x, axis=1), rtol=1e-5
    )


def test_reduction_order_is_lanes_then_a_halving_tree():
    n, width = 37, 8
    i = Axis("i", n, "reduce")
    fold = Fold(
        (Accumulator("a", "sum", FLOAT),), (Loop(i, 0, n, "vector", (Update("a", load("x", axis_index(i))),), width),)
    )
    x, out = rng.standard_normal(n).astype("f"), np.zeros(1, "f")
    run("sum", {"x": x}, {"out": out}, (fold, Store("out", ix.ZERO, Var("a", FLOAT))), 1)
    lanes = np.zeros(width, "f")
    for first in range(0, n, width):
        part = x[first : first + width]
        lanes[: len(part)] += part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert out[0] == lanes[0]


def test_maximum_propagates_nan_from_any_lane():
    n = 21
    i = Axis("i", n, "reduce")
    loop = Loop(i, 0, n, "vector", (Update("a", load("x", axis_index(i))), Update("b", load("x", axis_index(i)))), 8)
    fold = Fold((Accumulator("a", "max", FLOAT), Accumulator("b", "min", FLOAT)), (loop,))
    body = (fold, Store("out", ix.ZERO, Var("a", FLOAT)), Store("out", ix.const(1), Var("b", FLOAT)))
    for place in range(n):
        x, out = rng.standard_normal(n).astype("f"), np.zeros(2, "f")
        x[place] = np.nan
        run("extremes", {"x": x}, {"out": out}, body, 1)
        assert np.isnan(out).all(), place


def test_fold_of_two_loops_and_a_scalar_update():
    rows, columns = 5, 19
    r, c = Axis("r", rows, "reduce"), Axis("c", columns, "reduce")
    loop = Loop(
        r,
        0,
        rows,
        "serial",
        (Loop(c, 0, columns, "vector", (Update("a", load("x", position((r, columns), (c, 1)))),), 8),),
    )
    fold = Fold((Accumulator("a", "sum", FLOAT),), (loop, Update("a", Literal(100.0, FLOAT))))
    x, out = rng.standard_normal((rows, columns)).astype("f"), np.zeros(1, "f")
    run("total", {"x": x}, {"out": out}, (fold, Store("out", ix.ZERO, Var("a", FLOAT))), 1)
    np.testing.assert_allclose(out[0], x.sum() + 100, rtol=1e-6)


@pytest.mark.parametrize("columns", [5, 16, 21])
def test_column_sums_fold_lane_by_lane(columns):
    rows = 9
    r, c = Axis("r", rows, "reduce"), Axis("c", columns)
    fold = Fold(
        (Accumulator("a", "sum", FLOAT),),
        (Loop(r, 0, rows, "serial", (Update("a", load("x", position((r, columns), (c, 1)))),)),),
    )
    body = (Loop(c, begin, end, "vector", (fold, Store("out", axis_index(c), Var("a", FLOAT))), 8),)
    x, out = rng.standard_normal((rows, columns)).astype("f"), np.zeros(columns, "f")
    run("columns", {"x": x}, {"out": out}, body, columns)
    expected = np.zeros(columns, "f")
    for row in x:
        expected += row
    np.testing.assert_array_equal(out, expected)


def test_accumulating_in_memory_keeps_statement_order():
    rows, columns = 4, 21
    r, c = Axis("r", rows), Axis("c", columns)
    here = load("out", axis_index(c))
    add = Store("out", axis_index(c), op("add", here, load("x", position((r, columns), (c, 1)))))
    body = (Loop(r, 0, rows, "serial", (Loop(c, 0, columns, "vector", (add,), 8),)),)
    x, out = rng.standard_normal((rows, columns)).astype("f"), np.ones(columns, "f")
    expected = out.copy()
    for row in x:
        expected += row
    run("accumulate", {"x": x}, {"out": out}, body, 1)
    np.testing.assert_array_equal(out, expected)


def test_in_place_update_with_a_pinned_value():
    n = 21
    i = Axis("i", n)
    new = op("add", load("m", axis_index(i)), Literal(1.0, FLOAT))
    body = (
        Let("new", new),
        Store("m", axis_index(i), Var("new", FLOAT)),
        Store("p", axis_index(i), op("sub", load("p", axis_index(i)), Var("new", FLOAT))),
    )
    m, p = rng.standard_normal(n).astype("f"), rng.standard_normal(n).astype("f")
    m1 = m + np.float32(1)
    p1 = p - m1
    run("update", {}, {"m": m, "p": p}, (Loop(i, begin, end, "vector", body, 8),), n)
    np.testing.assert_array_equal(m, m1)
    np.testing.assert_array_equal(p, p1)


def test_if_is_taken_or_not():
    n = 10
    i = Axis("i", n)
    loop = Loop(i, 0, n, "vector", (Store("out", axis_index(i), load("x", axis_index(i))),), 8)
    body = (If(binary("lt", begin, Literal(3, INT)), (loop,)),)
    x = rng.standard_normal(n).astype("f")
    for first, expected in ((0, x), (5, np.zeros(n, "f"))):
        out = np.zeros(n, "f")
        call("if", {"x": x}, {"out": out}, body, (first, 9))
        np.testing.assert_array_equal(out, expected)


_INTEGERS = [*dtypes.SIGNED, *dtypes.UNSIGNED]
_WIDE = [dtype for dtype in dtypes.ALL if not dtype.is_narrow]


@pytest.mark.parametrize("dtype", _INTEGERS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "mod", "max", "min", "and", "or", "xor", "shl", "shr"])
def test_integer_operations(name, dtype):
    info = np.iinfo(dtype.numpy)
    special = np.array([0, 1, 2, 7, info.max, info.min, info.max - 1, *([-1, -7] if info.min else [])], dtype.numpy)
    a, b = (grid.ravel().copy() for grid in np.meshgrid(special, special))
    if name in ("shl", "shr"):
        b = (np.arange(len(b)) % (info.bits + 3)).astype(dtype.numpy)
    n = len(a)
    i = Axis("i", n)
    value = Op(name, (Load("a", axis_index(i), dtype), Load("b", axis_index(i), dtype)), dtype)
    with np.errstate(all="ignore"):
        numpy = {
            "div": np.floor_divide,
            "mod": np.remainder,
            "sub": np.subtract,
            "mul": np.multiply,
            "and": np.bitwise_and,
        }
        numpy |= {
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
            "shl": np.left_shift,
            "shr": np.right_shift,
            "add": np.add,
        }
        numpy |= {"max": np.maximum, "min": np.minimum}
        expected = numpy[name](a, b)
    for kind in ("vector", "serial"):
        out = np.zeros(n, dtype.numpy)
        run(
            name,
            {"a": a, "b": b},
            {"out": out},
            (Loop(i, begin, end, kind, (Store("out", axis_index(i), value),), 8),),
            n,
        )
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "lt", "le", "eq", "ne"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_float_operations(name, dtype):
    special = np.array([0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 1e-40, 7.0], dtype.numpy)
    a, b = (grid.ravel().copy() for grid in np.meshgrid(special, special))
    n = len(a)
    i = Axis("i", n)
    compare = name in ("lt", "le", "eq", "ne")
    target = dtypes.bool_ if compare else dtype
    value = Op(name, (Load("a", axis_index(i), dtype), Load("b", axis_index(i), dtype)), target)
    with np.errstate(all="ignore"):
        numpy = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "div": np.divide,
            "max": np.maximum,
            "min": np.minimum,
        }
        numpy |= {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal}
        expected = numpy[name](a, b)
    for kind in ("vector", "serial"):
        out = np.zeros(n, target.numpy)
        run(
            name,
            {"a": a, "b": b},
            {"out": out},
            (Loop(i, begin, end, kind, (Store("out", axis_index(i), value),), 8),),
            n,
        )
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("source", _WIDE)
@pytest.mark.parametrize("target", _WIDE)
def test_casts(source, target):
    numbers = np.array([0, 1, 2, 3, 100, 65536, -1, -7, 0.5, -2.75, 1.99])
    with np.errstate(all="ignore"):
        x = np.where((source.kind == "u") & (numbers < 0), 5, numbers).astype(source.numpy)
        if source.kind == "f" and target.kind in "iu":  # saturates
            expected = np.clip(np.trunc(x), *dtypes.integer_bounds(target)).astype(target.numpy)
        else:
            expected = x != 0 if target is dtypes.bool_ else x.astype(target.numpy)
    n = len(x)
    i = Axis("i", n)
    value = Op("cast", (Load("x", axis_index(i), source),), target)
    for kind in ("vector", "serial"):
        out = np.zeros(n, target.numpy)
        run("cast", {"x": x}, {"out": out}, (Loop(i, begin, end, kind, (Store("out", axis_index(i), value),), 8),), n)
        np.testing.assert_array_equal(out, expected)


def test_float_to_integer_saturates_and_nan_is_zero():
    x = np.array([1e20, -1e20, np.nan, np.inf, -np.inf, 5.9, -5.9], "f")
    i = Axis("i", len(x))
    value = Op("cast", (load("x", axis_index(i)),), dtypes.int32)
    out = np.zeros(len(x), np.int32)
    run(
        "cast",
        {"x": x},
        {"out": out},
        (Loop(i, begin, end, "vector", (Store("out", axis_index(i), value),), 8),),
        len(x),
    )
    assert out.tolist() == [2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31), 5, -5]


def test_bool_values_select_and_logic():
    n = 21
    i = Axis("i", n)
    a, b = (Load(name, axis_index(i), dtypes.bool_) for name in "ab")
    both = Op("and", (a, Op("not", (b,), dtypes.bool_)), dtypes.bool_)
    picked = Op("select", (both, load("x", axis_index(i)), Literal(-1.0, FLOAT)), FLOAT)
    body = (Store("flag", axis_index(i), both), Store("out", axis_index(i), picked))
    p, q, x = rng.random(n) < 0.5, rng.random(n) < 0.5, rng.standard_normal(n).astype("f")
    flag, out = np.zeros(n, bool), np.zeros(n, "f")
    run("logic", {"a": p, "b": q, "x": x}, {"flag": flag, "out": out}, (Loop(i, begin, end, "vector", body, 8),), n)
    np.testing.assert_array_equal(flag, p & ~q)
    np.testing.assert_array_equal(out, np.where(p & ~q, x, np.float32(-1)))


def test_any_and_all_of_bools():
    n = 21
    i = Axis("i", n, "reduce")
    value = Load("x", axis_index(i), dtypes.bool_)
    loop = Loop(i, 0, n, "vector", (Update("any", value), Update("all", value)), 8)
    fold = Fold((Accumulator("any", "max", dtypes.bool_), Accumulator("all", "min", dtypes.bool_)), (loop,))
    body = (fold, Store("out", ix.ZERO, Var("any", dtypes.bool_)), Store("out", ix.const(1), Var("all", dtypes.bool_)))
    for x in (np.zeros(n, bool), np.ones(n, bool), np.arange(n) == 20):
        out = np.zeros(2, bool)
        run("any", {"x": x}, {"out": out}, body, 1)
        assert out.tolist() == [x.any(), x.all()]


def test_scalar_parameters_of_every_dtype():
    values = [
        (dtypes.float32, 0.1),
        (dtypes.float64, 0.1),
        (dtypes.int32, -5),
        (dtypes.int64, -(2**40)),
        (dtypes.uint32, 2**32 - 1),
    ]
    values.append((dtypes.bool_, True))
    for dtype, value in values:
        out = np.zeros(19, dtype.numpy)
        i = Axis("i", 19)
        kernel = Kernel(
            "fill",
            (BufferParam("out", dtype, True),),
            (ScalarParam("value", dtype),),
            ("begin", "end"),
            (Loop(i, begin, end, "vector", (Store("out", axis_index(i), Var("value", dtype)),), 8),),
        )
        call(kernel, {}, {"out": out}, None, (0, 19), scalars=(value,))
        np.testing.assert_array_equal(out, np.full(19, value, dtype.numpy))


def test_equal_code_has_one_name_and_the_kernel_name_is_a_comment():
    i = Axis("i", 8)
    body = (Loop(i, 0, 8, "vector", (Store("out", axis_index(i), Literal(1.0, FLOAT)),), 8),)
    texts = [
        render(normalise(Kernel(name, (BufferParam("out", FLOAT, True),), (), (), body))) for name in ("one", "two")
    ]
    assert texts[0].startswith("; one\n")
    assert symbol_of(texts[0]) == symbol_of(texts[1])
    assert texts[0].split("\n", 1)[1] == texts[1].split("\n", 1)[1]


def test_no_fast_math_and_no_contraction():
    i = Axis("i", 32)
    value = op("add", op("mul", load("x", axis_index(i)), load("x", axis_index(i))), Literal(1.0, FLOAT))
    kernel = Kernel("k", (BufferParam("x", FLOAT, False), BufferParam("out", FLOAT, True)), (), ("begin", "end"), ())
    kernel = Kernel(
        "k",
        kernel.buffers,
        (),
        kernel.ranges,
        (Loop(i, begin, end, "vector", (Store("out", axis_index(i), value),), 8),),
    )
    text = render(normalise(kernel))
    assert not any(flag in text for flag in (" fast ", "contract", "reassoc", "nnan", "fma"))


def test_a_varying_condition_is_refused():
    i = Axis("i", 32)
    condition = binary("lt", load("x", axis_index(i)), Literal(0.0, FLOAT))
    body = (Loop(i, 0, 32, "vector", (If(condition, (Store("out", axis_index(i), Literal(1.0, FLOAT)),)),), 8),)
    with pytest.raises(GraphError, match="varies between lanes"):
        run("k", {"x": np.zeros(32, "f")}, {"out": np.zeros(32, "f")}, body, 1)


def test_lanes_that_store_to_one_place_are_refused():
    i = Axis("i", 32)
    body = (Loop(i, 0, 32, "vector", (Store("out", ix.ZERO, load("x", axis_index(i))),), 8),)
    with pytest.raises(GraphError, match="lanes that all store"):
        run("k", {"x": np.zeros(32, "f")}, {"out": np.zeros(1, "f")}, body, 1)


class Number:
    """An index that is written like a number."""

    def __init__(self, index):
        self.index = index

    def __floordiv__(self, divisor):
        return Number(ix.floordiv(self.index, divisor))

    def __mod__(self, divisor):
        return Number(ix.remainder(self.index, divisor))

    def __rmul__(self, factor):
        return Number(ix.scale(self.index, factor))

    def __add__(self, other):
        return Number(ix.add(self.index, other.index if isinstance(other, Number) else ix.const(other)))


LANE_PATTERNS = {
    "a value for four lanes": lambda i: i // 4,
    "a value for eight lanes": lambda i: 5 * (i // 8) + 3,
    "a value for all lanes": lambda i: i // 32,
    "places among four": lambda i: i % 4,
    "shifted places": lambda i: 16 * ((i + 3) % 4) + 1,
    "both": lambda i: 100 * (i // 4) + i % 2,
    "uneven": lambda i: (i + 1) // 4,
    "thirds": lambda i: i // 3 + i % 3,
}


@pytest.mark.parametrize("width", [4, 8, 32])
@pytest.mark.parametrize("name", LANE_PATTERNS)
def test_lanes_that_share_a_number(name, width):
    """Numbers that neighbouring lanes share are computed once for them, and meet the others' again."""
    n, first = 75, 32

    formula = LANE_PATTERNS[name]
    i = Axis("i", 1000)
    shared = IndexValue(formula(Number(axis_index(i))).index, dtypes.uint32)
    squared = op("mul", shared, shared)
    mixed = op("add", squared, IndexValue(axis_index(i), dtypes.uint32))
    for start, multiple in ((begin, 32), (begin, 1), (first, 1)):
        out, plain = np.zeros(n, np.uint32), np.zeros(n, np.uint32)
        stores = (Store("out", axis_index(i), mixed), Store("plain", axis_index(i), squared))
        body = (Loop(i, start, end, "vector", stores, width, multiple),)
        call("shared", {}, {"out": out, "plain": plain}, body, (first, n))
        numbers = np.arange(first, n)
        expected = formula(numbers) ** 2
        assert (plain[first:] == expected).all() and not plain[:first].any()
        assert (out[first:] == expected + numbers).all()


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int64])
def test_lanes_share_a_row_that_they_read(dtype):
    """A number that neighbours share may be named, and be an index for each of them."""
    n, i, row = 75, Axis("i", 1000), Axis("row", 10, "value")
    x, out = np.arange(80, dtype=np.float32), np.zeros(n, np.float32)
    place = ix.add(ix.scale(axis_index(row), 8), ix.remainder(axis_index(i), 8))
    body = (Loop(i, begin, end, "vector", (Store("out", axis_index(i), load("x", place)),), 32, 32),)
    named = {"row": IndexValue(ix.floordiv(axis_index(i), 8), dtype)}
    call("rows", {"x": x}, {"out": out}, body, (0, n), named)
    assert (out == x[:n]).all()
