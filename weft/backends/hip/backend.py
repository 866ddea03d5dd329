"""The HIP backend: AMD GPUs through hip-python, kernels by hiprtc, everything by Weft's own kernels.

`Hip` finds the GPUs; each is a `HipBackend` with a driver of its own, opened when it is first asked for. Nothing of HIP
is imported before a GPU is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.backends.gpu.opened import OpenedDevices
from weft.backends.gpu.streams import StreamBackend
from weft.backends.hip import compile as hip_compile
from weft.backends.hip import driver as hip_driver
from weft.backends.hip.driver import HipDriver
from weft.base import dtypes
from weft.base.capabilities import Features, Limits, MatrixUnit
from weft.base.digest import digest
from weft.kernels.ir.expressions import CASTS
from weft.plan.device import Device
from weft.plan.kept_tuning import apply_kept_tuning
from weft.render.dialects.hip import HIP, HIP_MFMA, HIP_WMMA
from weft.render.dialects.tables import Dialect

REGISTERS = 256  # 32-bit registers of a lane
FLOAT16 = (dtypes.float16, dtypes.bfloat16)
# v_mfma_f32_16x16x16 of CDNA, and v_wmma_f32_16x16x16 of RDNA 3, where both halves of a subgroup hold the operands.
MFMA = MatrixUnit(16, 16, 16, 64, FLOAT16, "column_blocks")
WMMA = MatrixUnit(16, 16, 16, 32, FLOAT16, "column_strides", operand_copies=2)
MATRIX_UNITS = {"gfx90a": MFMA, "gfx94": MFMA, "gfx95": MFMA, "gfx11": WMMA}  # by the beginning of the architecture
MIN_HIP_VERSION = (6, 0)  # the first release whose device properties have the form that hip-python reads


def matrix_unit(architecture: str) -> MatrixUnit | None:
    """The unit of an architecture ('gfx90a:sramecc+:xnack-') that the dialect has functions for."""
    return next((unit for name, unit in MATRIX_UNITS.items() if architecture.startswith(name)), None)


def dialect_of(architecture: str) -> Dialect:
    """HIP with the functions of the architecture's matrix unit."""
    unit = matrix_unit(architecture)
    return HIP if unit is None else HIP_MFMA if unit is MFMA else HIP_WMMA


def features(architecture: str) -> Features:
    """What kernels for an architecture ('gfx90a') may use. Other functions are computed by `weft.kernels.math`."""
    unit = matrix_unit(architecture)
    return Features(
        workgroups=True,
        scalar_arguments=True,
        subgroup_operations=True,
        matrix_units=() if unit is None else (unit,),
        native_functions=("tanh", "exp_rounded", "logistic", *CASTS),
        float16_attention=True,
    )


def limits(properties: Any) -> Limits:
    """What the compiler may count on; `properties` is a `hipDeviceProp_t`. All shared memory may be declared."""
    resident = properties.maxThreadsPerMultiProcessor
    return Limits(
        workgroup_size=properties.maxThreadsPerBlock,
        subgroup_sizes=(properties.warpSize,),
        shared_bytes=properties.sharedMemPerBlock,
        static_shared_bytes=properties.sharedMemPerBlock,
        registers=REGISTERS,
        access_bytes=16,
        processors=properties.multiProcessorCount,
        resident_lanes=resident,
        resident_registers=properties.regsPerMultiprocessor // resident if resident else 0,
    )


class HipBackend(StreamBackend):
    """One AMD GPU: number `ordinal` of the runtime's, and `hip:<number>` by name."""

    def __init__(self, ordinal: int, number: int = 0):
        driver = HipDriver(ordinal)
        with self.opening(driver):
            super().__init__(driver)
            self.driver: HipDriver = driver
            self.dialect = dialect_of(driver.architecture)
            memory, (major, minor) = driver.memory()[1], hip_driver.release()
            device = Device(
                "hip", number, self,
                f"{driver.name} ({driver.architecture}), {memory / 2**30:.0f} GiB, HIP {major}.{minor}",
                frozenset(dtypes.ALL), features(driver.architecture), limits(driver.properties),
            )  # fmt: skip
            self.device = apply_kept_tuning(device)

    def identity(self) -> str:
        """What the text of kernels in a plan depends on beside `Device`."""
        return digest(
            model=self.driver.name, architecture=self.driver.architecture, hiprtc=hip_compile.version(),
            options=hip_compile.OPTIONS, dialect=self.dialect.name,
        )  # fmt: skip


class Hip:
    """All AMD GPUs of this machine that Weft can use; `reason` says why there is none."""

    def __init__(self) -> None:
        self._devices: Sequence[Device] = ()
        self.reason = self._look()

    def _look(self) -> str:
        try:
            found = hip_driver.count()
        except ImportError as error:
            return f"{error}. Install it: pip install 'weft[hip]'"
        except Exception as error:  # hip-python raises RuntimeError where it finds no library
            return f"no HIP runtime answers ({error}). Install AMD's driver and ROCm, release 6 or newer"
        if not found:
            return "the HIP runtime sees no AMD GPU"
        major, minor = hip_driver.release()
        if (major, minor) < MIN_HIP_VERSION:
            return f"the HIP runtime is release {major}.{minor}. Install ROCm, release 6 or newer"
        try:
            compiler = hip_compile.version()
        except Exception as error:
            return f"there is no hiprtc ({error}). Install ROCm's package hiprtc"
        return self._choose(found, compiler)

    def _choose(self, found: int, compiler: str) -> str:
        """Take the GPUs that have memory pools and that hiprtc compiles for; why there is none."""
        every = {number: hip_driver.properties(number) for number in range(found)}
        pooled = {number: one.gcnArchName for number, one in every.items() if one.memoryPoolsSupported}
        if not pooled:
            return "the HIP runtime has no memory pools for its GPUs. Install ROCm, release 6 or newer, on Linux"
        known = [number for number, name in pooled.items() if hip_compile.knows(name)]
        if not known:
            names = ", ".join(sorted(set(pooled.values())))
            return f"hiprtc {compiler} does not compile for {names}. Install a newer ROCm"
        self._devices = OpenedDevices(known, lambda ordinal, number: HipBackend(ordinal, number).device)
        return ""

    def devices(self) -> Sequence[Device]:
        return self._devices
