"""Every kernel that the records, the programs and the networks make for AMD GPUs compiles to machine code, without a
warning: for gfx90a (subgroups of 64 lanes, MFMA) and gfx1030 (32 lanes) by hiprtc, and those of the networks by clang
for architectures that HIP 5.2 does not know. Those of the layers' records are compiled for gfx90a; the layers are
listed in tests/layers/devices.json. None of them has been run.

Kernels of all records are collected once for each architecture and compiled together, each once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.devices.layer_runs import FIRST, RECORDS, assert_all_listed, call, train
from tests.devices.named_tests import NAMED, run
from tests.layers import executed_layers
from tests.records import GROUPS
from tests.records.cases import cases
from tests.records.lowering import lower
from tests.unit import hip_compilers
from tests.unit.fake_hip import FakeHip
from tests.unit.networks import NETWORKS, Training
from tests.unit.programs import PROGRAMS, results
from weft.base import dtypes
from weft.kernels.gpu import schedule as gpu_schedule
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.nest import copy_nest
from weft.kernels.ir.normalize import normalise
from weft.render.clike import module as clike_module

needs_hiprtc = pytest.mark.skipif(
    not hip_compilers.has_hiprtc(), reason="hiprtc is not installed: apt-get install hipcc"
)
needs_clang = pytest.mark.skipif(
    not hip_compilers.clang_version(), reason="no clang for AMD GPUs is installed: apt-get install hipcc"
)


def by_architecture(test: Callable[..., None]) -> Callable[..., None]:
    """For subgroups of 64 lanes with MFMA, and of 32."""
    return needs_hiprtc(pytest.mark.parametrize("architecture", ["gfx90a", "gfx1030"])(test))


def network_kernels(gpu: FakeHip) -> dict[str, Kernel]:
    """Those of whole programs and of training steps in float32 and bfloat16."""
    for program in PROGRAMS.values():
        for small in (True, False):
            results(program, gpu.device, small)
    with weft.device(gpu.device):
        for name in NETWORKS:
            for narrow in (None, weft.bfloat16):
                Training(name, narrow=narrow).step()
    copies = [normalise(gpu_schedule.schedule(copy_nest(dtype))) for dtype in dtypes.ALL]
    return gpu.kernels() | {clike_module.symbol(kernel, gpu.dialect): kernel for kernel in copies}


def assert_compiled(kernels: dict[str, Kernel], architecture: str) -> None:
    found = hip_compilers.complaints(kernels, [architecture])
    assert not found, "\n".join(found[:3])


@by_architecture
def test_kernels_of_all_records(architecture):
    gpu = FakeHip(architecture)
    with weft.device(gpu.device):
        for group in GROUPS.values():
            for record in group:
                for case in cases(record):
                    lower(case)
    kernels = gpu.kernels()
    assert len(kernels) > 5000
    assert_compiled(kernels, architecture)


@needs_hiprtc
def test_kernels_of_all_layers(record_property: Callable[[str, Any], None]):
    """Results and gradients of every record, a compiled step of every layer."""
    gpu = FakeHip("gfx90a")
    for record in RECORDS:
        call(record, gpu.device)
    for record in FIRST:
        train(record, gpu.device)
    kernels = gpu.kernels()
    assert len(kernels) > 1500
    assert_compiled(kernels, "gfx90a")
    record_property(executed_layers.PROPERTY, {
        "backend": "hip", "device": "gfx90a, by hiprtc", "executed": False,
        "layers": sorted(record.name for record in FIRST), "failed": [],
    })  # fmt: skip


@by_architecture
def test_kernels_of_named_tests(architecture: str):
    """Of kernels in docs/kernels.md without a record: updates of optimizers, fused kernels."""
    gpu = FakeHip(architecture)
    for test in NAMED:
        before = len(gpu.driver.log)
        with contextlib.suppress(AssertionError):  # up to where the test looks at numbers, which are not computed
            run(test, gpu.device)
        assert "launch" in gpu.driver.log[before:], test
    assert_compiled(gpu.kernels(), architecture)


@needs_hiprtc
def test_all_layers_are_listed(request: pytest.FixtureRequest):
    assert_all_listed("hip", request.config)
    assert not executed_layers.entry("hip")["executed"]


@by_architecture
def test_kernels_of_programs_and_networks(architecture):
    kernels = network_kernels(FakeHip(architecture))
    forms = {name.split("_")[0] for name in kernels}
    assert forms >= {"map", "rows", "cols", "split", "scatter", "segment", "product"} and len(kernels) > 60
    assert_compiled(kernels, architecture)


@needs_clang
@pytest.mark.parametrize("architecture", ["gfx942", "gfx1100", "gfx1200"])
def test_kernels_of_networks_for_newer_architectures(architecture):
    assert_compiled(network_kernels(FakeHip(architecture)), architecture)
