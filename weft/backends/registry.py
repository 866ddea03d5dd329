"""The table of backends: which class provides the devices of each kind.

A new backend is one entry of `MODULES`; a kind in `PLANNED` has an entry but no module yet. The class is imported and
constructed when a device of its kind is first requested, so `import weft` loads none of them. What an entry must
provide is `weft.plan.protocols.Platform`; `tests/unit/fake_driver.py` is a complete example, which
`tests/unit/test_new_backend.py` registers and runs.
"""

from __future__ import annotations

import glob
import importlib
import sys

from weft.base.locks import new_lock
from weft.base.singletons import table
from weft.plan.protocols import Platform

MODULES: dict[str, tuple[str, str]] = {  # kind of device -> (module, class)
    "cpu": ("weft.backends.cpu.backend", "CpuBackend"),
    "cuda": ("weft.backends.cuda.backend", "Cuda"),
    "hip": ("weft.backends.hip.backend", "Hip"),
    "opencl": ("weft.backends.opencl.backend", "OpenCl"),
    "webgpu": ("weft.backends.webgpu.backend", "WebGpu"),
    "reference": ("weft.backends.reference", "ReferenceBackend"),
    "null": ("weft.backends.null", "NullBackend"),
}
PLANNED: tuple[str, ...] = ()  # kinds whose module does not exist yet
BACKENDS = {kind: path for kind, path in MODULES.items() if kind not in PLANNED}
FASTEST = ("cuda", "hip", "opencl", "webgpu")  # kinds of GPUs, in the order in which `auto` and `gpu` prefer them
EMULATED = ("opencl", "webgpu")  # kinds whose drivers may emulate a GPU on the CPU: see `Device.is_software`
APIS = {"vulkan": "webgpu", "metal": "webgpu", "d3d12": "webgpu"}  # other names of devices, by `Device.api`: their kind
# What Linux calls GPUs: of any vendor, NVIDIA's own, AMD's for computing, Windows's inside of WSL, Arm's, Qualcomm's.
DEVICE_FILES = ("/dev/dri/*", "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/mali*", "/dev/kgsl*")
_loaded: dict[str, Platform] = table("backends")  # by kind
_loading = new_lock()  # two threads must not get two backends for one GPU


def load(kind: str) -> Platform:
    """The platform of one kind of device; where it has no devices, its `reason` says why."""
    with _loading:
        if kind not in _loaded:
            module, name = BACKENDS[kind]
            made = getattr(importlib.import_module(module), name)()
            _loaded.setdefault(kind, made)  # a finalizer or signal handler may have been faster
        return _loaded[kind]


def may_have_gpu() -> bool:
    """Whether the operating system shows a GPU. Drivers that emulate GPUs take long to load and are of no use to `auto`
    and `gpu`, which ask here first."""
    return sys.platform != "linux" or any(glob.glob(pattern) for pattern in DEVICE_FILES)
