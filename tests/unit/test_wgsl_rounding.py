"""What compilers of WGSL must not see, because they would compute something else: NaN, zeros, products before they are
rounded. Quotients that a device does not round, and how shared memory is read. Texts, and small kernels on wgpu's
device where there is one.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from tests.unit.test_wgsl import Collector
from weft.backends.webgpu import probes
from weft.base import dtypes
from weft.kernels.ir.language import Literal, Op, Var
from weft.render.wgsl.functions import FUNCTIONS
from weft.render.wgsl.operations import Extensions, Operations

F32, F64 = dtypes.float32, dtypes.float64
A, B, C = (Var(name, F32) for name in "abc")


def lines_of(function, *arrays: np.ndarray) -> list[str]:
    """The lines of all kernels of a function of tensors."""
    collector = Collector()
    weft.eval(function(*[weft.tensor(array, device=collector.device) for array in arrays]))
    return [line.strip() for text in collector.texts.values() for line in text.splitlines()]


def defined(operations: Operations, name: str, *args, op: str = "add") -> str:
    return operations.define(name, Op(op, args, args[-1].dtype))


# --- texts -----------------------------------------------------------------------------------------------------------


def test_a_product_is_rounded_before_it_is_added():
    operations = Operations(Extensions())
    defined(operations, "product", A, B, op="mul")
    operations.define("negative", Op("neg", (Var("product", F32),), F32))
    assert defined(operations, "one", Var("product", F32), C) == "hide_f32(product) + c"
    assert defined(operations, "two", C, Var("negative", F32), op="sub") == "c - hide_f32(negative)"
    assert operations.combine("sum", "product", "total", F32) == "hide_f32(product) + total"
    operations.define("size", Op("abs", (Var("product", F32),), F32))
    assert defined(operations, "of_size", Var("size", F32), C) == "hide_f32(size) + c"
    assert operations.combine("prod", "product", "total", F32) == "hide_f32(product) * total"
    defined(operations, "fused", A, B, C, op="fma")
    for number, choices in enumerate((("product", "fused"), ("fused", "product"))):
        condition = Var("valid", dtypes.bool_)
        operations.define(f"one{number}", Op("select", (condition, *[Var(one, F32) for one in choices]), F32))
        assert defined(operations, f"two{number}", Var(f"one{number}", F32), Var("d", F32)).startswith("hide_f32(")
    operations.define("masked", Op("select", (Var("valid", dtypes.bool_), Var("product", F32), C), F32))
    assert operations.combine("sum", "masked", "total", F32) == "hide_f32(masked) + total"
    assert operations.combine("sum", "a", "total", F32) == "a + total"
    assert defined(operations, "three", A, B) == "a + b"


def test_sums_are_not_rearranged():
    operations = Operations(Extensions())
    defined(operations, "difference", A, B, op="sub")
    assert defined(operations, "smaller", Var("difference", F32), C, op="sub") == "hide_f32(difference) - c"
    assert operations.combine("sum", "difference", "total", F32) == "hide_f32(difference) + total"
    defined(operations, "fused", A, B, C, op="fma")
    assert defined(operations, "plain", Var("fused", F32), A) == "hide_f32(fused) + a"  # a is a part of it
    assert defined(operations, "other", Var("fused", F32), Var("d", F32)) == "fused + d"


def test_bits_of_a_sum_are_those_of_the_sum():
    """Exponentials round by adding a large number, whose bits are the integer: both have to be of one sum."""
    operations = Operations(Extensions())
    defined(operations, "shifted", A, B, C, op="fma")
    bits = Op("bitcast", (Var("shifted", F32),), dtypes.int32)
    assert operations.define("bits", bits) == "bitcast<i32>(hide_f32(shifted))"
    assert operations.define("plain", Op("bitcast", (A,), dtypes.int32)) == "bitcast<i32>(a)"


def test_long_chains_of_choices_remember_each_product_once():
    operations = Operations(Extensions())
    defined(operations, "size0", A, B, op="mul")
    for number in range(60):
        last, condition = Var(f"size{number}", F32), Var("valid", dtypes.bool_)
        operations.define(f"size{number + 1}", Op("select", (condition, last, last), F32))
    assert defined(operations, "total", Var("size60", F32), C) == "hide_f32(size60) + c"


def test_factors_are_not_exchanged():
    """(a * 0.5) * a is finite where (a * a) * 0.5 is not."""
    operations = Operations(Extensions())
    defined(operations, "half", A, Literal(0.5, F32), op="mul")
    assert defined(operations, "large", Var("half", F32), A, op="mul") == "hide_f32(half) * a"


def test_a_difference_of_equal_numbers_and_a_quotient_of_zeros_are_computed():
    operations = Operations(Extensions())
    assert defined(operations, "none", A, A, op="sub") == "hide_f32(a) - a"
    assert defined(operations, "undefined", A, Literal(0.0, F32), op="div") == "a / hide_f32(0.0f)"


def test_quotients_products_and_roots_are_not_joined():
    operations = Operations(Extensions())
    defined(operations, "ratio", A, B, op="div")
    operations.define("root", Op("sqrt", (A,), F32))
    defined(operations, "product", A, B, op="mul")
    one = Literal(1.0, F32)
    assert defined(operations, "back", one, Var("ratio", F32), op="div") == "1.0f / hide_f32(ratio)"
    assert defined(operations, "times", Var("ratio", F32), B, op="mul") == "hide_f32(ratio) * b"
    assert defined(operations, "by", Var("product", F32), B, op="div") == "hide_f32(product) / b"
    assert defined(operations, "size", Var("root", F32), op="abs") == "abs(hide_f32(root))"
    assert defined(operations, "plain", one, A, op="div") == "1.0f / a"
    assert operations.combine("sum", "ratio", "total", F32) == "hide_f32(ratio) + total"


def test_two_operands_are_hidden_by_different_zeros():
    """Else they were equal for a compiler that found them equal before."""
    operations = Operations(Extensions(), "first", "second", "third")
    defined(operations, "one", A, B, op="mul")
    defined(operations, "two", B, A, op="mul")
    text = defined(operations, "none", Var("one", F32), Var("two", F32), op="sub")
    assert text == "hide_f32(one) - hide_f32_1(two)"
    assert "u32(first)" in operations.helpers["hide_f32"] and "u32(second)" in operations.helpers["hide_f32_1"]


def test_numbers_that_are_equal_by_choice_or_sign_are_subtracted():
    operations = Operations(Extensions())
    operations.define("chosen", Op("select", (Var("valid", dtypes.bool_), A, B), F32))
    assert defined(operations, "none", Var("chosen", F32), B, op="sub") == "hide_f32(chosen) - b"
    operations.define("negative", Op("neg", (A,), F32))
    assert defined(operations, "zero", A, Var("negative", F32)) == "hide_f32(a) + negative"


def test_numbers_made_of_conditions_are_hidden():
    """Compilers make a choice between `a` and 0 of a product (0 for NaN and a mask), and -0 of the 0 of a choice
    between 0 and -1."""
    operations = Operations(Extensions(), "first", "second", "third")
    valid = Var("valid", dtypes.bool_)
    assert operations.define("mask", Op("cast", (valid,), F32)) == "hide_f32_2(f32(valid))"
    chosen = Op("select", (valid, Literal(1.0, F32), Literal(0.0, F32)), F32)
    assert operations.define("chosen", chosen) == "select(hide_f32_2(0.0f), hide_f32_1(1.0f), valid)"


def test_a_choice_of_what_is_compared_is_no_maximum():
    operations = Operations(Extensions())
    operations.define("less", Op("lt", (A, B), dtypes.bool_))
    less = Var("less", dtypes.bool_)
    assert operations.define("larger", Op("select", (less, B, A), F32)) == "select(a, hide_f32(b), less)"
    assert operations.define("smaller", Op("select", (less, A, B), F32)) == "select(b, hide_f32(a), less)"
    assert operations.define("other", Op("select", (less, A, C), F32)) == "select(c, a, less)"


def test_nan_is_found_by_bits_that_no_compiler_knows():
    x = np.ones(4, np.float32)
    found = [line for line in lines_of(lambda x: x.maximum(x.flip(0)), x) if line.startswith("fn is_nan_float32")]
    assert found and all(re.search(r"bitcast<u32>\(a\) \^ arguments\[\d\]", line) for line in found)


def test_infinity_of_float64_is_no_constant():
    text = Operations(Extensions(int64=True, float64=True), "arguments[3].y").literal(float("inf"), F64)
    assert text == "bitcast<f64>(0x7ff0000000000000lu ^ u64(arguments[3].y))"


def test_lower_bounds_are_hidden():
    """NVIDIA's compiler for Vulkan takes 0 <= i for granted in 0 <= i && i < b where 0 <= i && i <= a was found to be
    false: the element before a row that begins inside of a vector was added to the row's sum."""
    operations = Operations(Extensions())
    index, bound = Var("i", dtypes.int32), Literal(9, dtypes.int32)
    lower = operations.define("lower", Op("le", (Literal(0, dtypes.int32), index), dtypes.bool_))
    assert lower == "0i <= hide_i32(i)"
    assert operations.define("upper", Op("lt", (index, bound), dtypes.bool_)) == "i < 9i"


