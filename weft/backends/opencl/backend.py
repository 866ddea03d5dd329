"""The OpenCL backend: any device with an OpenCL 1.2 driver. What kernels may use is read from the device.

`OpenCl` finds the devices: GPUs first, integrated ones last of them, then those that a CPU emulates, such as PoCL's.
Each is an `OpenClBackend` with a driver of its own, opened when it is first asked for. Nothing of OpenCL is loaded
before that.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.opened import OpenedDevices
from weft.backends.opencl import library
from weft.backends.opencl.driver import OpenClDriver
from weft.base import dtypes
from weft.base.capabilities import Features, Limits
from weft.base.digest import digest
from weft.base.tuning import Tuning
from weft.plan.device import Device
from weft.plan.kept_tuning import apply_kept_tuning
from weft.render.dialects.opencl import (
    FIXED_SIZE,
    OPENCL,
    SHUFFLES,
    SUBGROUPS,
    with_ordered_loops,
    with_subgroups,
)
from weft.render.dialects.tables import Dialect

MAX_WORKGROUP_SIZE = 1024  # more lanes make no kernel faster
MAX_SOFTWARE_WORKGROUP_SIZE = 256  # a CPU runs the lanes of a workgroup one after the other
MAX_SUBGROUP_SIZE = 32
MAX_SHARED_BYTES = 64 << 10  # of one workgroup: CPUs report their whole cache
# Concurrent launches in one kernel gain nothing on a CPU, and PoCL takes minutes to compile many barriers in branches.
POCL_TUNING = Tuning(max_concurrent_workgroups=0)
# Intel's compiler for CPUs (2026.2) ends the process on some kernels of dozens of barriers, which batches have.
SOFTWARE_TUNING = Tuning(max_concurrent_workgroups=0, max_batched_launches=1)
INSTALL = "pip install 'weft[opencl]'"


class OpenClBackend(GpuBackend):
    """One device: `handle` of the library's, and `opencl:<number>` by name."""

    def __init__(self, handle: int, number: int = 0):
        software, size = is_software(handle), subgroup_size(handle)
        driver = OpenClDriver(handle, subgroups=bool(size))
        with self.opening(driver):
            super().__init__(driver)
            self.driver: OpenClDriver = driver
            self.dialect = dialect(handle)
            integrated = is_integrated(handle)
            kind = "software" if software else "accelerator"
            if _is_gpu(handle):
                kind = "integrated GPU" if integrated else "GPU"
            memory = "" if software else f", {driver.memory()[1] / 2**30:.0f} GiB"  # PoCL's changes with what is free
            about = f"{driver.name} ({kind}){memory}, {library.query(handle, 'version')}"
            device = Device(
                "opencl", number, self, about, supported_dtypes(handle),
                Features(workgroups=True, scalar_arguments=True, subgroup_operations=bool(size)),
                limits(handle, driver.largest), tuning=tuning(handle), is_software=software, is_integrated=integrated,
            )  # fmt: skip
            self.device = apply_kept_tuning(device)

    def identity(self) -> str:
        """What the text of kernels in a plan depends on beside `Device`."""
        return digest(compiler=self.driver.compiler.identity, dialect=self.dialect.name)


def limits(handle: int, allocation_bytes: int) -> Limits:
    """What the compiler may count on."""
    lanes = MAX_SOFTWARE_WORKGROUP_SIZE if is_software(handle) else MAX_WORKGROUP_SIZE
    size = subgroup_size(handle)
    shared = min(library.query(handle, "local_memory"), MAX_SHARED_BYTES)
    return Limits(
        workgroup_size=min(library.query(handle, "workgroup_size"), lanes),
        subgroup_sizes=(size,) if size else (),
        shared_bytes=shared,
        static_shared_bytes=shared,
        allocation_bytes=allocation_bytes,
        processors=library.query(handle, "compute_units"),
    )


def tuning(handle: int) -> Tuning:
    """The defaults of its class of devices."""
    if not is_software(handle):
        return Tuning()
    return POCL_TUNING if _is_pocl(handle) else SOFTWARE_TUNING


def dialect(handle: int) -> Dialect:
    """The table of the language that its kernels are in. Intel's compiler for CPUs (2026.2) makes vectors of iterations
    where a subgroup is partly filled: sums had other bits in the last rows of one kernel than in another kernel."""
    size = subgroup_size(handle)
    table = with_subgroups(size) if size else OPENCL
    return with_ordered_loops(table) if is_software(handle) and not _is_pocl(handle) else table


def subgroup_size(handle: int) -> int:
    """The size that all subgroups of a kernel have, the largest of those that it can ask for; 0 where lanes cannot
    exchange values, or where the device's compiler would choose the size."""
    extensions = library.query(handle, "extensions").split()
    has_subgroups = SUBGROUPS in extensions or library.query(handle, "max_subgroups") > 0  # OpenCL 3.0 needs no name
    if library.version(handle) < (2, 0) or not has_subgroups or not {SHUFFLES, FIXED_SIZE} <= set(extensions):
        return 0
    return max([size for size in library.subgroup_sizes(handle) if size <= MAX_SUBGROUP_SIZE], default=0)


def supported_dtypes(handle: int) -> frozenset[dtypes.DType]:
    """All but float64, which a device need not have. 16-bit floats are converted from and to float32."""
    return frozenset(dtypes.ALL) - (frozenset() if library.query(handle, "float64") else {dtypes.float64})


def is_software(handle: int) -> bool:
    """Whether a CPU runs the kernels."""
    return bool(library.query(handle, "type") & library.DEVICE_TYPE_CPU)


def _is_pocl(handle: int) -> bool:
    return library.platform_name(library.query(handle, "platform")) == library.POCL


def is_integrated(handle: int) -> bool:
    """Whether it is a GPU that shares the processor's memory."""
    return _is_gpu(handle) and bool(library.query(handle, "shares_host_memory"))


def _is_gpu(handle: int) -> bool:
    return bool(library.query(handle, "type") & library.DEVICE_TYPE_GPU)


class OpenCl:
    """All OpenCL devices of this machine; `reason` says why there is none."""

    def __init__(self) -> None:
        self._devices: Sequence[Device] = ()
        self.reason = self._look()

    def _look(self) -> str:
        try:
            platforms = library.platforms()
        except ImportError as error:
            return f"{error}. Install it: {INSTALL}"
        if not platforms:
            return "no OpenCL driver is installed. Install the one of your GPU, or PoCL: pip install 'pyopencl[pocl]'"
        found = [device for platform in platforms for device in library.devices(platform)]
        if not found:
            drivers = ", ".join(sorted({library.platform_name(one) for one in platforms}))
            advice = "On Linux a GPU's user needs access to /dev/dri/renderD*: join the group 'render' or 'video'"
            return f"the OpenCL drivers here ({drivers}) find no device. {advice}"
        usable = [one for one in found if library.query(one, "is_available") and library.query(one, "has_compiler")]
        if not usable:
            return "of the OpenCL devices here none is available and compiles kernels. Update the GPU's driver"
        handles = sorted(usable, key=lambda handle: (is_software(handle), not _is_gpu(handle), is_integrated(handle)))
        self._devices = OpenedDevices(handles, lambda handle, number: OpenClBackend(handle, number).device)
        return ""

    def devices(self) -> Sequence[Device]:
        return self._devices
