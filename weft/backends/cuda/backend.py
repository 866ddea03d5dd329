"""The CUDA backend: NVIDIA GPUs through cuda-bindings, kernels by NVRTC, products and attention by NVIDIA's libraries.

`Cuda` finds the GPUs; each is a `CudaBackend` with a driver of its own, opened when it is first asked for: one GPU's
user takes no memory on the others. Nothing of CUDA is imported before a GPU is asked for. `WEFT_NO_LIBRARIES=1` leaves
the libraries out: everything then runs from Weft's own kernels.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence

from weft.backends.cuda import compile as cuda_compile
from weft.backends.cuda import driver as cuda_driver
from weft.backends.cuda.driver import CudaDriver
from weft.backends.gpu.opened import OpenedDevices
from weft.backends.gpu.streams import StreamBackend
from weft.base import dtypes
from weft.base.capabilities import Features, Limits, MatrixUnit
from weft.base.digest import digest
from weft.base.errors import DeviceError, problem
from weft.kernels.ir.language import NATIVE
from weft.plan.device import Device
from weft.plan.kept_tuning import apply_kept_tuning
from weft.plan.protocols import Library
from weft.render.dialects.tables import CUDA

FEATURES = Features(
    workgroups=True,
    scalar_arguments=True,
    subgroup_operations=True,
    async_copies=True,
    matrix_units=(MatrixUnit(16, 16, 16, 32, (dtypes.float16, dtypes.bfloat16)),),  # two of m16n8k16
    native_functions=NATIVE,
    float16_attention=True,
)
STATIC_SHARED_BYTES = 49152  # what a kernel may declare without asking for more with the launch
REGISTERS = 255  # of a lane
RESIDENT_REGISTERS = 32  # of a lane where a processor holds as many lanes as it can
LIBRARIES: tuple[str, ...] = ("cublaslt", "cudnn")  # modules beside this one
MIN_COMPUTE_CAPABILITY = (8, 0)  # the first generation of GPUs with all that kernels use
MIN_CUDA_VERSION = (13, 0)


class CudaBackend(StreamBackend):
    """One NVIDIA GPU: number `ordinal` of the driver's, and `cuda:<number>` by name."""

    dialect = CUDA

    def __init__(self, ordinal: int, number: int = 0):
        driver = CudaDriver(ordinal)
        with self.opening(driver):
            super().__init__(driver)
            self.driver: CudaDriver = driver
            memory, newest = driver.memory()[1], ".".join(map(str, cuda_driver.newest_version()))
            device = Device(
                "cuda", number, self, f"{driver.name}, {memory / 2**30:.0f} GiB, driver for CUDA {newest}",
                frozenset(dtypes.ALL), FEATURES, limits(driver), libraries(self),
            )  # fmt: skip
            self.device = apply_kept_tuning(device)

    def identity(self) -> str:
        """What the text of kernels and the calls of libraries in a plan depend on beside `Device`."""
        return digest(
            model=self.driver.name, architecture=self.driver.architecture, nvrtc=cuda_compile.version(),
            options=cuda_compile.OPTIONS, dialect=self.dialect.name,
        )  # fmt: skip


def limits(driver: CudaDriver) -> Limits:
    """What the compiler may count on."""
    return Limits(
        workgroup_size=driver.attribute("MAX_THREADS_PER_BLOCK"),
        subgroup_sizes=(driver.attribute("WARP_SIZE"),),
        shared_bytes=driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        static_shared_bytes=STATIC_SHARED_BYTES,
        registers=REGISTERS,
        access_bytes=16,
        processors=driver.attribute("MULTIPROCESSOR_COUNT"),
        resident_lanes=driver.attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        resident_registers=RESIDENT_REGISTERS,
    )


def libraries(backend: CudaBackend) -> dict[str, Library]:
    """NVIDIA's libraries that are installed here, unless they are not wanted."""
    if os.environ.get("WEFT_NO_LIBRARIES", "0") not in ("", "0"):
        return {}
    found: dict[str, Library] = {}
    for name in LIBRARIES:
        module = importlib.import_module(f"weft.backends.cuda.{name}")
        if module.find() is not None:
            try:
                found[name] = module.load(backend)
            except Exception as error:  # of the library's own kind
                given = f"{name}, which is installed but does not start: {type(error).__name__}: {error}"
                fix = "pip install --upgrade 'weft[cuda]', or run without libraries: WEFT_NO_LIBRARIES=1"
                raise problem(DeviceError, backend.driver.name, given, "a library that works", fix) from error
    return found


class Cuda:
    """All NVIDIA GPUs of this machine that Weft can use; `reason` says why there is none."""

    def __init__(self) -> None:
        self._devices: Sequence[Device] = ()
        self.reason = self._look()

    def _look(self) -> str:
        try:
            found = cuda_driver.count()
        except ImportError as error:
            return f"{error}. Install it: pip install 'weft[cuda]'"
        except Exception as error:  # cuda-bindings has an error of its own for a missing driver
            return f"no NVIDIA driver answers ({error}). Install NVIDIA's driver, release 580 or newer"
        if not found:
            return "the NVIDIA driver sees no GPU"
        newest = cuda_driver.newest_version()
        if newest < MIN_CUDA_VERSION:
            return (
                f"the NVIDIA driver is for CUDA {newest[0]}.{newest[1]}. Install NVIDIA's driver, release 580 or newer"
            )
        try:
            compiler = cuda_compile.version()
        except Exception as error:  # of several kinds: the package or the library is missing
            return f"there is no NVRTC ({error}). Install it: pip install nvidia-cuda-nvrtc"
        generations = {number: cuda_driver.capability(number) for number in range(found)}
        usable = [number for number, one in generations.items() if one >= MIN_COMPUTE_CAPABILITY]
        if not usable:
            seen = ", ".join(sorted({"{}.{}".format(*one) for one in generations.values()}))
            oldest = "{}.{}".format(*MIN_COMPUTE_CAPABILITY)
            return f"its GPUs are of compute capability {seen}: Weft needs {oldest} (Ampere) or newer"
        known = [number for number in usable if cuda_compile.knows("sm_{}{}".format(*generations[number]))]
        if not known:
            return f"NVRTC {compiler} is older than its GPUs. Install a newer one: pip install -U nvidia-cuda-nvrtc"
        self._devices = OpenedDevices(known, lambda ordinal, number: CudaBackend(ordinal, number).device)
        return ""

    def devices(self) -> Sequence[Device]:
        return self._devices
