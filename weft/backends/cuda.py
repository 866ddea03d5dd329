"""The CUDA backend: NVIDIA GPUs through cuda-bindings, kernels by NVRTC, products and attention by NVIDIA's libraries.

`Cuda` finds the GPUs; each is a `CudaBackend` with a driver of its own. Nothing of CUDA is imported before a GPU is
asked for. `WEFT_NO_LIBRARIES=1` leaves the libraries out: everything then runs from Weft's own kernels.
"""

from __future__ import annotations

import atexit
import importlib
import os

from weft import dtypes
from weft.backends import cuda_compile
from weft.backends.base import Buffer, Device, Library, Slab
from weft.backends.cuda_driver import CudaDriver, count
from weft.backends.gpu import GpuBackend
from weft.render.dialects import CUDA

FEATURES = frozenset({"blocks", "subgroups", "numbers", "functions", "mma", "narrow attention"})
LIBRARIES: tuple[str, ...] = ("cublaslt", "cudnn")  # modules of backends.vendor


class CudaBackend(GpuBackend):
    """One NVIDIA GPU."""

    dialect = CUDA

    def __init__(self, ordinal: int):
        driver = CudaDriver(ordinal)
        super().__init__(driver)
        self.driver: CudaDriver = driver
        atexit.register(driver.close)
        memory, found = driver.memory()[1], libraries(driver)
        self.device = Device(
            "cuda", ordinal, self, f"{driver.name}, {memory / 2**30:.0f} GiB, CUDA {driver.driver_version}",
            frozenset(dtypes.ALL), FEATURES, limits(driver), found,
        )  # fmt: skip

    def receive(self, buffer: Buffer) -> Slab:
        """New memory with what lies on another GPU."""
        slab = self.allocate(buffer.nbytes)
        if buffer.nbytes:
            other: CudaBackend = buffer.slab.device.backend
            other.synchronise()
            with self.order:
                self.driver.copy_from(slab.pointer, other.driver, buffer.pointer, buffer.nbytes)
        return slab

    def identity(self) -> str:
        """What the text of kernels and the calls of libraries in a plan depend on."""
        versions = [f"{name} {library.version}" for name, library in self.device.libraries.items()]
        return "|".join([self.driver.architecture, f"nvrtc {cuda_compile.version()}", *versions])


def limits(driver: CudaDriver) -> dict[str, int]:
    """What the compiler may count on."""
    return {
        "threads": driver.attribute("MAX_THREADS_PER_BLOCK"),
        "subgroup": driver.attribute("WARP_SIZE"),
        "shared_bytes": driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        "resident_threads": driver.attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        "processors": driver.attribute("MULTIPROCESSOR_COUNT"),
        "vector_bytes": 16,
    }


def libraries(driver: CudaDriver) -> dict[str, Library]:
    """NVIDIA's libraries that are installed here, unless they are not wanted."""
    if os.environ.get("WEFT_NO_LIBRARIES", "0") not in ("", "0"):
        return {}
    found: dict[str, Library] = {}
    for name in LIBRARIES:
        module = importlib.import_module(f"weft.backends.vendor.{name}")
        if module.find() is not None:
            found[name] = module.load(int(driver.stream), driver.ordinal)
    return found


class Cuda:
    """All NVIDIA GPUs of this machine."""

    def __init__(self) -> None:
        self.reason = ""
        self._devices: list[Device] = []
        try:
            found = count()
        except ImportError as error:
            self.reason = f"{error}. Install it: pip install 'weft[cuda]'"
        except Exception as error:  # cuda-bindings has an error of its own for a missing driver
            self.reason = f"no NVIDIA driver answers ({error})"
        else:
            self._devices = [CudaBackend(ordinal).device for ordinal in range(found)]
            self.reason = "" if found else "the NVIDIA driver sees no GPU"

    def devices(self) -> list[Device]:
        return list(self._devices)
