"""The CPU backend: slabs from a caching pool, kernels through LLVM, plans on the native worker team.

`CpuExecutable.run` is one native call. Thread count: `WEFT_NUM_THREADS`, else `OMP_NUM_THREADS`, else the processors
this process may use. Results do not depend on it.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import platform
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes
from weft.backends import host_memory, native
from weft.backends.base import Buffer, Device, Explain, HostWords, MemoryCounts, Slab, empty_array, raise_bad_index
from weft.backends.jit import jit
from weft.backends.vendor import blas
from weft.compiler.plan import Code, Gemm, Launch, Number, Plan, Repeat, Step, code_of, launched, walk
from weft.counting import COUNTERS
from weft.dtypes import DType
from weft.errors import DeviceError, DTypeError, GraphError, RangeError, out_of_memory, problem
from weft.kernels.language import Kernel
from weft.kernels.normal import normalise
from weft.locks import new_lock
from weft.render import llvm

ALIGNMENT = 64
POOL_LIMIT = 1 << 30  # bytes that the pool keeps for reuse
SERIAL_WORK = 48 << 10  # a step of fewer bytes + flops runs on the caller's thread
ALONE_WORK = 192 << 10  # so does a whole plan


# --- memory ----------------------------------------------------------------------------------------------------------


class _Pool:
    """Freed memory by size class, for reuse."""

    def __init__(self) -> None:
        self.free: dict[int, list[tuple[int, np.ndarray]]] = {}
        self.kept = 0
        self.counts = MemoryCounts()

    def take(self, size: int) -> tuple[int, np.ndarray]:
        """An address aligned to 64 bytes with at least `size` bytes behind it, and its owner."""
        waiting = self.free.get(size)
        if waiting:
            self.kept -= size
            return waiting.pop()
        self.require(size)
        try:
            array = np.empty(size + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # ValueError: more than addresses can tell apart
            raise out_of_memory("cpu", size, *host_memory.memory()) from None
        address = array.ctypes.data
        return address + -address % ALIGNMENT, array

    def require(self, nbytes: int) -> None:
        """Raise where so much memory is not there, before any of it is touched."""
        if nbytes >= host_memory.CHECKED and nbytes > host_memory.memory()[0]:
            self.clear()
            available, total = host_memory.memory()
            if nbytes > available:
                raise out_of_memory("cpu", nbytes, available, total)

    def give(self, size: int, block: tuple[int, np.ndarray], limit: int = POOL_LIMIT) -> None:
        if self.kept + size <= limit:  # bound above, since module names are gone when the interpreter exits
            self.free.setdefault(size, []).append(block)
            self.kept += size

    def clear(self) -> None:
        """Hand all waiting memory back to the system."""
        self.free.clear()
        self.kept = 0


class _Block:
    """Keeps one allocation out of the pool for as long as it lives."""

    __slots__ = ("block", "nbytes", "pool", "size")

    def __init__(self, pool: _Pool, size: int, nbytes: int, block: tuple[int, np.ndarray]):
        self.pool = pool
        self.size = size
        self.nbytes = nbytes  # that were asked for
        self.block = block
        # What `MemoryCounts.take` does, without a call: there is an allocation for every result outside of compile.
        counts = pool.counts
        counts.pieces += 1
        counts.pieces_total += 1
        counts.requested += nbytes
        counts.requested_total += nbytes
        counts.allocated += size
        counts.allocated_total += size
        if counts.requested > counts.requested_peak:
            counts.requested_peak = counts.requested
        if counts.pieces > counts.pieces_peak:
            counts.pieces_peak = counts.pieces
        if counts.allocated > counts.allocated_peak:
            counts.allocated_peak = counts.allocated
        if counts.allocated + pool.kept > counts.reserved_peak:
            counts.reserved_peak = counts.allocated + pool.kept

    def __del__(self) -> None:
        counts = self.pool.counts
        counts.pieces -= 1
        counts.requested -= self.nbytes
        counts.allocated -= self.size
        self.pool.give(self.size, self.block)


def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to one of four sizes in each power of two, 64 at least."""
    if nbytes <= 256:
        return (nbytes + 63) & ~63 or 64
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


# --- the runtime -----------------------------------------------------------------------------------------------------


def thread_count() -> int:
    """How many threads a plan may use, the caller's included."""
    for name in ("WEFT_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text.isdigit() and int(text) > 0:
            return min(int(text), native.MAX_WORKERS + 1)
        if text and name == "WEFT_NUM_THREADS":  # OMP_NUM_THREADS is other people's: what we cannot read we leave
            raise problem(RangeError, name, repr(text), "a whole number above 0", f"set {name}=2, or leave it away")
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), native.MAX_WORKERS + 1)
    return min(os.cpu_count() or 1, native.MAX_WORKERS + 1)


