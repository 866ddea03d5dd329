"""What `weft tune` times on a device: a few programs, the fields that it searches, and how a program is compiled with
another tuning than the device's.

Nothing of it is kept: plans of candidates enter neither the memory of plans nor the disk. The search itself, which
knows no device, is `weft.profiling.tune`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import weft
import weft.nn.functional as F
from weft.base.dtypes import DType
from weft.base.errors import DeviceError, problem
from weft.base.tuning import Tuning
from weft.compiler import program as programs
from weft.compiler.pipeline import assemble
from weft.compiler.plan_cache import render_kernels
from weft.compiler.templates.gemm import tiles_for
from weft.core.tensor import Tensor
from weft.plan.device import Buffer, Device
from weft.plan.plan import Plan
from weft.plan.protocols import TimedExecutable
from weft.plan.serialize import pack

# Values that are tried, those near the usual one first. Only fields that divide work among lanes, workgroups and tasks:
# none decides what shares a kernel, because this changes the last bits of some long rows on GPUs (docs/numerics.md).
GPU_FIELDS: dict[str, tuple[int, ...]] = {
    "workgroup_size": (128, 512, 64, 1024),
    "bytes_in_flight": (32, 128, 16),
    "max_single_elements": (1 << 18, 1 << 14, 1 << 20),
    "max_unrolled_operations": (256, 1024),
    "column_rows_in_flight": (4, 16),
    "column_prefetch_bytes": (4096, 16384),
    "min_prefetch_bytes": (16384, 65536),
    "storing_workgroups": (1, 4),
}
CPU_FIELDS: dict[str, tuple[int, ...]] = {
    "min_task_bytes": (16384, 65536, 131072),
    "max_tasks": (32, 128, 16),
    "min_streamed_bytes": (2 << 20, 32 << 20),
    "conv_task_flops": (200_000, 800_000, 1_600_000),
    "conv_pixels_per_pass": (128, 512),
    "max_conv_tile_pixels": (8,),
}

ARRAY_BYTES = {"cpu": 16 << 20}  # of an array of memory-bound probes
GPU_ARRAY_BYTES = 64 << 20  # three of which no cache holds
SOFTWARE_BYTES = 1 << 19  # of one on a device that is emulated
SOFTWARE_ROWS = 224  # of the factors of a product there
PRODUCT_ROWS = (4096, 2048, 1024)  # of the factors on a GPU: the largest whose product takes no longer than
PRODUCT_SECONDS = 0.02
MIN_SECONDS = 2e-3  # of a round: shorter runs are repeated
MAX_REPEATS = 64
WARM_RUNS = 2


class DeviceRun:
    """A probe compiled with one tuning: its plan, and its own memory for results."""

    def __init__(self, probe: DeviceProbe, tuning: Tuning):
        self._probe = probe
        plan, self._outputs = assemble(probe.program, replace(probe.device, tuning=tuning))
        self._plan: Plan = render_kernels(plan, probe.device.backend)
        self.form = pack(self._plan)
        self._executable: TimedExecutable | None = None
        self._table: Any = None
        self._slabs: dict[int, Any] = {}
        self._repeats = 0

    def seconds(self) -> float:
        executable = self._prepare()
        if not self._repeats:
            for _ in range(WARM_RUNS):
                executable.run(self._table)
            once = executable.time_runs(self._table, 1)
            self._repeats = min(max(1, math.ceil(MIN_SECONDS / max(once, 1e-9))), MAX_REPEATS)
        return executable.time_runs(self._table, self._repeats)

    def results(self) -> bytes:
        executable, backend = self._prepare(), self._probe.device.backend
        executable.run(self._table)
        found = []  # whole, not digests: comparing them takes less time than one
        for node, (slot, offset) in zip(self._probe.nodes, self._outputs, strict=True):
            found.append(backend.download(Buffer(self._slabs[slot], offset, node.nbytes), node.shape, node.dtype))
        return b"".join([array.tobytes() for array in found])

    def _prepare(self) -> TimedExecutable:
        """Compile the kernels and allocate memory, when a run is first needed."""
        if self._executable is None:
            backend = self._probe.device.backend
            executable = backend.executable(self._plan)
            if not isinstance(executable, TimedExecutable):
                given = f"the device {self._probe.device}"
                raise problem(DeviceError, "tune", given, "a device that runs plans", "use the CPU or a GPU")
            self._table = backend.slot_table(len(self._plan.slots) + 1)
            for number, buffer in enumerate(self._probe.inputs):
                self._table[number] = buffer.pointer
            get = {"output": backend.allocate, "arena": backend.arena, "status": backend.status}
            for number, slot in enumerate(self._plan.slots):
                if slot.kind in get:
                    self._slabs[number] = get[slot.kind](slot.nbytes)
                    self._table[number] = self._slabs[number].pointer
            self._executable = executable
        return self._executable


class DeviceProbe:
    """A program on a device: the lazy tensors `results`, which take `work` operations ('flop') or bytes ('B')."""

    def __init__(
        self, name: str, device: Device, results: Sequence[Tensor], work: int, unit: str = "B",
        tiles: Mapping[str, int] | None = None,
    ):  # fmt: skip
        self.name, self.device, self.work, self.unit, self.tiles = name, device, work, unit, tiles or {}
        self.nodes = [tensor.node for tensor in results]
        self.program, buffers = programs.build(self.nodes, programs.locate(self.nodes, {}))
        self.inputs = [buffer for buffer in buffers if buffer is not None]
        self._kept = results

    def compile(self, tuning: Tuning) -> DeviceRun:
        return DeviceRun(self, tuning)


def searched_fields(device: Device) -> dict[str, tuple[int, ...]]:
    """The fields that matter on a device, with the values to try."""
    if not device.features.workgroups:
        return CPU_FIELDS
    most = device.limits.workgroup_size
    return {**GPU_FIELDS, "workgroup_size": tuple([size for size in GPU_FIELDS["workgroup_size"] if size <= most])}


def probes_of(device: Device, only: Iterable[str] = ()) -> list[DeviceProbe]:
    """The probes of a device, in memory; or only those of these names."""
    makers: dict[str, Callable[[_Arrays], DeviceProbe]] = {**MEMORY_PROBES}
    if device.features.workgroups:
        makers |= PRODUCT_PROBES
        if device.features.matrix_units and weft.bfloat16 in device.dtypes:
            makers |= UNIT_PROBES
    else:
        makers |= CPU_PROBES
    names = set(only) or set(makers)
    wanted = [make for name, make in makers.items() if name in names]
    with device, weft.no_grad():
        arrays = _Arrays(device)
        found = [make(arrays) for make in wanted]
    return [probe for probe in found if probe.tiles or "product" not in probe.name]  # the others have fixed tiles


class _Arrays:
    """Tensors of random numbers that the probes of a device share, and how large they are."""

    def __init__(self, device: Device):
        self.device = device
        nbytes = SOFTWARE_BYTES if device.is_software else ARRAY_BYTES.get(device.kind, GPU_ARRAY_BYTES)
        nbytes = min(nbytes, device.limits.binding_bytes or nbytes, device.backend.memory()[0] // 32)
        self.rows = max(1, nbytes // 4096)  # of 1024 float32
        self._generator = np.random.default_rng(0)
        self._made: dict[tuple, Tensor] = {}
        self._product_rows = 0

    def make(self, *shape: int, number: int = 0, dtype: DType = weft.float32, grad: bool = False) -> Tensor:
        """A tensor of this shape; another one for each number."""
        key = shape, number, dtype.name, grad
        if key not in self._made:
            array = self._generator.standard_normal(shape, dtype=np.float32)
            made = weft.tensor(array, dtype=dtype, requires_grad=grad)
            weft.eval(made)
            self._made[key] = made
        return self._made[key]

    @property
    def table(self) -> Tensor:
        return self.make(self.rows, 1024)

    def product_rows(self) -> int:
        """Rows of the factors of a large product."""
        if self.device.is_software:
            return SOFTWARE_ROWS
        if not self._product_rows:
            least = PRODUCT_ROWS[-1]
            a, b = self.make(least, least), self.make(least, least, number=1)
            seconds = DeviceProbe("size", self.device, [a @ b], 1).compile(self.device.tuning).seconds()
            fitting = [rows for rows in PRODUCT_ROWS if seconds * (rows / least) ** 3 <= PRODUCT_SECONDS]
            self._product_rows = next(iter(fitting), least)
        return self._product_rows


def _elementwise(arrays: _Arrays) -> DeviceProbe:
    x, y = arrays.table, arrays.make(arrays.rows, 1024, number=1)
    return DeviceProbe("elementwise", arrays.device, [x * y + x], 3 * x.nbytes)


def _small(arrays: _Arrays) -> DeviceProbe:
    x = arrays.make(min(arrays.rows, 96), 1024, number=2)
    return DeviceProbe("small elementwise", arrays.device, [(x * 0.5).tanh()], 2 * x.nbytes)


def _softmax(arrays: _Arrays) -> DeviceProbe:
    x = arrays.table
    return DeviceProbe("softmax of rows", arrays.device, [x.softmax(-1)], 2 * x.nbytes)


def _norm(arrays: _Arrays) -> DeviceProbe:
    """Layer norm, forward and backward."""
    x, y = arrays.make(arrays.rows, 1024, number=3, grad=True), arrays.table
    weight, bias = arrays.make(1024, number=1, grad=True), arrays.make(1024, number=2, grad=True)
    with weft.enable_grad():
        (F.layer_norm(x, (1024,), weight, bias) * y).sum().backward()
    assert x.grad is not None and weight.grad is not None and bias.grad is not None
    return DeviceProbe("layer norm", arrays.device, [x.grad, weight.grad, bias.grad], 3 * x.nbytes)


def _columns(arrays: _Arrays) -> DeviceProbe:
    x = arrays.table
    return DeviceProbe("column sums", arrays.device, [(x * 2.0).sum(0)], x.nbytes)


def _stored_columns(arrays: _Arrays) -> DeviceProbe:
    """Column sums of what is stored, as of a gradient and that of its bias."""
    x, y = (arrays.make(max(1, arrays.rows // 4), 4096, number=number) for number in (5, 6))
    scaled = x * y
    return DeviceProbe("stored column sums", arrays.device, [scaled, scaled.sum(0)], 3 * x.nbytes)


def _transpose(arrays: _Arrays) -> DeviceProbe:
    x, y = arrays.table, arrays.make(1024, arrays.rows, number=4)
    return DeviceProbe("transpose", arrays.device, [x.transpose(0, 1) + y], 3 * x.nbytes)


def _sum(arrays: _Arrays) -> DeviceProbe:
    x = arrays.table
    return DeviceProbe("sum", arrays.device, [x.abs().sum()], x.nbytes)


def _convolution(arrays: _Arrays) -> DeviceProbe:
    """A convolution with both gradients."""
    images, channels, side = 16, 32, 32
    x = arrays.make(images, channels, side, side, grad=True)
    w = arrays.make(channels, channels, 3, 3, grad=True)
    with weft.enable_grad():
        y = F.conv2d(x, w, padding=1)
        (y * y).sum().backward()
    assert x.grad is not None and w.grad is not None
    work = 3 * 2 * images * side * side * 9 * channels * channels
    return DeviceProbe("convolution", arrays.device, [x.grad, w.grad], work, "flop")


def _product(
    name: str, shape: tuple[float, float, float], dtype: DType, transposed: bool
) -> Callable[..., DeviceProbe]:
    """A product of [m, k] and [k, n], multiples of the device's large size; `transposed`: the first lies as [k, m]."""

    def make(arrays: _Arrays) -> DeviceProbe:
        m, n, k = (max(16, int(part * arrays.product_rows())) for part in shape)
        a = arrays.make(*((k, m) if transposed else (m, k)), dtype=dtype)
        b = arrays.make(k, n, number=1, dtype=dtype)
        tiles = tiles_for(arrays.device, dtype, m, n, k)
        result = (a.transpose(0, 1) if transposed else a) @ b
        return DeviceProbe(name, arrays.device, [result], 2 * m * n * k, "flop", tiles)

    return make


def _products(prefix: str, dtype: DType) -> dict[str, Callable[[_Arrays], DeviceProbe]]:
    cases = {
        f"{prefix} product": ((1.0, 1.0, 1.0), False),
        f"{prefix} product, transposed": ((1.0, 1.0, 1.0), True),
        f"{prefix} product, fewer rows": ((0.25, 1.0, 1.0), False),  # of which kernels are the same
        f"{prefix} product, few rows": ((1 / 32, 1.0, 1.0), False),
    }
    return {name: _product(name, shape, dtype, transposed) for name, (shape, transposed) in cases.items()}


MEMORY_PROBES: dict[str, Callable[[_Arrays], DeviceProbe]] = {
    "elementwise": _elementwise, "small elementwise": _small, "softmax of rows": _softmax, "layer norm": _norm,
    "column sums": _columns, "stored column sums": _stored_columns, "sum": _sum,
}  # fmt: skip
CPU_PROBES: dict[str, Callable[[_Arrays], DeviceProbe]] = {"transpose": _transpose, "convolution": _convolution}
PRODUCT_PROBES = _products("float32", weft.float32)
UNIT_PROBES = _products("bfloat16", weft.bfloat16)
