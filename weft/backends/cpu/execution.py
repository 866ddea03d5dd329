"""Plans on the CPU: each becomes a table of native steps, once; a run is one native call."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from typing import Any

from weft.backends.cpu import runtime as cpu_runtime
from weft.backends.cpu.jit import jit
from weft.backends.cpu.worker_team import NativeRuntime, runtime
from weft.base.counters import COUNTERS
from weft.base.dtypes import DType
from weft.base.errors import DTypeError, GraphError, problem
from weft.base.locks import new_lock
from weft.base.tuning import Tuning
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.normalize import normalise
from weft.plan.plan import Code, Gemm, Launch, Number, Plan, Repeat, Step, code_of, iterate_steps, launch_of
from weft.render.llvm import module as llvm_module


def render(kernel: Kernel) -> Code:
    """`kernel` as LLVM IR."""
    COUNTERS.kernels_rendered += 1
    text = llvm_module.render(normalise(kernel))
    return code_of(kernel, llvm_module.symbol_of(text), text)


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
    """A plan as a table of native steps; `tuning` says which of them one thread runs."""

    __slots__ = ("_is_running", "_keep", "_launches", "_lock", "_numbers", "_plan", "_run", "_step_numbers")

    def __init__(self, plan: Plan, tuning: Tuning):
        native_runtime = runtime()
        table = _Table(plan, tuning.min_parallel_work)
        numbers = [row.get(name, 0) for row in table.rows for name in cpu_runtime.STEP_FIELDS]
        steps = (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
        small = sum(step.bytes + step.flops for step in plan.steps) < tuning.min_parallel_plan
        alone = small or all(row.get("serial", 1) for row in table.rows)
        products = native_runtime.threads_setting[0] and any(
            isinstance(step, Gemm) for step, _ in iterate_steps(plan.steps)
        )
        record = (
            ctypes.addressof(steps), len(table.rows), int(alone), int(bool(products)), *native_runtime.threads_setting,
        )  # fmt: skip
        self._plan = (ctypes.c_int64 * len(cpu_runtime.PLAN_FIELDS))(*record)
        self._keep = (plan, steps, table.arguments, tuning)
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
                CpuExecutable(self._keep[0], self._keep[-1]).run(slots, numbers)
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

    def time_steps(self, slots: Any) -> tuple[list[float], list[float]]:
        """Run the rows of the table one by one, each as a plan of one step that is shared as in the whole plan; what
        measuring takes is the time of a plan without steps. Loops are iterated here."""
        plan, table, *_ = self._keep
        rows = [_Row(self._plan, table, number) for number in range(len(self._step_numbers))]
        empty = (ctypes.c_int64 * len(cpu_runtime.PLAN_FIELDS))(*self._plan)
        empty[cpu_runtime.PLAN_FIELDS.index("count")] = 0
        run, clock = self._run, time.perf_counter_ns
        spent = [0] * sum(1 for _ in iterate_steps(plan.steps))
        calls = [0] * len(spent)

        def run_rows(first: int, last: int) -> None:
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
                for iteration in range(row.count):
                    for slot, base, offset, stride in row.moving:
                        slots[slot] = slots[base] + offset + iteration * stride
                    run_rows(number + 1, end)
                number = end + 1

        run_rows(0, len(rows))
        idle = []
        for _ in range(16):
            start = clock()
            run(empty, slots)
            idle.append(clock() - start)
        cost = min(idle)
        return [time * 1e-9 for time in spent], [count * cost * 1e-9 for count in calls]


class _Row:
    """One row of a plan's table: as a plan of its own, or as the begin of a loop with its `end`, the `count` of its
    iterations and what is `moving`: (slot, base slot, byte offset, byte stride) each."""

    __slots__ = ("count", "end", "moving", "plan")

    def __init__(self, plan: Any, table: Any, number: int):
        width = len(cpu_runtime.STEP_FIELDS)
        record = dict(zip(cpu_runtime.STEP_FIELDS, table[number * width : (number + 1) * width], strict=True))
        self.plan = (ctypes.c_int64 * len(cpu_runtime.PLAN_FIELDS))(*plan)
        self.plan[0], self.plan[1] = ctypes.addressof(table) + 8 * number * width, 1
        self.count, self.end, self.moving = record["tasks"], -1, []
        if record["kind"] == cpu_runtime.BEGIN:
            words = (ctypes.c_int64 * (4 * record["extent"])).from_address(record["args"])
            self.moving = [tuple(words[at : at + 4]) for at in range(0, len(words), 4)]
            kind = cpu_runtime.STEP_FIELDS.index("kind")
            depth = 0
            for at in range(number, len(table) // width):
                depth += {cpu_runtime.BEGIN: 1, cpu_runtime.END: -1}.get(table[at * width + kind], 0)
                if not depth:
                    self.end = at
                    break


class _Table:
    """The rows of a plan's native form, and the words that they point to."""

    def __init__(self, plan: Plan, min_parallel_work: int):
        self.min_parallel_work = min_parallel_work
        steps = [step for step, _ in iterate_steps(plan.steps)]
        kernels = [launch.kernel for step in steps if (launch := launch_of(step)) is not None]
        distinct = {id(kernel): kernel for kernel in kernels}
        self.functions = dict(zip(distinct, compile_kernels(list(distinct.values())), strict=True))
        self.rows: list[dict[str, int]] = []
        self.arguments: list[Any] = []
        self.numbers: list[tuple[Any, int, Number, DType]] = []  # words, position, what belongs there
        self.launches = 0
        self.step_numbers: list[int] = []  # of each row: which step of `iterate_steps` it is, -1 for the ends of loops
        self._step_count = 0
        for step in plan.steps:
            self._add(step, 1)

    def _add(self, step: Step, times: int) -> None:
        """Append the rows of a step that runs `times` times."""
        if isinstance(step, Repeat):
            self._repeat(step, times)
            return
        number, self._step_count = self._step_count, self._step_count + 1
        launch = launch_of(step)
        function = self.functions[id(launch.kernel)] if launch else 0
        words = argument_words(launch)
        address = ctypes.addressof(words)
        if isinstance(step, Launch):
            row = _launch_record(step, function, address)
        elif isinstance(step, Gemm):
            row = _product_record(step, runtime(), function, address)
        else:
            raise problem(GraphError, "compile", f"a call of {step.library}", "a plan made for the CPU")
        row["serial"] = int(row["tasks"] <= 1 or step.bytes + step.flops < self.min_parallel_work)
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
        self.rows.append({"kind": cpu_runtime.BEGIN, **row})
        self.step_numbers.append(-1)
        for inner in step.steps:
            self._add(inner, times * step.count)
        self.rows.append({"kind": cpu_runtime.END, **row})
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
    return {
        "kind": cpu_runtime.LAUNCH,
        "function": function,
        "args": arguments,
        "extent": step.extent,
        "chunk": chunk,
        "tasks": tasks,
    }


def _product_record(step: Gemm, native_runtime: NativeRuntime, epilogue: int, arguments: int) -> dict[str, int]:
    if step.dtype not in native_runtime.products:
        raise problem(DTypeError, step.name, f"a product of {step.dtype.name}", "float32 or float64")
    itemsize = step.dtype.itemsize
    tiles_m, tiles_n = -(-step.m // max(step.tile_m, 1)), -(-step.n // max(step.tile_n, 1))
    tasks = step.batch * tiles_m * tiles_n
    record = {
        "kind": cpu_runtime.PRODUCT,
        "function": native_runtime.products[step.dtype],
        "tasks": tasks,
        "epilogue": epilogue,
        "epilogue_args": arguments,
        "m": step.m,
        "n": step.n,
        "k": step.k,
        "tile_m": step.tile_m,
        "tile_n": step.tile_n,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "down": int(step.m <= step.n),  # down the columns of tiles first: the larger operand is then read once
        "itemsize": itemsize,
        "transpose_a": cpu_runtime.TRANSPOSED if step.transpose_a else cpu_runtime.PLAIN,
        "transpose_b": cpu_runtime.TRANSPOSED if step.transpose_b else cpu_runtime.PLAIN,
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
