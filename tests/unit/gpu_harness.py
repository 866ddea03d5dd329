"""Runs plans of GPU kernels without the compiler knowing of a GPU backend: on an emulator here, on CUDA in tests/gpu.

`HostBackend` keeps memory where NumPy can see it and hands every launch to `launch`, which a subclass provides. Matrix
products are NumPy's. The device has workgroups, so the compiler makes kernels with the GPU schedule.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from weft.backends.cuda import backend as cuda_backend
from weft.backends.gpu.limits import check_plan
from weft.backends.hip import backend as hip_backend
from weft.base import dtypes
from weft.base.capabilities import MAX_BINDING_OFFSET, Features, Limits
from weft.base.dtypes import DType
from weft.base.tuning import Tuning
from weft.kernels.gpu.int32_indices import use_int32_indices
from weft.kernels.ir.language import NATIVE, BufferParam, Kernel, pool_bytes, shared_arrays
from weft.kernels.ir.normalize import normalise
from weft.plan.device import Buffer, Device, Explain, HostWords, Slab, raise_bad_index
from weft.plan.plan import (
    Config,
    Gemm,
    Launch,
    LibraryCall,
    Moving,
    Number,
    Place,
    Plan,
    Product,
    Repeat,
    Scalar,
    Step,
    iterate_steps,
    launch_of,
)


def bytes_at(pointer: int, nbytes: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer), np.uint8)


@dataclass
class Memory:
    """Where the slots of a plan begin and end, in one run of it."""

    slots: list[int]
    ends: list[int]
    numbers: tuple  # what the caller passes with a run
    arena: int  # its slot, where it consists of several allocations
    pieces: int  # bytes of each of them

    def scalar(self, value: Scalar) -> float | int:
        return self.numbers[value.slot] if isinstance(value, Number) else value

    def array(self, place: Place, dtype: DType) -> np.ndarray:
        """Everything from a place to the end of its slot, or of its piece of the arena."""
        begin, end = self.slots[place.slot] + place.offset, self.ends[place.slot]
        if place.slot == self.arena:
            end = min(end, begin + self.pieces - place.offset % self.pieces)
        return bytes_at(begin, (end - begin) // dtype.itemsize * dtype.itemsize).view(dtype.numpy)

    def move(self, moving: Moving, iteration: int) -> None:
        place = moving.place
        self.slots[moving.slot] = self.slots[place.slot] + place.offset + iteration * moving.stride
        self.ends[moving.slot] = self.ends[place.slot]


class Executable:
    """A plan that goes through `HostBackend.launch` step by step."""

    def __init__(self, plan: Plan, backend: HostBackend):
        self.plan, self.backend = plan, backend
        self.ready = {id(step): self._ready(step) for step, _ in iterate_steps(plan.steps)}

    def _ready(self, step: Launch | Gemm | LibraryCall) -> Kernel | Callable | None:
        if isinstance(step, LibraryCall):
            return self.backend.device.libraries[step.library].prepare(step.config)
        launch = launch_of(step)
        if launch is None:
            return None
        kernel = normalise(launch.kernel)
        return kernel if self.backend.device.features.int64_arithmetic else use_int32_indices(kernel)

    def run(self, slots: list[int], numbers: tuple = ()) -> None:
        ends = [pointer + slot.nbytes for pointer, slot in zip(slots, self.plan.slots, strict=False)]
        pieces = self.backend.device.limits.allocation_bytes
        self._run(
            self.plan.steps, Memory(list(slots), ends, numbers, len(self.plan.slots) - 2 if pieces else -1, pieces)
        )

    def _run(self, steps: tuple[Step, ...], memory: Memory) -> None:
        for step in steps:
            if isinstance(step, Repeat):
                self._repeat(step, memory)
                continue
            if isinstance(step, LibraryCall):
                self.ready[id(step)]([memory.slots[place.slot] + place.offset for place in step.places])
                continue
            launch = launch_of(step)
            if isinstance(step, Gemm):
                self._multiply(step, memory)
            if launch is not None:
                bound = zip(launch.places, launch.kernel.buffers, strict=True)
                arrays = [
                    visible(memory.array(place, param.dtype), param, self.backend.device) for place, param in bound
                ]
                scalars = tuple([memory.scalar(value) for value in launch.scalars])
                self.backend.launch(self.ready[id(step)], arrays, scalars, launch.extent)

    def _repeat(self, step: Repeat, memory: Memory) -> None:
        self._run(step.first, memory)
        for iteration in range(step.count):
            for moving in step.moving:
                memory.move(moving, iteration)
            self._run(step.steps, memory)

    def _multiply(self, g: Gemm, memory: Memory) -> None:
        a, b, c = (memory.array(place, g.dtype) for place in (g.a, g.b, g.c))

        inner = g.inner or max(g.batch, 1)

        def matrices(flat, rows, cols, leading, stride, outer, transposed):
            steps = (1, leading) if transposed else (leading, 1)
            strides = [step * flat.itemsize for step in (outer, stride, *steps)]
            return np.lib.stride_tricks.as_strided(flat, (g.batch // inner, inner, rows, cols), strides)

        left = matrices(a, g.m, g.k, g.lda, g.stride_a, g.outer_a, g.transpose_a)
        right = matrices(b, g.k, g.n, g.ldb, g.stride_b, g.outer_b, g.transpose_b)
        matrices(c, g.m, g.n, g.ldc, g.stride_c, g.stride_c * inner, False)[:] = left @ right


class Products:
    """A library of matrix products: what a config says, in NumPy. Its workspace must be there and may be anything."""

    name = "products"
    version = "1"
    failures = ()
    WORKSPACE = 1024

    def offer(self, node, srcs) -> None:
        """Nothing but products."""

    def can_multiply(self, *product) -> bool:
        return True

    def epilogues(self, dtype: DType) -> frozenset[str]:
        return frozenset({"add", "bias", "relu", "gelu"})

    def configure_product(self, product: Product) -> tuple[Config, int]:
        return (*product.config, "an algorithm"), self.WORKSPACE

    def prepare(self, config: Config):
        *fields, algorithm = config
        assert algorithm == "an algorithm"
        p = Product(*fields)

        def matrices(address, rows, cols, dtype, leading, strides, transposed):
            steps = (1, leading) if transposed else (leading, 1)
            shape = (p.outer, p.inner, rows, cols)
            last = sum((extent - 1) * step for extent, step in zip(shape, (*strides, *steps), strict=True))
            flat = bytes_at(address, (last + 1) * dtype.itemsize).view(dtype.numpy)
            return np.lib.stride_tricks.as_strided(flat, shape, [n * dtype.itemsize for n in (*strides, *steps)])

        def call(addresses) -> None:
            left = iter(addresses)
            size = p.m * p.n
            wide = np.float64 if p.operand is dtypes.float64 else np.float32

            def result(address):
                return matrices(address, p.m, p.n, p.result, p.n, (p.inner * size, size), False)

            a = matrices(next(left), p.m, p.k, p.operand, p.leading_a, p.strides_a, p.transpose_a)
            b = matrices(next(left), p.k, p.n, p.operand, p.leading_b, p.strides_b, p.transpose_b)
            value = wide(p.alpha) * (a.astype(wide) @ b.astype(wide))
            bias = next(left) if p.bias else 0
            if p.add:
                value += result(next(left)).astype(wide)
            if p.bias:
                value += bytes_at(bias, p.n * p.result.itemsize).view(p.result.numpy).astype(wide)
            given = value
            if p.activation == "relu":
                value = np.where(value <= 0, wide(0), value)
            if p.activation == "gelu":
                value = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
            result(next(left))[:] = value
            if p.keep:
                result(next(left))[:] = given
            bytes_at(next(left), self.WORKSPACE)[:] = 0xFF

        return call


def visible(array: np.ndarray, param: BufferParam, device: Device) -> np.ndarray:
    """What the bindings of a buffer reach of the memory from its beginning on."""
    limits = device.limits
    if not limits.binding_bytes:
        return array
    nbytes = limits.whole_bytes if param.bindings == 1 else param.bindings * limits.part_bytes - MAX_BINDING_OFFSET
    return array[: nbytes // array.itemsize]


def check_limits(kernel: Kernel, device: Device) -> None:
    """A kernel asks for no more lanes and shared memory than a workgroup of its device has, and binds no more
    buffers."""
    bound = sum(param.bindings for param in kernel.buffers)
    assert bound <= (device.limits.storage_buffers or bound), f"{kernel.name}: {bound} bindings"
    arrays = shared_arrays(kernel.body)
    declared, asked = (
        sum(pool_bytes(one) for one in arrays if one.scope == scope) for scope in ("workgroup", "launch")
    )
    lanes, nbytes = device.limits.workgroup_size, device.limits.shared_bytes
    assert kernel.geometry is not None and kernel.geometry.lanes <= lanes, f"{kernel.name}: {kernel.geometry}"
    assert declared <= device.limits.static_shared_bytes and declared + asked <= nbytes, (
        f"{kernel.name}: {declared} + {asked} bytes shared"
    )
    assert asked == kernel.geometry.shared, kernel.name


def gpu_features(*names: str) -> Features:
    """The features of a GPU that has these, by the names of their fields; "mfma" and "wmma" are AMD's matrix units, and
    "no int64_arithmetic" is one that it lacks."""
    values: dict[str, Any] = {"native_functions": NATIVE, "matrix_units": cuda_backend.FEATURES.matrix_units}
    units = {"mfma": hip_backend.MFMA, "wmma": hip_backend.WMMA}
    given = {
        name.removeprefix("no "): values.get(name, not name.startswith("no ")) for name in names if name not in units
    }
    for name in units.keys() & set(names):
        given["matrix_units"] = (units[name],)
    return Features(workgroups=True, **given)


def set_limits(patch: pytest.MonkeyPatch, device: Device, **limits: Any) -> None:
    """`device` with other limits, for one test."""
    changed = {id(device): replace(device.limits, **limits)}
    slot = Device.__dict__["limits"]
    patch.setattr(
        Device, "limits", property(lambda self: changed[id(self)] if id(self) in changed else slot.__get__(self))
    )


class HostBackend:
    """Memory in NumPy arrays; `kernels` are all that plans on this device were made of, in normal form."""

    runs_ahead = False
    tuning = Tuning()  # of devices that are made from now on

    def __init__(self, kind: str, features: Iterable[str] = (), limits: dict[str, Any] | None = None):
        given = gpu_features(*features)
        if given.subgroup_operations:
            limits = {"subgroup_sizes": (32,), **(limits or {})}
        self.device = Device(
            kind, 0, self, kind, frozenset(dtypes.ALL), given, Limits(**(limits or {})), tuning=self.tuning
        )
        self.kernels: list[Kernel] = []

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        """Run a kernel over [0, extent)."""

    def devices(self) -> list[Device]:
        return [self.device]

    def memory(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def allocate(self, nbytes: int) -> Slab:
        memory = self.memory(max(nbytes, 1))
        return Slab(self.device, nbytes, memory.ctypes.data, memory)

    def require(self, nbytes: int) -> None:
        """Programs of tests are small."""

    def arena(self, nbytes: int) -> Slab:
        return self.allocate(nbytes)

    def slot_table(self, count: int) -> list[int]:
        return [0] * count

    def render(self, kernel: Kernel) -> Kernel:
        """The kernel itself, which is interpreted or printed later."""
        return kernel

    def identity(self) -> None:
        """Plans of kernels that were not rendered are not kept."""

    def executable(self, plan: Plan) -> Executable:
        check_plan(plan, self.device)
        made = Executable(plan, self)
        kernels = [kernel for kernel in made.ready.values() if isinstance(kernel, Kernel)]
        for kernel in kernels:
            check_limits(kernel, self.device)
        self.kernels.extend(kernels)
        return made

    def upload_new(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of an array."""
        slab = self.allocate(array.nbytes)
        self.upload(Buffer(slab, 0, array.nbytes), array)
        return slab

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        bytes_at(buffer.pointer, buffer.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        return bytes_at(buffer.pointer, buffer.nbytes).view(dtype.numpy).reshape(shape).copy()

    peek = download

    def host_words(self, nbytes: int) -> HostWords:
        slab = self.allocate(nbytes)
        return HostWords(slab, bytes_at(slab.pointer, nbytes))

    def status(self, nbytes: int) -> Slab:
        slab = self.allocate(nbytes)
        self.clear(Buffer(slab, 0, nbytes))
        return slab

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        raise_bad_index(bytes_at(status.pointer, status.nbytes).view(np.int32), plan, explain)

    def copy(self, target: Buffer, source: Buffer) -> None:
        bytes_at(target.pointer, target.nbytes)[:] = bytes_at(source.pointer, source.nbytes)

    def clear(self, buffer: Buffer) -> None:
        bytes_at(buffer.pointer, buffer.nbytes)[:] = 0

    def synchronise(self) -> None:
        """Every launch is finished when it returns."""
