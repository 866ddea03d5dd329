"""What a device of wgpu does where WGSL leaves it open, found out by running a small kernel."""

from __future__ import annotations

import ctypes
import struct
import zlib
from typing import Any

import numpy as np

from weft.kernels.ir.language import Geometry
from weft.plan.plan import Code

# (1 + 2**-12)**2 - 1 - 2**-11 is 2**-24 where the product is not rounded, else 0.
_FUSED = """@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read_write> found: array<f32>;

@compute @workgroup_size(1)
fn probe_fma() {
    let a = bitcast<f32>(arguments[0].z);
    found[0] = fma(a, a, bitcast<f32>(arguments[1].x));
}
"""

# Quotients of the first half by the second, and square roots of the second.
_DIVISION = """@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, 1>;
@group(0) @binding(1) var<storage, read_write> found: array<f32>;

@compute @workgroup_size(1)
fn probe_division() {
    for (var i: u32 = 0u; i < arguments[0].z; i++) {
        let divisor = found[arguments[0].z + i];
        found[i] = found[i] / divisor;
        found[arguments[0].z + i] = sqrt(divisor);
    }
}
"""
QUOTIENTS = 256  # of which some are wrong where division does not round to nearest


def has_fused_multiply_add(driver: Any) -> bool:
    """Whether `fma` of float32 rounds once."""
    found = _run(driver, "probe_fma", _FUSED, np.zeros(1, np.float32), _bits(1 + 2.0**-12), _bits(-1 - 2.0**-11))
    return bool(found[0] == 2.0**-24)


def has_rounded_division(driver: Any) -> bool:
    """Whether quotients and square roots of float32 are rounded to nearest."""
    dividends, divisors = np.random.default_rng(0).uniform(0.5, 2.0, (2, QUOTIENTS)).astype(np.float32)
    expected = np.concatenate([dividends / divisors, np.sqrt(divisors)])
    found = _run(driver, "probe_division", _DIVISION, np.concatenate([dividends, divisors]), QUOTIENTS)
    return bool((found == expected).all())


def _run(driver: Any, name: str, text: str, values: np.ndarray, *arguments: int) -> np.ndarray:
    """What a kernel makes of float32 `values`."""
    (function,) = driver.load_kernels([Code(name, name, (), Geometry(1, 1), zlib.compress(text.encode()))])
    values, pointer = values.copy(), driver.allocate(values.nbytes)
    driver.upload(pointer, values.ctypes.data, values.nbytes)
    words = (ctypes.c_uint64 * (1 + len(arguments)))(pointer, *arguments)
    driver.make_launcher(function, 1, 1, 0, words, 1)()
    driver.download(values.ctypes.data, pointer, values.nbytes)
    driver.free(pointer)
    return values


def _bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]
