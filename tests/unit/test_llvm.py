"""Kernels written by hand in the kernel language, rendered to LLVM IR, compiled and run against NumPy."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from tests.unit.kernel_harness import FLOAT, INT, begin, binary, call, end, kernel_of, load, op, run
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
    Reduction,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.normalize import normalise
from weft.kernels.math import functions as km
from weft.render.llvm.module import render, symbol_of

rng = np.random.default_rng(0)


def at(index, *terms):
    """A linear index: pairs of (axis, factor), plus a constant."""
    for axis, factor in terms:
        index = index + axis * factor
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
    store = Store("out", axis_index(i), load("x", i // divisor * factor))
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
    whole, part = i // 21, i % 7
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
    value = position((i, 1)) - 11
    quotient, rest = value // divisor, value % divisor
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
    top = Reduction(
        (Accumulator("top", "max", FLOAT),), (Loop(c, 0, columns, "vector", (Update("top", load("x", at_c)),), width),)
    )
    shifted = km.exp(op("sub", load("x", at_c), Var("top", FLOAT)))
    loop = Loop(c, 0, columns, "vector", (Store("tmp", axis_index(c), shifted), Update("total", shifted)), width)
    total = Reduction((Accumulator("total", "sum", FLOAT),), (loop,))
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
    reduction = Reduction((Accumulator("a", name, dtype),), (Loop(c, 0, columns, kind, (Update("a", value),), 8),))
    body = (Loop(r, begin, end, "task", (reduction, Store("out", axis_index(r), Var("a", dtype)))),)
    x = (rng.standard_normal((rows, columns)) * 3).astype(dtype.numpy)
    out = np.zeros(rows, dtype.numpy)
    run("reduce", {"x": x}, {"out": out}, body, rows)
    np.testing.assert_allclose(
        out, numpy(x, axis=1, dtype=dtype.numpy) if name in ("sum", "prod") else numpy(x, axis=1), rtol=1e-5
    )


def test_reduction_order_is_lanes_then_a_halving_tree():
    n, width = 37, 8
    i = Axis("i", n, "reduce")
    reduction = Reduction(
        (Accumulator("a", "sum", FLOAT),), (Loop(i, 0, n, "vector", (Update("a", load("x", axis_index(i))),), width),)
    )
    x, out = rng.standard_normal(n).astype("f"), np.zeros(1, "f")
    run("sum", {"x": x}, {"out": out}, (reduction, Store("out", ix.ZERO, Var("a", FLOAT))), 1)
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
    reduction = Reduction((Accumulator("a", "max", FLOAT), Accumulator("b", "min", FLOAT)), (loop,))
    body = (reduction, Store("out", ix.ZERO, Var("a", FLOAT)), Store("out", ix.const(1), Var("b", FLOAT)))
    for place in range(n):
        x, out = rng.standard_normal(n).astype("f"), np.zeros(2, "f")
        x[place] = np.nan
        run("extremes", {"x": x}, {"out": out}, body, 1)
        assert np.isnan(out).all(), place


def test_reduction_over_two_loops_and_a_scalar_update():
    rows, columns = 5, 19
    r, c = Axis("r", rows, "reduce"), Axis("c", columns, "reduce")
    loop = Loop(
        r,
        0,
        rows,
        "serial",
        (Loop(c, 0, columns, "vector", (Update("a", load("x", position((r, columns), (c, 1)))),), 8),),
    )
    reduction = Reduction((Accumulator("a", "sum", FLOAT),), (loop, Update("a", Literal(100.0, FLOAT))))
    x, out = rng.standard_normal((rows, columns)).astype("f"), np.zeros(1, "f")
    run("total", {"x": x}, {"out": out}, (reduction, Store("out", ix.ZERO, Var("a", FLOAT))), 1)
    np.testing.assert_allclose(out[0], x.sum() + 100, rtol=1e-6)


@pytest.mark.parametrize("columns", [5, 16, 21])
def test_column_sums_are_reduced_lane_by_lane(columns):
    rows = 9
    r, c = Axis("r", rows, "reduce"), Axis("c", columns)
    reduction = Reduction(
        (Accumulator("a", "sum", FLOAT),),
        (Loop(r, 0, rows, "serial", (Update("a", load("x", position((r, columns), (c, 1)))),)),),
    )
    body = (Loop(c, begin, end, "vector", (reduction, Store("out", axis_index(c), Var("a", FLOAT))), 8),)
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
