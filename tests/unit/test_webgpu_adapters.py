"""The adapters that wgpu lists: their order; those with less than kernels need are refused, with name and limit."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from weft.backends.webgpu import backend as webgpu
from weft.base.errors import DeviceError


def make_adapter(**limits: int) -> Any:
    """An adapter with WebGPU's guaranteed limits but for these."""
    changed = {name.replace("_", "-"): value for name, value in limits.items()}
    info = {"device": "Old GPU", "backend_type": "Vulkan", "adapter_type": "DiscreteGPU"}
    return types.SimpleNamespace(info=info, features=(), limits=webgpu_devices.DEFAULT_LIMITS | changed)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("max_storage_buffers_per_shader_stage", 4),
        ("max_compute_workgroup_storage_size", 8192),
        ("max_compute_invocations_per_workgroup", 0),
        ("max_compute_workgroups_per_dimension", 0),
    ],
)
def test_an_adapter_with_too_little_is_refused_when_it_is_opened(limit, value):
    with pytest.raises(DeviceError, match=f"Old GPU: given a driver whose {limit.replace('_', '-')} is {value}; .*Fix"):
        webgpu.WebGpuBackend(make_adapter(**{limit: value}))


def test_an_adapter_with_just_what_is_needed_computes():
    """Also copies of odd numbers of bytes, whose kernels are not scheduled for the device."""
    if not webgpu_devices.adapters():
        pytest.skip("wgpu finds no adapter")
    limits = webgpu_devices.DEFAULT_LIMITS | webgpu.NEEDED_LIMITS
    device = webgpu.WebGpuBackend(webgpu_devices.adapters()[0], 7, features=(), limits=limits).device
    x = np.arange(2001).astype(np.uint8)
    flags, numbers = weft.tensor(x, device=device), weft.tensor(x.astype(np.float32), device=device)
    np.testing.assert_array_equal(flags[1:].clone().flip(0).numpy(), x[:0:-1])
    np.testing.assert_array_equal(numbers.cumsum(0).numpy(), x.astype(np.float32).cumsum())
    assert numbers.sum().item() == x.astype(np.float32).sum()
    driver = device.backend.driver
    pointer = driver.upload_new(x.ctypes.data, x.nbytes)
    driver.copy(pointer + 1, pointer + 1001, 999)
    found = np.empty(1000, np.uint8)
    driver.download(found.ctypes.data, pointer, 1000)
    np.testing.assert_array_equal(found, np.append(x[:1], x[1001:2000]))
    driver.free(pointer)


def test_integrated_gpus_follow_others_and_software_comes_last(monkeypatch):
    kinds = ("CPU", "IntegratedGPU", "Unknown", "DiscreteGPU", "IntegratedGPU")
    adapters = [
        types.SimpleNamespace(info={"device": number, "backend_type": "Vulkan", "adapter_type": kind})
        for number, kind in enumerate(kinds)
    ]
    listed = types.SimpleNamespace(gpu=types.SimpleNamespace(enumerate_adapters_sync=lambda: adapters))
    monkeypatch.setitem(sys.modules, "wgpu", listed)
    assert [one.info["device"] for one in webgpu.find_adapters()] == [2, 3, 1, 4, 0]


@pytest.mark.parametrize("given", [None, "", "/run/user/1000"])
def test_mesa_is_given_a_folder_where_none_is_named(monkeypatch, given):
    """Else it prints an error for each adapter; an empty name counts as none."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", given or "")
    if given is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    listed = types.SimpleNamespace(gpu=types.SimpleNamespace(enumerate_adapters_sync=list))
    monkeypatch.setitem(sys.modules, "wgpu", listed)
    webgpu.find_adapters()
    assert os.environ["XDG_RUNTIME_DIR"] == (given or tempfile.gettempdir())
