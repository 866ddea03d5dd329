"""Operations, casts and scalar parameters of every dtype in LLVM IR, compiled and run against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.kernel_harness import FLOAT, begin, call, end, load, run
from weft.base import dtypes
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import (
    Accumulator,
    BufferParam,
    Kernel,
    Literal,
    Load,
    Loop,
    Op,
    Reduction,
    ScalarParam,
    Store,
    Update,
    Var,
)

rng = np.random.default_rng(0)


_INTEGERS = [*dtypes.SIGNED, *dtypes.UNSIGNED]
_WIDE = [dtype for dtype in dtypes.ALL if not dtype.is_16_bit]


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
    value = Load("x", axis_index(i), source).cast(target)
    for kind in ("vector", "serial"):
        out = np.zeros(n, target.numpy)
        run("cast", {"x": x}, {"out": out}, (Loop(i, begin, end, kind, (Store("out", axis_index(i), value),), 8),), n)
        np.testing.assert_array_equal(out, expected)


def test_float_to_integer_saturates_and_nan_is_zero():
    x = np.array([1e20, -1e20, np.nan, np.inf, -np.inf, 5.9, -5.9], "f")
    i = Axis("i", len(x))
    value = load("x", axis_index(i)).cast(dtypes.int32)
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
    both = Op("and", (a, ~b), dtypes.bool_)
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
    reduction = Reduction((Accumulator("any", "max", dtypes.bool_), Accumulator("all", "min", dtypes.bool_)), (loop,))
    body = (
        reduction,
        Store("out", ix.ZERO, Var("any", dtypes.bool_)),
        Store("out", ix.const(1), Var("all", dtypes.bool_)),
    )
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
