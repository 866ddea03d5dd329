"""A compiled function on separate memory, so that it can run repeatedly without side effects.

What the function only reads is read from its own memory; what it writes (parameters, optimizer state, gradients) is
copied first. Random numbers are those of its next call, in every run.
"""

from __future__ import annotations

from typing import Any

from weft.base.errors import DeviceError, problem
from weft.compiler.program import Program
from weft.jit.compiled import Compiled
from weft.plan.device import Buffer, Device, Slab
from weft.plan.plan import Plan, iterate_steps
from weft.plan.protocols import TimedExecutable


class IsolatedRun:
    """`function(*args)`, traced now, with its `plan`, `program` and `names` of inputs."""

    def __init__(self, function: Compiled, args: tuple, kwargs: dict[str, Any], who: str, origins: Any = None):
        variant, flat = Compiled(function.function).prepare_variant(args, kwargs, who, origins)
        assert variant.program is not None
        self.device: Device = variant.device
        self.plan: Plan = variant.entry.plan
        self.program: Program = variant.program
        self.names: dict[int, str] = variant.names()
        executable = variant.entry.executable
        if not isinstance(executable, TimedExecutable):
            given = f"a function on the device {self.device}"
            raise problem(DeviceError, who, given, "a device that runs plans", "use the CPU or a GPU")
        self._executable: TimedExecutable = executable
        self._kept: list[Any] = [variant, flat]
        self._status: Slab | None = None
        self._table = self._slots(variant.input_buffers(flat))

    def _slots(self, inputs: dict[int, Buffer]) -> Any:
        """The table of addresses."""
        backend, slots = self.device.backend, self.plan.slots
        table = backend.slot_table(len(slots) + 1)
        for number, buffer in self._inputs(inputs).items():
            table[number] = buffer.pointer
        get = {"output": backend.allocate, "arena": backend.arena, "status": backend.status}
        for number, slot in enumerate(slots):
            if slot.kind in get:
                slab = get[slot.kind](slot.nbytes)
                table[number] = slab.pointer
                self._kept.append(slab)
                if slot.kind == "status" and self.plan.sites:
                    self._status = slab
        return table

    def _inputs(self, inputs: dict[int, Buffer]) -> dict[int, Buffer]:
        """The memory of each input: its own, or a copy of what is written. Leaves inside others move with them."""
        outer: dict[int, tuple[int, int]] = {}
        for small, big, offset in self.program.overlaps:
            if small not in outer or self.plan.slots[big].nbytes > self.plan.slots[outer[small][0]].nbytes:
                outer[small] = (big, offset)
        written = {number for number, slot in enumerate(self.plan.slots) if slot.written}
        written |= {outer[number][0] for number in written if number in outer}
        found: dict[int, Buffer] = {}
        for number, buffer in inputs.items():
            nbytes = self.plan.slots[number].nbytes
            if number in written and number not in outer and nbytes:
                copy = Buffer(self.device.backend.allocate(nbytes), 0, nbytes)
                self.device.backend.copy(copy, Buffer(buffer.slab, buffer.offset, nbytes))
                self._kept.append(copy)
                buffer = copy
            found[number] = buffer
        for small, (big, offset) in outer.items():
            if big in written and small in found:
                found[small] = Buffer(found[big].slab, found[big].offset + offset, self.plan.slots[small].nbytes)
        self._kept.append(inputs)
        return found

    def run(self, count: int = 1, is_checked: bool = True) -> None:
        """Run, and wait; an index that leaves its axis raises, if that is checked."""
        for _ in range(count):
            self._executable.run(self._table)
        if self._status is not None and is_checked:
            self.device.backend.watch(self._status, self.plan)
        self.device.backend.synchronise()

    def time_runs(self, count: int) -> float:
        """Seconds of a run."""
        return self._executable.time_runs(self._table, count)

    def time_steps(self) -> tuple[list[float], list[float]]:
        """Seconds of each step of `iterate_steps(plan.steps)`, and how many of them were spent on measuring it."""
        spent, measuring = self._executable.time_steps(self._table)
        assert len(spent) == len(measuring) == sum(1 for _ in iterate_steps(self.plan.steps))
        return spent, measuring
