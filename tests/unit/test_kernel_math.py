"""Transcendental functions of the kernel language: error bounds over wide ranges, ends of the range, random bits."""

from __future__ import annotations

import ctypes
import ctypes.util
import math

import numpy as np
import pytest

from tests.unit.kernel_harness import begin, call, end, kernel_of
from tests.unit.lockstep_operations import operation
from weft.base import dtypes
from weft.errors import DTypeError
from weft.graph.evaluations import random_bits
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import LARGE, Let, Literal, Load, Loop, Op, Store
from weft.kernels.ir.normalize import normalise
from weft.kernels.math import functions as km
from weft.kernels.math import large_arguments
from weft.kernels.math.random_bits import PHILOX_ROUNDS, philox
from weft.kernels.math.random_bits import random_bits as element_bits

rng = np.random.default_rng(1)
_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.pow.restype, _libm.pow.argtypes = ctypes.c_double, (ctypes.c_double, ctypes.c_double)
COUNT = 200_001
TINY = {dtypes.float32: 1e-38, dtypes.float64: 1e-307}
FLOATS = [dtypes.float32, dtypes.float64]


def run_function(name, *arrays):
    """The function called `name` of NumPy arrays, through a compiled kernel."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    dtype = dtypes.from_numpy(arrays[0].dtype)
    n = len(arrays[0])
    i = Axis("i", n)
    args = tuple(Load(f"x{number}", axis_index(i), dtype) for number in range(len(arrays)))
    body = (Loop(i, begin, end, "vector", (Store("out", axis_index(i), km.build(name, args, dtype)),), 16),)
    inputs, out = {f"x{number}": array for number, array in enumerate(arrays)}, np.empty(n, arrays[0].dtype)
    call(kernel_of(name, inputs, {"out": out}, body), inputs, {"out": out}, None, (0, n))
    return out


def exact(name, *arrays):
    """The same in a wider format: float64 for float32, the long double for float64."""
    with np.errstate(all="ignore"):
        if name == "erf":
            return np.array([math.erf(float(value)) for value in arrays[0]])
        wide = np.float64 if arrays[0].dtype == np.float32 else np.longdouble
        if name == "logistic":
            return 1 / (1 + np.exp(-arrays[0].astype(wide)))
        return getattr(np, {"pow": "power"}.get(name, name))(*(array.astype(wide) for array in arrays))


def ulps(found, expected, dtype):
    """The largest error in units in the last place of the expected result."""
    rounded = expected.astype(dtype.numpy)
    assert np.isfinite(found).all()
    unit = np.maximum(np.spacing(np.abs(rounded)), np.finfo(dtype.numpy).smallest_subnormal).astype(expected.dtype)
    return float((np.abs(found.astype(expected.dtype) - expected) / unit).max())


def signed_powers(low, high, count=COUNT):
    """Numbers of both signs spread evenly over the exponents from `low` to `high`."""
    sizes = np.exp(rng.uniform(np.log(low), np.log(high), count))
    return sizes * np.where(rng.random(count) < 0.5, -1, 1)


def inputs_of(name, dtype):
    top, tiny = (88.7, 1e-38) if small(dtype) else (709.7, 1e-307)
    ranges = {
        "exp": lambda: np.concatenate([rng.uniform(-top, top, COUNT), signed_powers(1e-10, 1.0)]),
        "expm1": lambda: np.concatenate(
            [rng.uniform(-40, top, COUNT), signed_powers(tiny, 2.0), rng.uniform(-2, 2, COUNT)]
        ),
        "log": lambda: np.concatenate([np.abs(signed_powers(tiny, 1 / tiny)), rng.uniform(0.5, 2, COUNT)]),
        "log1p": lambda: np.concatenate([np.abs(signed_powers(tiny, 1 / tiny)), rng.uniform(-0.9999, 2, COUNT)]),
        "tanh": lambda: np.concatenate([rng.uniform(-20, 20, COUNT), signed_powers(tiny, 1.0)]),
        "erf": lambda: np.concatenate([rng.uniform(-6, 6, COUNT), signed_powers(1e-30, 1.0)]),
        "sin": lambda: np.concatenate(
            [signed_powers(1e-20, 1e38 if small(dtype) else 1e308), rng.uniform(-10, 10, COUNT), near_quadrants(dtype)]
        ),
    }
    ranges["cos"], ranges["logistic"] = ranges["sin"], ranges["tanh"]
    return ranges[name]().astype(dtype.numpy)


def near_quadrants(dtype):
    """Large numbers that lie close to multiples of pi/2, where the reduction cancels most bits, among them the closest
    that float32 and float64 have (Muller, Elementary Functions)."""
    multiples = np.exp(rng.uniform(np.log(1e5), np.log(1e15), 10_000)).round() * (np.pi / 2)
    return np.concatenate(
        [multiples, [16367173.0 * 2.0**72, 6381956970095103.0 * 2.0 ** (30 if small(dtype) else 797)]]
    )


def small(dtype):
    return dtype is dtypes.float32


BOUNDS = {
    "exp": (1.5, 2),
    "expm1": (3, 4),
    "log": (1.5, 2),
    "log1p": (2, 3),
    "logistic": (3, 4),
    "tanh": (4, 5),
    "erf": (2, 4),
    "sin": (2, 2),
    "cos": (2, 2),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BOUNDS)
def test_error_bound(name, dtype):
    x = inputs_of(name, dtype)
    assert ulps(run_function(name, x), exact(name, x), dtype) <= BOUNDS[name][dtype is dtypes.float64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_exp_rounds_results_below_the_normal_range(dtype):
    low, high = (-103.9, -87.4) if dtype is dtypes.float32 else (-745.0, -708.4)
    x = np.linspace(low, high, 10_001).astype(dtype.numpy)
    assert ulps(run_function("exp", x), exact("exp", x), dtype) <= 1.0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BOUNDS)
def test_special_values(name, dtype):
    tiny, huge = np.finfo(dtype.numpy).smallest_subnormal, np.finfo(dtype.numpy).max
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, tiny, -tiny, huge, -huge], dtype.numpy)
    found, expected = run_function(name, x), exact(name, x)
    with np.errstate(over="ignore"):
        expected = expected.astype(dtype.numpy)
    for this, other, at in zip(found, expected, x, strict=False):
        if np.isfinite(other):
            assert np.signbit(this) == np.signbit(other), (name, at)
            assert abs(this - other) <= 4 * np.spacing(abs(other)), (name, at, this, other)
        else:
            np.testing.assert_equal(this, other, err_msg=f"{name}({at})")


def test_tanh_and_erf_are_odd_to_the_bit():
    x = signed_powers(1e-6, 10.0).astype("f")
    for name in ("tanh", "erf", "sin"):
        assert (-run_function(name, x)).tobytes() == run_function(name, -x).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow_error_bound(dtype):
    top = 80 if dtype is dtypes.float32 else 600
    x = np.exp(rng.uniform(-10, 10, COUNT)).astype(dtype.numpy)
    y = (rng.uniform(-1, 1, COUNT) * top / np.maximum(np.abs(np.log(x)), 1e-3)).astype(dtype.numpy)
    near = rng.uniform(0.9, 1.1, COUNT).astype(dtype.numpy)
    for base, exponent in ((x, y), (near, y), (x, rng.integers(-6, 7, COUNT).astype(dtype.numpy))):
        expected = exact("pow", base, exponent)
        moderate = (expected > TINY[dtype]) & (expected < 1 / TINY[dtype])
        found = run_function("pow", base, exponent)[moderate]
        assert ulps(found, expected[moderate], dtype) <= (3 if dtype is dtypes.float32 else 10)


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow_special_values(dtype):
    tiny, huge = np.finfo(dtype.numpy).smallest_subnormal, np.finfo(dtype.numpy).max
    special = np.array(
        [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 2.5, np.inf, -np.inf, np.nan, tiny, huge, -huge], dtype.numpy
    )
    x, y = (grid.ravel() for grid in np.meshgrid(special, special))
    found = run_function("pow", x, y)
    with np.errstate(over="ignore"):
        expected = np.array([_libm.pow(a, b) for a, b in zip(x, y, strict=True)]).astype(dtype.numpy)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype is dtypes.float32 else 1e-14)
    finite = expected == 0
    assert (np.signbit(found) == np.signbit(expected))[finite].all()


def quotients(dtype):
    """Pairs of random bit patterns, of special values, of moderate numbers and of whole ones, and multiples."""
    whole, count = (np.uint32, 100_001) if small(dtype) else (np.uint64, 50_001)
    info = np.finfo(dtype.numpy)
    special = np.array([0, -0.0, 1, -1, 3, -5, np.inf, -np.inf, np.nan, info.tiny, -info.smallest_subnormal, info.max,
                        1e8, 0.1, -1e-30], dtype.numpy)  # fmt: skip
    yield tuple(rng.integers(0, np.iinfo(whole).max, count, dtype=whole).view(dtype.numpy) for _ in range(2))
    yield tuple(grid.ravel() for grid in np.meshgrid(special, special))
    factor = rng.standard_normal(count).astype(dtype.numpy)
    for scale in (100, 1e6, 1e12):
        yield (rng.standard_normal(count) * scale).astype(dtype.numpy), factor
    yield tuple((rng.integers(-limit, limit, count) / 8).astype(dtype.numpy) for limit in (9999, 77))
    yield factor * rng.integers(-99, 99, count).astype(dtype.numpy), factor


@pytest.mark.parametrize("dtype", FLOATS)
def test_remainders_and_their_quotients_are_exact(dtype):
    """Against C's fmod, and what Python and PyTorch make of it."""
    for a, b in quotients(dtype):
        with np.errstate(all="ignore"):
            rest = np.fmod(a, b)
            rest = np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
            expected = {"mod": rest, "floor_divide": np.floor_divide(a, b)}
        for name, value in expected.items():
            found = run_function(name, a, b)
            np.testing.assert_array_equal(found, value, err_msg=name)
            known = ~np.isnan(value)
            np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(value)[known], err_msg=name)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_large_arguments_in_numpy(name, dtype):
    """What renderers print as a function beside a kernel, run one operation at a time: as GPUs compute it."""
    function = large_arguments.function(name, dtype)
    a = signed_powers(1e7, 1e37, 500).astype(dtype.numpy)
    b = signed_powers(1e-30, 10, 500).astype(dtype.numpy)
    values = {parameter.name: x for parameter, x in zip(function.parameters, (a, b), strict=False)}

    def value(expr):
        return expr.dtype.numpy.type(expr.value) if isinstance(expr, Literal) else values[expr.name]

    with np.errstate(all="ignore"):
        for let in function.body:
            values[let.name] = operation(let.value.name, [value(arg) for arg in let.value.args], let.value.dtype)
        found = value(function.result)
        if name in ("sin_large", "cos_large"):
            assert ulps(found, exact(name[:3], a), dtype) <= 2
        else:
            expected = np.floor_divide(a, b) if name == "floor_divide_large" else np.mod(a, b)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 1.0, 2.0, 3.0])
