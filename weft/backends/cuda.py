"""The CUDA backend: NVIDIA GPUs through cuda-bindings, kernels by NVRTC, products and attention by NVIDIA's libraries.

`Cuda` finds the GPUs; each is a `CudaBackend` with a driver of its own, opened when it is first asked for: one GPU's
user takes no memory on the others. Nothing of CUDA is imported before a GPU is asked for. `WEFT_NO_LIBRARIES=1` leaves
the libraries out: everything then runs from Weft's own kernels.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import overload

from weft import dtypes
from weft.backends import cuda_compile, cuda_driver
from weft.backends.base import Buffer, Device, Library, Slab
from weft.backends.cuda_driver import CudaDriver
from weft.backends.gpu import GpuBackend
from weft.digest import digest
from weft.errors import DeviceError, problem
from weft.locks import new_lock
from weft.render.dialects import CUDA

FEATURES = frozenset({"blocks", "subgroups", "numbers", "functions", "fetch", "mma", "narrow attention"})
LIBRARIES: tuple[str, ...] = ("cublaslt", "cudnn")  # modules of backends.vendor
OLDEST = (8, 0)  # the first generation of GPUs with all that kernels use
OLDEST_CUDA = (13, 0)
_opening = new_lock()


class CudaBackend(GpuBackend):
    """One NVIDIA GPU: number `ordinal` of the driver's, and `cuda:<number>` by name."""

    dialect = CUDA

    def __init__(self, ordinal: int, number: int = 0):
        driver = CudaDriver(ordinal)
        super().__init__(driver)
        self.driver: CudaDriver = driver
        memory, newest = driver.memory()[1], ".".join(map(str, cuda_driver.newest()))
        self.device = Device(
            "cuda", number, self, f"{driver.name}, {memory / 2**30:.0f} GiB, driver for CUDA {newest}",
            frozenset(dtypes.ALL), FEATURES, limits(driver), libraries(self),
        )  # fmt: skip

    def receive(self, buffer: Buffer) -> Slab:
        """New memory with what lies on another GPU, directly."""
        slab = self.allocate(buffer.nbytes)
        if buffer.nbytes:
            other: CudaBackend = buffer.slab.device.backend
            other.synchronise()
            self.call_in_order(self.driver.copy_from, slab.pointer, other.driver, buffer.pointer, buffer.nbytes)
        return slab

    def identity(self) -> str:
        """What the text of kernels and the calls of libraries in a plan depend on beside `Device`."""
        return digest(
            model=self.driver.name, architecture=self.driver.architecture, nvrtc=cuda_compile.version(),
            options=cuda_compile.OPTIONS, dialect=self.dialect.name,
        )  # fmt: skip


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


def libraries(backend: CudaBackend) -> dict[str, Library]:
    """NVIDIA's libraries that are installed here, unless they are not wanted."""
    if os.environ.get("WEFT_NO_LIBRARIES", "0") not in ("", "0"):
        return {}
    found: dict[str, Library] = {}
    for name in LIBRARIES:
        module = importlib.import_module(f"weft.backends.vendor.{name}")
        if module.find() is not None:
            try:
                found[name] = module.load(backend)
            except Exception as error:  # of the library's own kind
                given = f"{name}, which is installed but does not start: {type(error).__name__}: {error}"
                mend = "pip install --upgrade 'weft[cuda]', or run without libraries: WEFT_NO_LIBRARIES=1"
                raise problem(DeviceError, backend.driver.name, given, "a library that works", mend) from error
    return found


class _Gpus(Sequence[Device]):
    """GPUs, each opened when it is first looked at."""

    def __init__(self, ordinals: Sequence[int]):
        self._ordinals = ordinals
        self._opened: dict[int, Device] = {}

    def __len__(self) -> int:
        return len(self._ordinals)

    @overload
    def __getitem__(self, number: int) -> Device: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Device]: ...
    def __getitem__(self, number: int | slice) -> Device | Sequence[Device]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        ordinal = self._ordinals[number]
        with _opening:
            if ordinal not in self._opened:
                made = CudaBackend(ordinal, self._ordinals.index(ordinal)).device
                self._opened.setdefault(ordinal, made)  # a finalizer or signal handler may have been faster
            return self._opened[ordinal]


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
        newest = cuda_driver.newest()
        if newest < OLDEST_CUDA:
            return (
                f"the NVIDIA driver is for CUDA {newest[0]}.{newest[1]}. Install NVIDIA's driver, release 580 or newer"
            )
        try:
            compiler = cuda_compile.version()
        except Exception as error:  # of several kinds: the package or the library is missing
            return f"there is no NVRTC ({error}). Install it: pip install nvidia-cuda-nvrtc"
        generations = {number: cuda_driver.capability(number) for number in range(found)}
        usable = [number for number, one in generations.items() if one >= OLDEST]
        if not usable:
            seen = ", ".join(sorted({"{}.{}".format(*one) for one in generations.values()}))
            return f"its GPUs are of compute capability {seen}: Weft needs {OLDEST[0]}.{OLDEST[1]} (Ampere) or newer"
        known = [number for number in usable if cuda_compile.knows("sm_{}{}".format(*generations[number]))]
        if not known:
            return f"NVRTC {compiler} is older than its GPUs. Install a newer one: pip install -U nvidia-cuda-nvrtc"
        self._devices = _Gpus(known)
        return ""

    def devices(self) -> Sequence[Device]:
        return self._devices
