"""Shared memory of CUDA kernels: what their code declares and what their launches ask for count together.

The bindings refuse what NVIDIA's driver refuses: a launch of more than 48 KB without permission, and permission for
more than a block can have.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import zlib

import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are not installed: pip install 'weft[cuda-compile]'")

import weft
from tests.unit import norm_sweep
from tests.unit.fake_bindings import OPT_IN, Bindings, declared_bytes
from tests.unit.norm_sweep import Case
from weft.backends.cuda import backend as cuda_backend
from weft.backends.cuda import compile as cuda_compile
from weft.backends.cuda import driver as cuda_driver
from weft.backends.cuda.driver import CudaDriver
from weft.backends.registry import _loaded
from weft.compiler import realize
from weft.errors import DeviceError
from weft.kernels.ir.language import Geometry
from weft.plan.plan import Code

pytestmark = pytest.mark.unit


@pytest.fixture
def bindings(monkeypatch):
    """NVIDIA's driver without a GPU; kernels are "compiled" to their text."""
    made = Bindings()
    monkeypatch.setattr(cuda_driver, "_cuda", lambda: made)
    monkeypatch.setattr(cuda_driver, "_current", threading.local())
    monkeypatch.setattr(cuda_backend, "LIBRARIES", ())
    monkeypatch.setattr(cuda_compile, "cubins", lambda codes, architecture: [code.text.encode() for code in codes])
    monkeypatch.delitem(_loaded, "cuda", raising=False)
    yield made
    _loaded.pop("cuda", None)
    realize._plans.clear()  # which hold the device
    gc.collect()


def launches(bindings: Bindings) -> list[tuple[int, int]]:
    """(declared, asked for) of each launch so far."""
    return [(bindings.declared[call[1]], call[8]) for call in bindings.named("cuLaunchKernel")]


# --- the driver ---


def kernel(declared: int, asked: int) -> Code:
    text = f"__shared__ __align__(16) float sums[{declared // 4}];" if declared else "nothing"
    return Code("k", f"k_{declared}_{asked}", (), Geometry(64, 1, asked), zlib.compress(text.encode()))


@pytest.mark.parametrize("declared", [0, 16, 16384, 49152])
@pytest.mark.parametrize("asked", [0, 16, 32768, 32784, 49152, 49168, OPT_IN - 49152])
def test_launches_within_the_limit(bindings, declared, asked):
    driver = CudaDriver(0)
    (function,) = driver.load_kernels([kernel(declared, asked)])
    driver.make_launcher(function, 1, 64, asked, (ctypes.c_uint64 * 2)(), 1)()
    assert launches(bindings) == [(declared, asked)]
    assert bool(bindings.named("cuFuncSetAttribute")) == (asked > 0 and declared + asked > 49152)


def test_more_than_a_workgroup_can_have_is_reported_when_the_kernel_is_loaded(bindings):
    with pytest.raises(DeviceError, match=r"k: given a kernel that A GPU does not load(.|\n)*INVALID_VALUE"):
        CudaDriver(0).load_kernels([kernel(16384, OPT_IN - 16384 + 16)])


def test_declared_bytes_of_a_kernel():
    text = "__shared__ __align__(16) float a[5];\n__shared__ __align__(16) unsigned char b[17];\nfloat c[9];"
    assert declared_bytes(text) == 32 + 32


# --- kernels ---

SWEEP = [
    *norm_sweep.cases((8192,), (17, 384, 768, 1024), ("float32",)),
    *norm_sweep.cases((8192,), (129, 768), ("bfloat16",)),
    *norm_sweep.cases((1, 300), (64, 1025, 2048, 5120, 16383), ("float32",)),
    *norm_sweep.cases((300,), (1536, 4099, 16384), ("float16",)),
]


@pytest.mark.parametrize("width", sorted({case.width for case in SWEEP}))
def test_norms_of_many_shapes_are_launched(bindings, width):
    with weft.device("cuda"):
        for case in SWEEP:
            if case.width == width:
                norm_sweep.run(case, norm_sweep.arrays(case))
    found = launches(bindings)
    assert found and all(declared + asked <= OPT_IN for declared, asked in found)


def test_a_pool_beside_declared_arrays(bindings):
    """What failed on an H200: neither is large, both together are."""
    with weft.device("cuda"):
        case = Case(8192, 768, "layer_norm", "alone", "float32")
        norm_sweep.run(case, norm_sweep.arrays(case))
    assert any(declared and 0 < asked <= 49152 < declared + asked for declared, asked in launches(bindings))
