"""The WebGPU backend: every adapter that wgpu finds over Vulkan, Metal or Direct3D 12, with kernels in WGSL.

`WebGpu` lists the adapters; each is a `WebGpuBackend`, opened when it is first asked for. Integrated GPUs come after
others, software adapters (Mesa's lavapipe, for tests) last. Adapters over OpenGL are left out where there is any other.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.limits import check_kernel
from weft.backends.gpu.opened import OpenedDevices
from weft.backends.webgpu import probes
from weft.backends.webgpu.clock import TIMESTAMP_FEATURES
from weft.backends.webgpu.driver import WebGpuDriver
from weft.base import dtypes
from weft.base.capabilities import Features, Limits
from weft.base.counters import COUNTERS
from weft.base.digest import digest
from weft.base.errors import DeviceError, problem
from weft.kernels.ir.language import Kernel
from weft.plan.device import Device
from weft.plan.kept_tuning import apply_kept_tuning
from weft.plan.plan import Code, code_of
from weft.render.wgsl.module import render
from weft.render.wgsl.operations import Extensions

USED_FEATURES = ("shader-int64", "shader-f64", "subgroup", *TIMESTAMP_FEATURES)  # that an adapter may have
USED_LIMITS = (
    "max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size", "max-buffer-size",
    "max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension", "max-uniform-buffer-binding-size", "min-storage-buffer-offset-alignment",
    "min-uniform-buffer-offset-alignment",
)  # fmt: skip
# What kernels need, of which WebGPU guarantees as much or more. wgpu also lists adapters that have less.
NEEDED_LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 64,
    "max-compute-workgroup-size-x": 64,
    "max-compute-workgroups-per-dimension": 1,
}
RENDERER_VERSION = 2  # of the form of kernels' texts
MAX_GRID = 1 << 20  # workgroups of a launch
LAST_TYPES = {"IntegratedGPU": 1, "CPU": 2}  # of adapters, in the order in which they follow the others


class WebGpuBackend(GpuBackend):
    """One adapter. Without `features` and `limits` it is opened with all that it has of those used here."""

    def __init__(
        self, adapter: Any, number: int = 0, features: Sequence[str] | None = None, limits: dict[str, int] | None = None
    ):
        found = [name for name in USED_FEATURES if name in adapter.features] if features is None else features
        wanted = {name: adapter.limits[name] for name in USED_LIMITS} if limits is None else limits
        check_limits(adapter.info["device"], wanted)
        driver = WebGpuDriver(adapter, found, wanted)
        with self.opening(driver):
            super().__init__(driver)
            self.driver: WebGpuDriver = driver
            self._describe(adapter.info, number, found)

    def _describe(self, info: Any, number: int, found: Sequence[str]) -> None:
        """The device, and what its kernels may use; `info` is the adapter's, `found` are the features."""
        driver = self.driver
        sizes = _subgroup_sizes(info) if "subgroup" in found else ()
        offered = device_limits(driver.limits, sizes, driver.largest)
        self.extensions = Extensions(
            "shader-int64" in found, "shader-f64" in found, probes.has_fused_multiply_add(driver),
            probes.has_rounded_division(driver), offered.shared_bytes, offered.part_bytes,
        )  # fmt: skip
        kinds = frozenset(dtypes.ALL) - (frozenset() if self.extensions.float64 else {dtypes.float64})
        self._identity = f"{info['vendor']} {info['device']} {info['description']} {info['backend_type']}"
        description = f"{info['device']} over {info['backend_type']}, {info['description']}"
        device = Device(
            "webgpu", number, self, description, kinds,
            Features(workgroups=True, scalar_arguments=True, int64_arithmetic=False, subgroup_operations=bool(sizes)),
            offered, is_software=info["adapter_type"] == "CPU",
            is_integrated=info["adapter_type"] == "IntegratedGPU", api=info["backend_type"].lower(),
        )  # fmt: skip
        self.device = apply_kept_tuning(device)

    def render(self, kernel: Kernel) -> Code:
        """`kernel` as WGSL."""
        check_kernel(kernel, self.device)
        COUNTERS.kernels_rendered += 1
        return code_of(kernel, *render(kernel, self.extensions))

    def identity(self) -> str:
        """What the text of kernels depends on beside `Device`."""
        return digest(adapter=self._identity, renderer=RENDERER_VERSION, extensions=repr(self.extensions))


def check_limits(name: str, limits: dict[str, int]) -> None:
    """Refuse an adapter on which Weft's kernels do not run."""
    for limit, least in NEEDED_LIMITS.items():
        if limits[limit] < least:
            given = f"a driver whose {limit} is {limits[limit]}"
            raise problem(DeviceError, name, given, f"at least {least}", "update the driver, or use another device")


def _subgroup_sizes(info: Any) -> tuple[int, ...]:
    """The size of subgroups, where all have one."""
    least = info.get("subgroup_min_size", info.get("stackgroup_min_size", 0))  # wgpu 0.32 misspells it
    most = info.get("subgroup_max_size", info.get("stackgroup_max_size", 0))
    return (int(least),) if least and least == most else ()


def device_limits(limits: dict[str, int], subgroup_sizes: tuple[int, ...], allocation_bytes: int) -> Limits:
    """What the compiler may count on."""
    shared = limits["max-compute-workgroup-storage-size"]
    return Limits(
        workgroup_size=min(limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]),
        subgroup_sizes=subgroup_sizes,
        shared_bytes=shared,
        static_shared_bytes=shared,
        workgroups=min(MAX_GRID, limits["max-compute-workgroups-per-dimension"] ** 2),
        storage_buffers=limits["max-storage-buffers-per-shader-stage"],
        binding_bytes=limits["max-storage-buffer-binding-size"],
        allocation_bytes=allocation_bytes,
    )


class WebGpu:
    """All adapters of this machine that Weft can use; `reason` says why there is none."""

    def __init__(self) -> None:
        self._devices: Sequence[Device] = ()
        self.reason = self._look()

    def _look(self) -> str:
        try:
            adapters = find_adapters()
        except ImportError as error:
            return f"{error}. Install it: pip install 'weft[webgpu]'"
        except Exception as error:  # of wgpu's own kinds
            return f"wgpu does not start ({type(error).__name__}: {error})"
        if not adapters:
            return "wgpu finds no adapter. Install the driver of a GPU, or Mesa's: apt install mesa-vulkan-drivers"
        numbers = range(len(adapters))
        self._devices = OpenedDevices(numbers, lambda number, _: WebGpuBackend(adapters[number], number).device)
        return ""

    def devices(self) -> Sequence[Device]:
        return self._devices


def find_adapters() -> list[Any]:
    """wgpu's adapters: integrated GPUs after others, software last; those over OpenGL where there is no other."""
    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()  # else a warning is printed
    import wgpu

    found = list(wgpu.gpu.enumerate_adapters_sync())
    chosen = [one for one in found if one.info["backend_type"] != "OpenGL"] or found
    return sorted(chosen, key=lambda one: LAST_TYPES.get(one.info["adapter_type"], 0))
