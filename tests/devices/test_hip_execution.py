"""Kernels for AMD GPUs, executed on the CPU: the text that hiprtc would get, compiled by clang for this processor with
what stands for AMD's builtins (tests/unit/hip_on_cpu.h). For subgroups of 64 lanes with MFMA and of 32 with WMMA."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import weft
from tests.devices.layer_runs import FIRST, differences_from_cpu, in_parts, train
from tests.devices.record_runs import assert_agrees_with_reference, by_part
from tests.layers.record import LayerRecord
from tests.unit import hip_compilers
from tests.unit.hip_on_cpu import CompiledHip, load_functions
from tests.unit.programs import PROGRAMS, assert_equal_results, expected_results, results
from weft.plan.device import Device

pytestmark = pytest.mark.skipif(hip_compilers.CLANG is None, reason="no clang is installed: apt-get install hipcc")


@functools.cache
def device_of(architecture: str) -> Device:
    return CompiledHip(architecture).device


@pytest.fixture(params=["gfx90a", "gfx1100"])
def compiled(request: pytest.FixtureRequest) -> Device:
    """A device for each kind of matrix unit. The random stream starts anew."""
    weft.manual_seed(0)
    return device_of(request.param)


@by_part
def test_records_agree_with_the_reference(group: str, first: int):
    weft.manual_seed(0)
    assert_agrees_with_reference(group, first, device_of("gfx90a"))


@in_parts(FIRST)
@pytest.mark.usefixtures("quick_code")
def test_compiled_steps_of_layers_agree_with_the_cpu(part: list[LayerRecord]):
    failures = differences_from_cpu(train, part, device_of("gfx90a"))
    assert not failures, "\n".join(failures.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, compiled: Device):
    assert_equal_results(results(PROGRAMS[name], compiled, small=True), expected_results(name, small=True))


@pytest.mark.parametrize("shape", [(40, 33, 70), (16, 16, 16), (129, 65, 1)])
@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16], ids=lambda dtype: dtype.name)
def test_products_by_matrix_units(shape: tuple[int, int, int], dtype: weft.dtype, compiled: Device):
    rows, inner, columns = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(one, dtype=np.float32) for one in ((rows, inner), (inner, columns)))
    x, y = (weft.tensor(one, device=compiled, dtype=dtype) for one in (a, b))
    for left, right in ((x, y), (x.T.contiguous().T, y.T.contiguous().T)):
        expected = left.float().numpy() @ right.float().numpy()
        np.testing.assert_allclose((left @ right).float().numpy(), expected, weft.finfo(dtype).eps, 1e-2)
    texts = [compiled.backend.render(kernel).text for kernel in list(compiled.backend.driver.kernels.values())]
    assert any("__builtin_amdgcn_mfma" in text or "__builtin_amdgcn_wmma" in text for text in texts)


HALVES_DIFFER = """typedef _Float16 Operand __attribute__((ext_vector_type(16)));
typedef float Sums __attribute__((ext_vector_type(8)));
Operand a = {(_Float16)(int)threadIdx.x}, b = {};
Sums sums = {};
to[threadIdx.x] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, sums)[0];"""
UNDEFINED = {
    "if (threadIdx.x < 3) __syncthreads();": "not all lanes reach a barrier",
    "if (threadIdx.x < 40) to[threadIdx.x] = __shfl_xor(1.0f, 1);": "not all lanes reach .* an exchange",
    HALVES_DIFFER: "both halves of a subgroup",
}


@pytest.mark.parametrize("body", UNDEFINED)
def test_what_hardware_does_not_define_is_an_error(body: str):
    text = f'extern "C" __global__ void wrong(float* to) {{ {body} }}\n'
    (launch,) = load_functions(text, ["wrong"], 32).values()
    to = np.zeros(64, np.float32)
    with pytest.raises(AssertionError, match=UNDEFINED[body]):
        launch([np.uint64(to.ctypes.data)], 1, 64)


def test_lanes_of_a_subgroup_exchange_values():
    text = """extern "C" __global__ void exchange(int* to)
{ to[threadIdx.x] = __shfl_xor((int)threadIdx.x, 5) * 1000 + __shfl((int)threadIdx.x, 33); }
"""
    for lanes, source in ((64, 33), (32, 1)):
        (launch,) = load_functions(text, ["exchange"], lanes).values()
        to, lane = np.zeros(128, np.int32), np.arange(128)
        launch([np.uint64(to.ctypes.data)], 1, 128)
        np.testing.assert_array_equal(to, (lane ^ 5) * 1000 + lane // lanes * lanes + source)
