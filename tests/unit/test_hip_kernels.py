"""Kernels of small programs compile for AMD GPUs: the quick part of tests/devices/test_hip_kernels.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

import weft
import weft.nn.functional as F
from tests.unit import hip_compilers
from tests.unit.fake_hip import FakeHip
from tests.unit.programs import PROGRAMS, results
from weft.kernels.ir.language import Kernel
from weft.render.clike import module as clike_module
from weft.render.dialects.hip import HIP, HIP_MFMA, HIP_WMMA
from weft.render.dialects.tables import CUDA

pytestmark = pytest.mark.unit
needs_hiprtc = pytest.mark.skipif(
    not hip_compilers.has_hiprtc(), reason="hiprtc is not installed: apt-get install hipcc"
)
needs_clang = pytest.mark.skipif(
    not hip_compilers.clang_version(), reason="no clang for AMD GPUs is installed: apt-get install hipcc"
)


def kernels_of(architecture: str, names=PROGRAMS) -> dict[str, Kernel]:
    """Those of the programs, and of products and attention in 16 bits, which use matrix units where there are any."""
    gpu = FakeHip(architecture)
    for name in names:
        results(PROGRAMS[name], gpu.device, small=True)
    with weft.device(gpu.device):
        for dtype in (weft.float16, weft.bfloat16):
            x = weft.zeros(1, 2, 40, 32, dtype=dtype, requires_grad=True)
            F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
            weft.eval(x.grad, x[0, 0] @ x[0, 1].T, x[0, 0].T @ x[0, 1])
    return gpu.kernels()


def assert_compiled(kernels: dict[str, Kernel], architecture: str) -> None:
    found = hip_compilers.complaints(kernels, [architecture])
    assert not found, "\n".join(found[:3])


@needs_hiprtc
@pytest.mark.parametrize("architecture", ["gfx90a", "gfx1030"])
def test_kernels_compile_by_hiprtc(architecture):
    kernels = kernels_of(architecture)
    assert {name.split("_")[0] for name in kernels} >= {"map", "rows", "cols", "split", "product", "attention"}
    assert_compiled(kernels, architecture)


@needs_clang
@pytest.mark.parametrize("architecture", ["gfx942", "gfx1100", "gfx1200"])
def test_kernels_compile_for_architectures_that_hiprtc_may_not_know(architecture):
    assert_compiled(kernels_of(architecture, ["functions", "narrow"]), architecture)


@pytest.mark.parametrize(("architecture", "call"), [("gfx90a", "mfma_f32_16x16x16bf16_1k"), ("gfx1100", "wmma_f32")])
def test_matrix_units_are_used(architecture, call):
    texts = [FakeHip(architecture).render(kernel).text for kernel in kernels_of(architecture, ()).values()]
    assert sum(call in text for text in texts) >= 4


def test_kernels_of_other_gpus_have_no_matrix_units():
    assert not any("tile_product" in clike_module.render(one, HIP) for one in kernels_of("gfx1030", ()).values())


@needs_hiprtc
def test_shared_memory_that_comes_with_a_launch():
    gpu = FakeHip("gfx90a")
    gpu.device = replace(gpu.device, limits=replace(gpu.device.limits, static_shared_bytes=1024), backend=gpu)
    with weft.device(gpu.device):
        weft.eval(weft.zeros(64, 64) @ weft.zeros(64, 64))
    kernels = {name: kernel for name, kernel in gpu.kernels().items() if kernel.geometry.shared}
    assert kernels
    assert_compiled(kernels, "gfx90a")


@needs_hiprtc
def test_complaints_are_seen():
    """Errors, warnings, and a compiler that ends its process."""
    text = 'extern "C" __global__ void halved(unsigned* x)\n{\n    x[0] /= 2u;\n}\n'
    assert hip_compilers.ask(text, "gfx90a") == ""
    assert "undeclared identifier" in hip_compilers.ask(text.replace("x[0]", "y[0]"), "gfx90a")
    assert "comparison result unused" in hip_compilers.ask(text.replace("/=", "=="), "gfx90a")
    assert hip_compilers.ask(text, "gfx9999")


def test_the_table_has_what_cudas_has():
    """A name that the renderer asks for, and that CUDA's table has, is in HIP's, unless AMD GPUs have no such thing."""
    units = {name for name in CUDA.functions if name.startswith("tile")}
    instructions = {"max_float32", "min_float32"}  # that propagate NaN
    assert set(CUDA.functions) - set(HIP.functions) == units | instructions
    assert set(HIP_MFMA.functions) - set(HIP.functions) == set(HIP_WMMA.functions) - set(HIP.functions) == units
    own_functions = {"exp", "log", "log1p", "expm1", "erf"}
    ours = {f"{name}_float32" for name in own_functions} | {"sqrt_float32"}
    assert set(CUDA.calls) - set(HIP.calls) == ours