class _Runtime:
    """The native functions. The team of workers starts at the first plan that needs it, also in a forked child."""

    def __init__(self) -> None:
        addresses = jit().runtime_addresses
        self.run = ctypes.CFUNCTYPE(None)(addresses["weft_run"])
        self.reset = ctypes.CFUNCTYPE(None, ctypes.c_int64)(addresses["weft_reset"])
        self.stop = ctypes.CFUNCTYPE(None)(addresses["weft_stop"])
        found = blas.find()
        self.products = {
            dtypes.float32: found.sgemm if found else addresses["weft_sgemm"],
            dtypes.float64: found.dgemm if found else addresses["weft_dgemm"],
        }
        self.threads_setting = (found.get_threads, found.set_threads) if found else (0, 0)
        self.threads = thread_count()

    def set_threads(self, count: int) -> None:
        """Use `count` threads from now on. Must not be called while a plan runs."""
        self.stop()
        self.threads = count
        self.reset(count - 1)


_lock = new_lock()
_runtimes: list[_Runtime] = []  # one at most


def runtime() -> _Runtime:
    """The one runtime of this process."""
    with _lock:
        if not _runtimes:
            made = _Runtime()
            if not _runtimes:  # else a finalizer or signal handler was faster, and its workers are there
                made.reset(made.threads - 1)
            if not _runtimes:
                _runtimes.append(made)
        return _runtimes[0]


@atexit.register
def _stop() -> None:
    for one in _runtimes:
        one.stop()


def _start_anew() -> None:
    for one in _runtimes:
        one.reset(one.threads - 1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


# --- plans -----------------------------------------------------------------------------------------------------------


def render(kernel: Kernel) -> Code:
    """`kernel` as LLVM IR."""
    COUNTERS.kernels_rendered += 1
    text = llvm.render(normalise(kernel))
    return code_of(kernel, llvm.symbol_of(text), text)


def compile_kernels(kernels: list[Kernel | Code]) -> list[int]:
    """The addresses of `kernels`, compiled, loaded from disk or found in memory."""
    return jit().kernels([kernel if isinstance(kernel, Code) else render(kernel) for kernel in kernels])


def _word(value: float | int | bool, dtype: DType) -> int:
    """A scalar argument as the i64 that kernels read."""
    if dtype.kind == "f":
        return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])
    wrapped = int(value) & (2**64 - 1)
    return wrapped - 2**64 if wrapped >= 2**63 else wrapped


