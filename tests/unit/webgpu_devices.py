"""Devices of wgpu for tests: what the machine has, and one with what WebGPU guarantees and no more; and a kernel."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from weft.backends.webgpu import backend as webgpu
from weft.base import dtypes
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import BufferParam, Geometry, Kernel, Load, Loop, Store, Var
from weft.plan.device import Device

# The default limits of WebGPU's specification, by wgpu's names.
DEFAULT_LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroups-per-dimension": 65535,
    "max-uniform-buffer-binding-size": 65536,
    "min-storage-buffer-offset-alignment": 256,
    "min-uniform-buffer-offset-alignment": 256,
}


@functools.cache
def adapters() -> list[Any]:
    """wgpu's adapters, or none."""
    try:
        return webgpu.find_adapters()
    except Exception:  # wgpu is not installed, or there is no driver
        return []


@functools.cache
def device() -> Device:
    """The device as programs get it."""
    import weft

    if not adapters():
        pytest.skip("wgpu finds no adapter")
    return weft.device("webgpu:0")


@functools.cache
def limited() -> Device:
    """No 64-bit numbers, no subgroups, eight buffers, little shared memory."""
    if not adapters():
        pytest.skip("wgpu finds no adapter")
    return webgpu.WebGpuBackend(adapters()[0], 7, features=(), limits=DEFAULT_LIMITS).device


def copied(name: str, dtype: dtypes.DType, index: str = "i") -> Kernel:
    """A kernel that copies elements, with these names."""
    axis = Axis(index, 1 << 40)
    at = Index(((axis, 1),), 0)
    loop = Loop(axis, Var("begin", dtypes.int64), Var("end", dtypes.int64), "grid",
                (Store("target", at, Load(name, at, dtype)),), 256)  # fmt: skip
    buffers = (BufferParam(name, dtype, False), BufferParam("target", dtype, True))
    return Kernel("copied", buffers, (), ("begin", "end"), (loop,), {}, Geometry(256, 1))
