"""The functions of HIP's dialect, compiled for the host by clang and run there: conversions, copies, functions of
float32, and how operands of matrix units are loaded, against what AMD's manuals say of the instructions.

The host stands in for the GPU's reciprocal and power of two, which are accurate to 1 ulp there as here.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.unit import hip_compilers
from tests.unit.hip_on_cpu import compile_library
from weft.backends.hip import backend as hip_backend
from weft.base import dtypes
from weft.kernels.gpu.matrix_unit import Fragments
from weft.kernels.ir import index as ix
from weft.render.dialects.hip import HIP, HIP_MFMA, HIP_WMMA

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not hip_compilers.clang_version(), reason="clang is not installed: apt-get install hipcc"),
]
POINTER = ctypes.c_void_p
SIDE, STEP = 16, 24  # a tile, and the distance of its rows in a shared array

PRELUDE = """
#define __device__
#define __builtin_amdgcn_rcpf(a) (1.0f / (a))
#define __builtin_amdgcn_sqrtf(a) inexact_root(a)
static int error = 0;  // of the instruction, in ulp
static struct { unsigned x; } threadIdx;
static unsigned __float_as_uint(float a) { return __builtin_bit_cast(unsigned, a); }
static float __uint_as_float(unsigned a) { return __builtin_bit_cast(float, a); }
static int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
static float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
static float inexact_root(float a)
{
    const float root = __builtin_sqrtf(a);
    return root > 0.0f && root < __builtin_inff() ? __int_as_float(__float_as_int(root) + error) : root;
}
extern "C" void set_error(int ulp) { error = ulp; }
"""
EACH = """
extern "C" void all_{name}(const {source}* x, {target}* y, int n)
{{ for (int i = 0; i < n; i++) y[i] = {name}(x[i]); }}
"""
FORMS = {  # of functions of one number: (type of the argument, type of the result)
    "sqrt_float32": ("float", "float"),
    "tanh_float32": ("float", "float"),
    "logistic_float32": ("float", "float"),
    "exp_rounded_float32": ("float", "float"),
    "round_bfloat16_float32": ("float", "float"),
    "widen_float32": ("unsigned short", "float"),
    "narrow_bfloat16": ("float", "unsigned short"),
    "float32_of_float16": ("unsigned short", "float"),
    "float16_of_float32": ("float", "unsigned short"),
}
OTHERS = """
extern "C" void run_round_near(unsigned short* to, const float* from) { round_near<8>(to, from); }
extern "C" float run_widen_near(const unsigned short* a, int i) { return widen_near(a, i); }
extern "C" void run_copy_near(unsigned short* to, const unsigned short* from)
{ copy_near<unsigned short, 8>(to, from); }
extern "C" void run_fetch(float* to, const float* from, int valid) { fetch<4>(to, from, valid); }
extern "C" void run_fetch_near(float* to, const float* from) { fetch_near<4>(to, from); }
"""
LOAD = """
extern "C" void load_{name}(int lane, unsigned* to, const unsigned short* from, int step)
{{ threadIdx.x = lane; {name}(to, from, step); }}
"""
LOADS = ("tile_a", "tile_a_turned", "tile_b", "tile_b_turned")


@pytest.fixture(scope="module")
def library():
    functions = [text for name, text in HIP.functions.items() if not name.startswith("tile")]
    each = [EACH.format(name=name, source=source, target=target) for name, (source, target) in FORMS.items()]
    return compile_library("\n".join([PRELUDE, *functions, *each, OTHERS]))


def applied(library: ctypes.CDLL, name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty(len(x), {"float": np.float32, "unsigned short": np.uint16}[FORMS[name][1]])
    getattr(library, f"all_{name}")(x.ctypes.data_as(POINTER), y.ctypes.data_as(POINTER), len(x))
    return y


def all_bits(dtype: dtypes.DType) -> np.ndarray:
    """Every number of a 16-bit dtype."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)


def floats() -> np.ndarray:
    """Numbers of all sizes, ties between 16-bit floats, infinities and NaN."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    with np.errstate(all="ignore"):
        near = np.concatenate([all_bits(dtypes.float16).astype("f"), all_bits(dtypes.bfloat16).astype("f")])
        ties = (near.astype("d")[:-1] + near.astype("d")[1:]).astype("f") / 2
    return np.concatenate([bits.view("f"), near, ties, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], "f")])


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal, with any NaN for NaN."""
    bits = f"u{found.dtype.itemsize}"
    same = (found.view(bits) == expected.view(bits)) | (np.isnan(found) & np.isnan(expected))
    assert same.all(), (found[~same][:4], expected[~same][:4])


def test_16_bit_floats(library):
    x = floats()
    for dtype, rounds in ((dtypes.float16, "float16_of_float32"), (dtypes.bfloat16, "round_bfloat16_float32")):
        with np.errstate(all="ignore"):
            expected = x.astype(dtype.numpy)
        found = applied(library, rounds, x)
        if dtype is dtypes.bfloat16:
            found = applied(library, "narrow_bfloat16", found)
        assert_same_bits(found.view(dtype.numpy).astype("f"), expected.astype("f"))
    for dtype, widens in ((dtypes.float16, "float32_of_float16"), (dtypes.bfloat16, "widen_float32")):
        bits = all_bits(dtype)
        assert_same_bits(applied(library, widens, bits.view(np.uint16)), bits.astype("f"))