class CpuExecutable:
    """A plan as a table of native steps."""

    __slots__ = ("_is_running", "_keep", "_launches", "_lock", "_numbers", "_plan", "_run", "_step_numbers")

    def __init__(self, plan: Plan):
        native_runtime = runtime()
        table = _Table(plan)
        numbers = [row.get(name, 0) for row in table.rows for name in native.STEP_FIELDS]
        steps = (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
        small = sum(step.bytes + step.flops for step in plan.steps) < ALONE_WORK
        alone = small or all(row.get("serial", 1) for row in table.rows)
        products = native_runtime.threads_setting[0] and any(isinstance(step, Gemm) for step, _ in walk(plan.steps))
        record = (
            ctypes.addressof(steps), len(table.rows), int(alone), int(bool(products)), *native_runtime.threads_setting,
        )  # fmt: skip
        self._plan = (ctypes.c_int64 * len(native.PLAN_FIELDS))(*record)
        self._keep = (plan, steps, table.arguments)
        self._launches = table.launches
        self._run = native_runtime.run
        self._numbers = table.numbers
        self._step_numbers = table.step_numbers
        self._lock = new_lock()
        self._is_running = False

    def run(self, slots: Any, numbers: Sequence[float] = ()) -> None:
        """Run with `slots`, a table from `CpuBackend.slot_table` filled with addresses, and the plan's open numbers."""
        COUNTERS.plans_run += 1
        COUNTERS.launches += self._launches
        if not self._numbers:
            self._run(self._plan, slots)
            return
        with self._lock:  # the numbers lie beside the plan until it has run
            if self._is_running:  # a finalizer or signal handler, in the middle of another run of this thread
                CpuExecutable(self._keep[0]).run(slots, numbers)
                return
            try:
                self._is_running = True
                for words, position, number, dtype in self._numbers:
                    words[position] = _word(numbers[number.slot], dtype)
                self._run(self._plan, slots)
            finally:
                self._is_running = False

    def time_runs(self, slots: Any, count: int) -> float:
        """Seconds of a run, of `count` one after the other."""
        run, plan = self._run, self._plan
        start = time.perf_counter()
        for _ in range(count):
            run(plan, slots)
        return (time.perf_counter() - start) / count

    def time_steps(self, slots: Any) -> list[float]:
        """Run the rows of the table one by one, each as a plan of one step that is shared as in the whole plan; the
        time of a plan without steps is taken off. Loops are walked here."""
        plan, table, _ = self._keep
        rows = [_Row(self._plan, table, number) for number in range(len(self._step_numbers))]
        empty = (ctypes.c_int64 * len(native.PLAN_FIELDS))(*self._plan)
        empty[native.PLAN_FIELDS.index("count")] = 0
        run, clock = self._run, time.perf_counter_ns
        spent = [0] * sum(1 for _ in walk(plan.steps))
        calls = [0] * len(spent)

        def walk_rows(first: int, last: int) -> None:
            number = first
            while number < last:
                row, step = rows[number], self._step_numbers[number]
                if step >= 0:
                    start = clock()
                    run(row.plan, slots)
                    spent[step] += clock() - start
                    calls[step] += 1
                    number += 1
                    continue
                end = row.end
                for turn in range(row.count):
                    for slot, base, offset, stride in row.moving:
                        slots[slot] = slots[base] + offset + turn * stride
                    walk_rows(number + 1, end)
                number = end + 1

        walk_rows(0, len(rows))
        idle = []
        for _ in range(16):
            start = clock()
            run(empty, slots)
            idle.append(clock() - start)
        cost = min(idle)
        return [max(time - count * cost, 0) * 1e-9 for time, count in zip(spent, calls, strict=True)]


class _Row:
    """One row of a plan's table: as a plan of its own, or as the begin of a loop with its `end`, the `count` of its
    iterations and what is `moving`: (slot, base slot, byte offset, byte stride) each."""

    __slots__ = ("count", "end", "moving", "plan")

    def __init__(self, plan: Any, table: Any, number: int):
        width = len(native.STEP_FIELDS)
        record = dict(zip(native.STEP_FIELDS, table[number * width : (number + 1) * width], strict=True))
        self.plan = (ctypes.c_int64 * len(native.PLAN_FIELDS))(*plan)
        self.plan[0], self.plan[1] = ctypes.addressof(table) + 8 * number * width, 1
        self.count, self.end, self.moving = record["tasks"], -1, []
        if record["kind"] == native.BEGIN:
            words = (ctypes.c_int64 * (4 * record["extent"])).from_address(record["args"])
            self.moving = [tuple(words[at : at + 4]) for at in range(0, len(words), 4)]
            kind = native.STEP_FIELDS.index("kind")
            depth = 0
            for at in range(number, len(table) // width):
                depth += {native.BEGIN: 1, native.END: -1}.get(table[at * width + kind], 0)
                if not depth:
                    self.end = at
                    break


class _Table:
    """The rows of a plan's native form, and the words that they point to."""

    def __init__(self, plan: Plan):
        steps = [step for step, _ in walk(plan.steps)]
        kernels = [launch.kernel for step in steps if (launch := launched(step)) is not None]
        distinct = {id(kernel): kernel for kernel in kernels}
        self.functions = dict(zip(distinct, compile_kernels(list(distinct.values())), strict=True))
        self.rows: list[dict[str, int]] = []
        self.arguments: list[Any] = []
        self.numbers: list[tuple[Any, int, Number, DType]] = []  # words, position, what belongs there
        self.launches = 0
        self.step_numbers: list[int] = []  # of each row: which step of `walk` it is, -1 for the ends of loops
        self._walked = 0
        for step in plan.steps:
            self._add(step, 1)

    def _add(self, step: Step, times: int) -> None:
        """Append the rows of a step that runs `times` times."""
        if isinstance(step, Repeat):
            self._repeat(step, times)
            return
        number, self._walked = self._walked, self._walked + 1
        launch = launched(step)
        function = self.functions[id(launch.kernel)] if launch else 0
        words = argument_words(launch)
        address = ctypes.addressof(words)
        if isinstance(step, Launch):
            row = _launch_record(step, function, address)
        elif isinstance(step, Gemm):
            row = _product_record(step, runtime(), function, address)
        else:
            raise problem(GraphError, "compile", f"a call of {step.library}", "a plan made for the CPU")
        if row["tasks"]:
            self.rows.append(row)
            self.step_numbers.append(number)
            self.arguments.append(words)
            self.launches += times
            self._note_numbers(words, launch)

    def _note_numbers(self, words: Any, launch: Launch | None) -> None:
        if launch is not None:
            for position, (value, param) in enumerate(zip(launch.scalars, launch.kernel.scalars, strict=True)):
                if isinstance(value, Number):
                    self.numbers.append((words, 2 * len(launch.places) + position, value, param.dtype))

    def _repeat(self, step: Repeat, times: int) -> None:
        for launch in step.first:
            self._add(launch, times)
        words = [n for m in step.moving for n in (m.slot, m.place.slot, m.place.offset, m.stride)]
        table = (ctypes.c_int64 * max(len(words), 1))(*words)
        self.arguments.append(table)
        row = {"args": ctypes.addressof(table), "extent": len(step.moving), "tasks": step.count, "serial": 1}
        row |= {"counter": step.counter, "target": len(self.rows) + 1}
        self.rows.append({"kind": native.BEGIN, **row})
        self.step_numbers.append(-1)
        for inner in step.steps:
            self._add(inner, times * step.count)
        self.rows.append({"kind": native.END, **row})
        self.step_numbers.append(-1)


def argument_words(launch: Launch | None) -> Any:
    """What a kernel reads through its `args`: slot and offset of each buffer, then the scalars."""
    words: list[int] = []
    if launch is not None:
        for place in launch.places:
            words += (place.slot, place.offset)
        for value, param in zip(launch.scalars, launch.kernel.scalars, strict=True):
            words.append(0 if isinstance(value, Number) else _word(value, param.dtype))
    return (ctypes.c_int64 * max(len(words), 1))(*words)


def _launch_record(step: Launch, function: int, arguments: int) -> dict[str, int]:
    chunk = max(step.chunk, 1)
    tasks = -(-step.extent // chunk)
    serial = tasks <= 1 or step.bytes + step.flops < SERIAL_WORK
    return {
        "kind": native.LAUNCH,
        "function": function,
        "args": arguments,
        "extent": step.extent,
        "chunk": chunk,
        "tasks": tasks,
        "serial": int(serial),
    }


def _product_record(step: Gemm, native_runtime: _Runtime, epilogue: int, arguments: int) -> dict[str, int]:
    if step.dtype not in native_runtime.products:
        raise problem(DTypeError, step.name, f"a product of {step.dtype.name}", "float32 or float64")
    itemsize = step.dtype.itemsize
    tiles_m, tiles_n = -(-step.m // max(step.tile_m, 1)), -(-step.n // max(step.tile_n, 1))
    tasks = step.batch * tiles_m * tiles_n
    record = {
        "kind": native.PRODUCT,
        "function": native_runtime.products[step.dtype],
        "tasks": tasks,
        "serial": int(tasks <= 1 or step.bytes + step.flops < SERIAL_WORK),
        "epilogue": epilogue,
        "epilogue_args": arguments,
        "m": step.m,
        "n": step.n,
        "k": step.k,
        "tile_m": step.tile_m,
        "tile_n": step.tile_n,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "down": int(step.m <= step.n),  # walk down the columns of tiles: the larger operand is then read once
        "itemsize": itemsize,
        "transpose_a": native.TRANSPOSED if step.transpose_a else native.PLAIN,
        "transpose_b": native.TRANSPOSED if step.transpose_b else native.PLAIN,
    }
    inner = record["inner"] = step.inner or max(step.batch, 1)
    matrices = {
        "a": (step.a, step.lda, step.stride_a, step.outer_a),
        "b": (step.b, step.ldb, step.stride_b, step.outer_b),
        "c": (step.c, step.ldc, step.stride_c, step.stride_c * inner),
    }
    for name, (place, pitch, stride, outer) in matrices.items():
        record |= {f"{name}_slot": place.slot, f"{name}_offset": place.offset, f"{name}_row": pitch * itemsize}
        record |= {f"{name}_batch": stride * itemsize, f"{name}_outer": outer * itemsize}
    return record


# --- the backend -----------------------------------------------------------------------------------------------------


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _limits() -> dict[str, int]:
    """Bytes in all vector registers, by which kernels choose the size of their tiles; threads, for shares of work."""
    found = jit().features
    return {"vector_bytes": 2048 if "+avx512vl" in found else 512, "threads": thread_count()}


class _Window:
    """Bytes of a slab for NumPy. The slab counts as held while an array made of this lives."""

    __slots__ = ("__array_interface__", "slab")

    def __init__(self, buffer: Buffer, nbytes: int):
        self.slab = buffer.slab
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (buffer.pointer, True)}


def _memory(slab: Slab, kind: type) -> np.ndarray:
    """All of a slab as a vector."""
    raw: Any = (ctypes.c_char * slab.nbytes).from_address(slab.pointer)
    return np.frombuffer(raw, kind)


class CpuBackend:
    """The device that every machine has."""

    runs_ahead = False

    def __init__(self) -> None:
        self.pool = _Pool()
        features = frozenset({"templates", "numbers"} | ({"small products"} if blas.has_small_kernels() else set()))
        self.device = Device("cpu", 0, self, _processor(), frozenset(dtypes.ALL), features, _limits())

    def devices(self) -> list[Device]:
        return [self.device]

    def allocate(self, nbytes: int) -> Slab:
        size = size_class(nbytes)
        block = _Block(self.pool, size, nbytes, self.pool.take(size))
        return Slab(self.device, nbytes, block.block[0], block)

    def require(self, nbytes: int) -> None:
        """Raise OutOfMemoryError where a run that needs so much memory would not get it."""
        self.pool.require(nbytes)

    def memory(self) -> tuple[int, int]:
        """Bytes that can still be had, and bytes in all."""
        available, total = host_memory.memory()
        return available + self.pool.kept, total

    def counts(self) -> tuple[MemoryCounts, int]:
        """Of the pool, and bytes had of the system."""
        return self.pool.counts, self.pool.counts.allocated + self.pool.kept

    def empty_cache(self) -> None:
        """Hand freed memory back to the system."""
        self.pool.clear()

    def arena(self, nbytes: int) -> Slab:
        return self.allocate(nbytes)

    def place(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of an array."""
        slab = self.allocate(array.nbytes)
        self.upload(Buffer(slab, 0, array.nbytes), array)
        return slab

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy a NumPy array of the buffer's size in."""
        if array.nbytes != buffer.nbytes:
            raise problem(DeviceError, "upload", f"an array of {array.nbytes} bytes", f"{buffer.nbytes} bytes")
        data = np.ascontiguousarray(array)
        ctypes.memmove(buffer.pointer, data.ctypes.data, data.nbytes)
        COUNTERS.uploads += 1
        COUNTERS.upload_bytes += data.nbytes

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """A NumPy array of its own with the buffer's elements."""
        array = empty_array(shape, dtype)
        if array.nbytes > buffer.nbytes:
            raise problem(DeviceError, "download", f"a buffer of {buffer.nbytes} bytes", f"{array.nbytes} bytes")
        ctypes.memmove(array.ctypes.data, buffer.pointer, array.nbytes)
        COUNTERS.downloads += 1
        COUNTERS.download_bytes += array.nbytes
        return array

    peek = download

    def adopt(self, array: np.ndarray) -> Slab:
        """The memory of a contiguous array, which stays the caller's and is only read."""
        return Slab(self.device, array.nbytes, array.ctypes.data, array)

    def window(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """The buffer's memory as an array that cannot be written to and keeps the slab alive."""
        COUNTERS.downloads += 1
        nbytes = math.prod(shape) * dtype.itemsize
        COUNTERS.download_bytes += nbytes
        return np.asarray(_Window(buffer, nbytes)).view(dtype.numpy).reshape(shape)

    def copy(self, target: Buffer, source: Buffer) -> None:
        ctypes.memmove(target.pointer, source.pointer, source.nbytes)

    def host_words(self, nbytes: int) -> HostWords:
        """The memory itself, which the host writes to. Not a transfer."""
        slab = self.allocate(nbytes)
        return HostWords(slab, _memory(slab, np.uint8))

    def status(self, nbytes: int) -> Slab:
        slab = self.allocate(nbytes)
        ctypes.memset(slab.pointer, 0, nbytes)
        return slab

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        """The run is over: its status words say how it went."""
        raise_bad_index(_memory(status, np.int32), plan, explain)

    def clear(self, buffer: Buffer) -> None:
        ctypes.memset(buffer.pointer, 0, buffer.nbytes)

    def slot_table(self, count: int) -> Any:
        """A table of `count` addresses for `CpuExecutable.run`; fill it by index."""
        return (ctypes.c_uint64 * max(count, 1))()

    def executable(self, plan: Plan) -> CpuExecutable:
        return CpuExecutable(plan)

    def render(self, kernel: Kernel) -> Code:
        """The form in which `kernel` is compiled."""
        return render(kernel)

    def identity(self) -> str:
        """The processor and the code generator."""
        return jit().identity

    def synchronise(self) -> None:
        """Plans run to their end before `run` returns: nothing to wait for."""
