"""What the drivers of OpenCL and WebGPU hold: objects that were created and not released yet, by kind; and runtimes
of which one call fails."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from weft.backends.opencl import library

OUT_OF_HOST_MEMORY = -6
COUNTED = {  # functions of OpenCL that create, retain or release: kind of object, by how much its number changes
    "clCreateContext": ("context", 1), "clReleaseContext": ("context", -1),
    "clCreateCommandQueue": ("queue", 1), "clReleaseCommandQueue": ("queue", -1),
    "clCreateBuffer": ("memory", 1), "clReleaseMemObject": ("memory", -1),
    "clCreateProgramWithSource": ("program", 1), "clCreateProgramWithBinary": ("program", 1),
    "clRetainProgram": ("program", 1), "clReleaseProgram": ("program", -1),
    "clCreateKernel": ("kernel", 1), "clReleaseKernel": ("kernel", -1),
}  # fmt: skip
WGPU_CALLS = {  # methods of wgpu's classes that the driver calls when it opens a device
    "GPUAdapter": ("request_device_sync",),
    "GPUDevice": ("create_buffer", "create_bind_group_layout", "create_pipeline_layout", "create_compute_pipeline",
                  "create_bind_group", "create_command_encoder"),
    "GPUCommandEncoder": ("begin_compute_pass", "copy_buffer_to_buffer", "finish"),
    "GPUQueue": ("write_buffer", "submit"),
    "GPUBuffer": ("map_sync", "read_mapped"),
}  # fmt: skip


class OpenClObjects:
    """Counts objects of OpenCL from here on; `calls` are all calls. Call number `fails` returns an error instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.live: Counter[str] = Counter()
        self.calls, self.fails = 0, 0
        loader = library.loader()
        for name in library._CALLS:
            monkeypatch.setattr(loader, name, self._wrap(name, getattr(loader, name), False))
        for name in library._CREATES:
            monkeypatch.setattr(loader, name, self._wrap(name, getattr(loader, name), True))

    def _wrap(self, name: str, function: Callable[..., Any], creates: bool) -> Callable[..., Any]:
        kind, change = COUNTED.get(name, ("", 0))

        def wrapped(*args: Any) -> Any:
            self.calls += 1
            if self.calls == self.fails:
                if creates:
                    ctypes.c_int32.from_address(args[-1]).value = OUT_OF_HOST_MEMORY
                return None if creates else OUT_OF_HOST_MEMORY
            result = function(*args)
            if kind and bool(result) == creates:  # a handle, or the status of success
                self.live[kind] += change
            return result

        return wrapped

    def fail_at(self, number: int) -> None:
        self.calls, self.fails = 0, number


class WgpuCalls:
    """Counts what the driver calls of wgpu; call number `fails` raises instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        import wgpu.backends.wgpu_native as native
        from wgpu import GPUError

        self.calls, self.fails, self.error = 0, 0, GPUError
        for owner, names in WGPU_CALLS.items():
            for name in names:
                kind = getattr(native, owner)
                monkeypatch.setattr(kind, name, self._wrap(f"{owner}.{name}", getattr(kind, name)))

    def _wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.fails:
                raise self.error(f"{name} failed")
            return method(*args, **named)

        return wrapped

    def fail_at(self, number: int) -> None:
        self.calls, self.fails = 0, number


def count_wgpu_objects() -> dict[str, int]:
    """Objects of wgpu's native library, by kind."""
    import wgpu

    gc.collect()
    counts = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return {kind: entry["count"] for kind, entry in counts.items() if kind != "total"}