def test_simple_literal_powers_are_products(exponent):
    n = 1000
    x = np.abs(rng.standard_normal(n)).astype("f")
    i = Axis("i", n)
    value = km.build(
        "pow", (Load("x", axis_index(i), dtypes.float32), Literal(exponent, dtypes.float32)), dtypes.float32
    )
    out = np.empty(n, "f")
    body = (Loop(i, begin, end, "vector", (Store("out", axis_index(i), value),), 16),)
    call(kernel_of("pow", {"x": x}, {"out": out}, body), {"x": x}, {"out": out}, None, (0, n))
    products = {-1.0: 1 / x, 0.5: np.sqrt(x), 1.0: x, 2.0: x * x, 3.0: x * x * x}
    np.testing.assert_array_equal(out, products[exponent])


def test_integers_are_refused():
    with pytest.raises(DTypeError, match="exp: given a int32 argument; expected float32 or float64"):
        km.build("exp", (Literal(1, dtypes.int32),), dtypes.int32)


@pytest.mark.parametrize(
    "counter,key,words",
    [
        ((0x00000000, 0x00000000), 0x00000000, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_known_answers(counter, key, words):
    given = np.array([key, *counter], np.uint32)
    for width in (1, 8):
        n = 20
        i = Axis("i", n)
        x = np.repeat(given, n)
        args = (Load("x", _shifted(i, part * n), dtypes.uint32) for part in range(3))
        out = np.zeros(2 * n, np.uint32)
        stores = tuple(Store("out", _shifted(i, part * n), word) for part, word in enumerate(philox(*args)))
        body = (Loop(i, begin, end, "vector", stores, width),)
        call(kernel_of("philox", {"x": x}, {"out": out}, body), {"x": x}, {"out": out}, None, (0, n))
        assert (out == np.repeat(np.array(words, np.uint32), n)).all()


def _shifted(axis, offset):
    return axis + offset


def test_four_lanes_written_out_share_one_philox():
    """Of elements 4 i, ..., 4 i + 3 the counter is one, so that naming shared values leaves one chain of rounds."""
    i = Axis("i", 1000)
    key, count = (Load("x", ix.const(part), dtypes.uint32) for part in range(2))
    places = [i * 4 + part for part in range(4)]
    stores = tuple(Store("out", at, element_bits(key, count, at, 16, False)) for at in places)
    x, out = np.array([7, 11], np.uint32), np.zeros(64, np.uint32)
    kernel = kernel_of("bits", {"x": x}, {"out": out}, (Loop(i, begin, end, "serial", stores),))
    (loop,) = [stmt for stmt in normalise(kernel).body if isinstance(stmt, Loop)]
    products = [stmt for stmt in loop.body if isinstance(stmt, Let) and isinstance(stmt.value, Op)]
    assert sum(stmt.value.name == "mulhi" for stmt in products) == PHILOX_ROUNDS
    call(kernel, {"x": x}, {"out": out}, None, (0, 16))
    assert (out == random_bits(np.array([7, 11], np.uint32), 0, (64,), 16)).all()