def test_vectors_of_16_bit_floats(library):
    x = floats()[:4096]
    for start in range(0, len(x), 8):
        target = np.zeros(8, np.uint16)
        library.run_round_near(target.ctypes.data_as(POINTER), x[start:].ctypes.data_as(POINTER))
        with np.errstate(all="ignore"):
            expected = x[start : start + 8].astype(dtypes.bfloat16.numpy).astype("f")
        assert_same_bits(target.view(dtypes.bfloat16.numpy).astype("f"), expected)
    library.run_widen_near.restype = ctypes.c_float
    assert library.run_widen_near(target.ctypes.data_as(POINTER), 5) == expected[5]


def test_copies(library):
    source, target = np.arange(16, dtype=np.uint16), np.zeros(8, np.uint16)
    library.run_copy_near(target.ctypes.data_as(POINTER), source[8:].ctypes.data_as(POINTER))
    assert (target == source[8:]).all()
    numbers = np.arange(1, 17, dtype="f")
    numbers = numbers[-numbers.ctypes.data // 4 % 4 :][:8].copy()
    for skew in (0, 1):
        for valid in range(5):
            out = np.full(4, 77, "f")
            library.run_fetch(out.ctypes.data_as(POINTER), numbers[skew:].ctypes.data_as(POINTER), valid)
            assert (out == np.where(np.arange(4) < valid, numbers[skew : skew + 4], 0)).all()


@pytest.mark.parametrize("error", [-1, 0, 1])
def test_square_roots_round_correctly(library, error):
    """Whatever the instruction, which is accurate to 1 ulp, gives."""
    x = np.abs(floats())
    rng = np.random.default_rng(2)
    roots = rng.uniform(1, 2, 100_000).astype("f")
    with np.errstate(all="ignore"):
        x = np.concatenate([x, roots * roots, np.nextafter(roots * roots, 9, dtype="f"), [-0.0]]).astype("f")
    library.set_error(error)
    assert_same_bits(applied(library, "sqrt_float32", x), np.sqrt(x))
    assert np.isnan(applied(library, "sqrt_float32", np.array([-1.0, -np.inf], "f"))).all()


@pytest.mark.parametrize(
    ("name", "exact", "ulps"),
    [("tanh_float32", np.tanh, 2.0), ("exp_rounded_float32", np.exp, None), ("logistic_float32", None, None)],
)
def test_functions_of_float32(library, name, exact, ulps):
    """Within the bounds that the kernel language demands of native functions."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-30, 30, 100_000), rng.uniform(-1, 1, 100_000), [0.0, -0.0]]).astype("f")
    wide = x.astype("d")
    expected = 1 / (1 + np.exp(-wide)) if exact is None else exact(wide)
    found = applied(library, name, x).astype("d")
    if exact is None:  # 4 ulp of 1
        assert np.abs(found - expected).max() <= 4 * 2**-23
    elif ulps is None:  # its argument may be rounded once more
        assert (np.abs(found / expected - 1) <= (2 + np.abs(wide) * 1.5) * 2**-23).all()
    else:
        assert (np.abs(found - expected) <= ulps * np.spacing(np.abs(expected).astype("f"))).all()
    ends = applied(library, name, np.array([np.inf, -np.inf, np.nan], "f"))
    wanted = {"tanh_float32": [1, -1], "exp_rounded_float32": [np.inf, 0], "logistic_float32": [1, 0]}[name]
    assert ends[:2].tolist() == wanted and np.isnan(ends[2])


# --- matrix units ----------------------------------------------------------------------------------------------------

# What a lane holds, of AMD's manuals: k of its `element` along the row (A) or column (B) number lane % 16, and the row
# of its sum number `element` in column lane % 16.
UNITS = {
    "mfma": (HIP_MFMA, hip_backend.MFMA, lambda lane, e: 4 * (lane // 16) + e, lambda lane, e: 4 * (lane // 16) + e),
    "wmma": (HIP_WMMA, hip_backend.WMMA, lambda lane, e: e, lambda lane, e: 2 * e + lane // 16),
}


@pytest.mark.parametrize("name", UNITS)
def test_operands_are_loaded_as_the_unit_expects_them(name):
    dialect, unit, k_of, _ = UNITS[name]
    texts = [dialect.functions[load] + "\n" + LOAD.format(name=load) for load in LOADS]
    library = compile_library("\n".join([PRELUDE, *texts]))
    fragments = Fragments(unit)
    matrix = np.arange(SIDE * SIDE, dtype=np.uint16).reshape(SIDE, SIDE)  # [row or column, k]
    for load in LOADS:
        memory = np.zeros((SIDE, STEP), np.uint16)
        memory[:, :SIDE] = matrix.T if load.endswith("turned") else matrix
        for lane in range(unit.lanes):
            words = np.zeros(fragments.words, np.uint32)
            place = memory.ctypes.data_as(POINTER)
            getattr(library, f"load_{load}")(lane + 3 * unit.lanes, words.ctypes.data_as(POINTER), place, STEP)
            held = words.view(np.uint16)
            assert held.tolist() == [matrix[lane % 16, k_of(lane, e)] for e in range(len(held))], (load, lane)


@pytest.mark.parametrize("name", UNITS)
def test_sums_are_where_the_unit_leaves_them(name):
    _, unit, _, row_of = UNITS[name]
    fragments = Fragments(unit)
    places = set()
    for lane in range(unit.lanes):
        for element in range(fragments.sums):
            row, column = fragments.position(ix.const(lane), ix.const(element))
            assert (row.const, column.const) == (row_of(lane, element), lane % 16)
            places.add((row.const, column.const))
    assert len(places) == SIDE * SIDE