def test_rests_of_negative_integers_take_no_remainder():
    """Vulkan leaves it undefined."""
    x, y = np.arange(-3, 3, dtype=np.int32), np.arange(1, 7, dtype=np.int32)
    for function in (lambda x, y: x % y, lambda x, y: x // y, weft.fmod):
        assert not [line for line in lines_of(function, x, y) if " % " in line]


def test_products_read_shared_memory_by_vectors_and_fence_no_buffers():
    factor = np.ones((64, 64), np.float32)
    lines = lines_of(lambda x, y: x @ y, factor, factor)
    assert [line for line in lines if re.match(r"var<workgroup> [ab]_tile: array<vec4<f32>, \d+>;", line)]
    assert [line for line in lines if re.match(r"let a_tile_word\d+_0 = a_tile\[", line)]
    assert any("workgroupBarrier" in line for line in lines)
    assert not any("storageBarrier" in line for line in lines)


# --- division --------------------------------------------------------------------------------------------------------


def test_a_device_that_rounds_is_not_corrected():
    for fused, rounded, name in ((True, False, "div_rounded(a, b)"), (True, True, "a / b"), (False, False, "a / b")):
        extensions = Extensions(fused_multiply_add=fused, rounded_division=rounded)
        assert defined(Operations(extensions), "ratio", A, B, op="div") == name


@pytest.fixture
def device():
    found = webgpu_devices.device()
    if not found.backend.extensions.float64:
        pytest.skip("the device has no float64 to stand for an operation that rounds once")
    return found


def corrected(driver, name: str, wrong: str, values: np.ndarray) -> np.ndarray:
    """What `div_rounded` and `sqrt_rounded` make of numbers that are `wrong` at first; `fma` rounds once."""
    text = "\n".join([FUNCTIONS["div_rounded"], FUNCTIONS["sqrt_rounded"]])
    for exact in ("hide_f32(hide_f32(a) / b)", "hide_f32(sqrt(a))", "1.0f / b", "0.5f / first"):
        assert text.count(exact) == 1
        text = text.replace(exact, f"({exact}) * {wrong}")
    text = re.sub(r"\bfma\(", "fma_fused(", text)
    text = "\n".join(["fn hide_f32(a: f32) -> f32 { return a; }", FUNCTIONS["fma_fused"], text])
    kernel = probes._DIVISION.replace("probe_division", name)
    kernel = kernel.replace("found[i] / divisor", "div_rounded(found[i], divisor)")
    kernel = kernel.replace("sqrt(divisor)", "sqrt_rounded(divisor)")
    return probes._run(driver, name, f"{kernel}\n{text}", values, len(values) // 2)


@pytest.mark.parametrize("wrong", ["1.0f", "1.0000002f", "0.9999998f"])
def test_quotients_and_roots_are_corrected(device, wrong):
    """Wherever results are neither very small nor very large; zeros, infinities and NaN stay what they are."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, 4000)) * 10.0 ** rng.integers(-12, 12, (2, 4000))).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3e38, 7e37, 1e-37], np.float32)
    a, b = np.append(a, np.repeat(special, len(special))), np.append(np.abs(b), np.tile(np.abs(special), len(special)))
    name = f"corrected_{wrong.replace('.', '_')}"
    found = corrected(device.backend.driver, name, wrong, np.concatenate([a, b]))
    with np.errstate(all="ignore"):
        ratio, root = a / b, np.sqrt(b)
        regular = (np.abs(ratio) > 1e-30) & (np.abs(ratio) < 1e30) & (np.abs(a) > 1e-30) & (np.abs(b) < 8e37)
    np.testing.assert_array_equal(found[: len(a)][regular], ratio[regular])
    extreme = ~regular & (np.isnan(ratio) | np.isinf(ratio) | (ratio == 0))
    np.testing.assert_array_equal(found[: len(a)][extreme], ratio[extreme])
    regular = (b > 1e-30) & (b < 1e38)
    np.testing.assert_array_equal(found[len(a) :][regular], root[regular])


def test_the_probe_tells_devices_apart(device, monkeypatch):
    driver = device.backend.driver
    text = probes._DIVISION.replace("probe_division", "inexact").replace(" / divisor", " * (1.0f / divisor)")
    monkeypatch.setattr(probes, "_DIVISION", text)
    real = probes._run
    monkeypatch.setattr(probes, "_run", lambda driver, name, *rest: real(driver, "inexact", *rest))
    assert not probes.has_rounded_division(driver)
