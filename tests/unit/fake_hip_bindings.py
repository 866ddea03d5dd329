"""hip-python without a GPU: every call is noted and succeeds, unless a test says otherwise or HIP would refuse it.

Where HIP's runtime is installed and sees no GPU, each call is also made on the real hip-python, which converts its
arguments and then reports that there is no device: a call with arguments that it does not take fails. The "machine
code" of a kernel is its text.
"""

from __future__ import annotations

import ctypes
import functools
import re
from types import SimpleNamespace
from typing import Any

from hip import hip as real

from tests.unit.fake_runtime import FakeRuntime
from weft.backends.hip.driver import RENAMED
from weft.base.dtypes import ALL
from weft.render.dialects.hip import HIP

STATUS = real.hipError_t
SHARED_BYTES = 65536  # of a workgroup, declared or of a launch
SIZES = {HIP.types[dtype.name]: dtype.itemsize for dtype in ALL} | {HIP.types["byte"]: 1}


def declared_bytes(text: str) -> int:
    """What the shared arrays of a kernel take, each from a multiple of 16 on."""
    found = re.findall(r"__shared__ __attribute__\(\(aligned\(16\)\)\) ([\w ]+) \w+\[(\d+)\];", text)
    return sum(-(-SIZES[kind] * int(size) // 16) * 16 for kind, size in found)


@functools.cache
def checks_arguments() -> bool:
    """Whether the real runtime can be called without doing anything."""
    try:
        return real.hipGetDeviceCount()[0] == STATUS.hipErrorNoDevice
    except RuntimeError:
        return False


def properties_of(architecture: str, lanes: int) -> SimpleNamespace:
    """Of a GPU like an MI210, as far as the backend reads them."""
    return SimpleNamespace(
        name="A GPU", gcnArchName=architecture, warpSize=lanes, maxThreadsPerBlock=1024, sharedMemPerBlock=SHARED_BYTES,
        multiProcessorCount=104, maxThreadsPerMultiProcessor=2048, regsPerMultiprocessor=65536, memoryPoolsSupported=1,
    )  # fmt: skip


class HipBindings(FakeRuntime):
    """hip-python; statuses are of `hipError_t`."""

    def __init__(self, gpus: int = 1, release: int = 60_200_000, architecture: str = "gfx90a", lanes: int = 64):
        super().__init__(real, "hip", STATUS, STATUS.hipErrorInvalidValue, "hipSetDevice", RENAMED)
        self.properties = [properties_of(architecture, lanes) for _ in range(gpus)]
        self.declared: dict[Any, int] = {}  # bytes of shared arrays, by module and by function
        self.lanes: dict[Any, int] = {}  # that a kernel was compiled for, likewise
        self.answers |= {
            "hipGetDeviceCount": gpus,
            "hipRuntimeGetVersion": release,
            "hipGetDeviceProperties": lambda ordinal: self.properties[ordinal],
            "hipMemGetInfo": lambda: (1 << 30, 2 << 30),
            "hipMemPoolGetAttribute": self._pool_attribute,
            "hipGetErrorString": "it went wrong",
            "hipModuleLoadData": self._load,
            "hipModuleGetFunction": self._function,
            "hipModuleLaunchKernel": self._launch,
        }

    def _pool_attribute(self, pool: Any, kind: Any, address: int) -> None:
        used = sum(self.allocated.values())
        ctypes.c_uint64.from_address(address).value = {
            real.hipMemPoolAttr.hipMemPoolAttrReservedMemCurrent: -(-used // 4096) * 4096,
            real.hipMemPoolAttr.hipMemPoolAttrUsedMemCurrent: used,
        }[kind]

    def _load(self, image: bytes) -> Any:
        text = image.decode()
        module = self._handle()
        self.declared[module] = declared_bytes(text)
        bounds = re.search(r"__launch_bounds__\((\d+)\)", text)
        self.lanes[module] = int(bounds[1]) if bounds else 1024
        return module if self.declared[module] <= SHARED_BYTES else STATUS.hipErrorInvalidImage

    def _function(self, module: int, name: bytes) -> Any:
        function = self._handle()
        self.declared[function], self.lanes[function] = self.declared[module], self.lanes[module]
        return function

    def _launch(self, function: Any, *rest: Any) -> Any:
        """A workgroup has the lanes that the kernel was compiled for, at most, and its shared memory; lanes in all are
        counted in 32 bits."""
        x, y, z, lanes, _, _, shared, _stream, parameters, extra = rest
        if lanes > self.lanes.get(function, 1024) or shared + self.declared.get(function, 0) > SHARED_BYTES:
            return self._invalid
        fits = min(x, y, z, lanes) > 0 and x * lanes < 1 << 32 and parameters and not extra
        return None if fits else self._invalid

    def _answer(self, name: str, arguments: tuple) -> Any:
        if checks_arguments() and name != "hipGetDeviceProperties":
            try:
                getattr(real, name)(*arguments)
            except RuntimeError as error:  # an old runtime lacks a function
                assert "symbol" in str(error), error
        return super()._answer(name, arguments)
