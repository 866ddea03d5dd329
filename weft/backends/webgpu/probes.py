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


def has_fused_multiply_add(driver: Any) -> bool:
    """Whether `fma` of float32 rounds once."""
    code = Code("probe_fma", "probe_fma", (), Geometry(1, 1), zlib.compress(_FUSED.encode()))
    (function,) = driver.load_kernels([code])
    pointer = driver.allocate(16)
    words = (ctypes.c_uint64 * 3)(pointer, _bits(1 + 2.0**-12), _bits(-1 - 2.0**-11))
    driver.make_launcher(function, 1, 1, 0, words, 1)()
    result = np.empty(1, np.float32)
    driver.download(result.ctypes.data, pointer, 4)
    driver.free(pointer)
    return bool(result[0] == 2.0**-24)


def _bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]
