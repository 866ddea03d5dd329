"""NVIDIA's driver bindings without a driver: every call is noted and succeeds, unless a test says otherwise.

A block's shared memory is counted as the driver counts it: what the code of a kernel declares and what its launch asks
for, against 48 KB or what `cuFuncSetAttribute` permitted. The "machine code" of a kernel is its text.
"""

from __future__ import annotations

import re
from typing import Any

from cuda.bindings import driver as real

from tests.unit.fake_runtime import FakeRuntime
from weft.base.dtypes import ALL
from weft.render.dialects.tables import CUDA

UNASKED = 48 << 10  # bytes of shared memory that a block has without permission
OPT_IN = 232448  # bytes that it may be permitted, as on an H200
SIZES = {CUDA.types[dtype.name]: dtype.itemsize for dtype in ALL} | {CUDA.types["byte"]: 1}


def declared_bytes(text: str) -> int:
    """What the shared arrays of a kernel take, each from a multiple of 16 on."""
    found = re.findall(r"__shared__ __align__\(16\) ([\w ]+) \w+\[(\d+)\];", text)
    return sum(-(-SIZES[kind] * int(size) // 16) * 16 for kind, size in found)


class Bindings(FakeRuntime):
    """cuda-bindings; statuses are of `CUresult`."""

    def __init__(self, gpus: int = 1, newest: int = 13000, capability: tuple[int, int] = (9, 0)):
        super().__init__(real, "cu", real.CUresult, real.CUresult.CUDA_ERROR_INVALID_VALUE, "cuCtxSetCurrent", {})
        attributes = real.CUdevice_attribute
        numbers = {
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: capability[0],
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: capability[1],
            attributes.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: 1024,
            attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: OPT_IN,
            attributes.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: 2048,
            attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 132,
        }
        self.declared: dict[Any, int] = {}  # bytes of shared arrays, by module and by function
        self._permitted: dict[Any, int] = {}  # bytes that a launch may ask for, by function
        self.answers |= {
            "cuDeviceGetCount": gpus,
            "cuDriverGetVersion": newest,
            "cuDeviceGet": lambda ordinal: ordinal,
            "cuDevicePrimaryCtxRetain": lambda handle: f"context {handle}",
            "cuDeviceGetAttribute": lambda kind, handle: numbers.get(kind, 32),
            "cuDeviceGetName": b"A GPU\0\0\0",
            "cuMemGetInfo": lambda: (1 << 30, 2 << 30),
            "cuMemPoolGetAttribute": 0,
            "cuGetErrorString": b"it went wrong",
            "cuModuleLoadData": self._load,
            "cuModuleGetFunction": self._function,
            "cuFuncGetAttribute": lambda kind, function: {
                real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: self.declared[function],
                real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: self._permitted[function],
            }[kind],
            "cuFuncSetAttribute": self._permit,
            "cuLaunchKernel": self._launch,
        }

    def _load(self, image: bytes) -> int:
        module = self._handle()
        self.declared[module] = declared_bytes(image.decode())
        return module

    def _function(self, module: int, name: bytes) -> Any:
        function = self._handle()
        self.declared[function] = nbytes = self.declared[module]
        self._permitted[function] = UNASKED - nbytes
        return function if nbytes <= UNASKED else real.CUresult.CUDA_ERROR_INVALID_IMAGE

    def _permit(self, function: int, kind: Any, nbytes: int) -> Any:
        assert kind == real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if self.declared[function] + nbytes > OPT_IN:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE
        self._permitted[function] = nbytes
        return None

    def _launch(self, function: int, *rest: Any) -> Any:
        *grid, shared, _stream, _parameters, _extra = rest
        refused = shared > self._permitted.get(function, UNASKED) or max(grid[3:]) > 1024
        return real.CUresult.CUDA_ERROR_INVALID_VALUE if refused else None
