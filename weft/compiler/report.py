"""report: a plan for people. What kernels it has, what they move and compute, how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.compiler.plan import Code, Gemm, Interval, Launch, Plan, Slot

LARGEST = 8  # inputs and outputs that a memory report names


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One step: its name, the source of its kernel ('' for a library call without one), bytes moved and operations."""

    name: str
    source: str
    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Predicted memory of a plan, before it runs. `arena` maps temporaries to places and lifetimes."""

    inputs: int
    outputs: int
    arena_bytes: int
    arena: tuple[Interval, ...]
    slots: tuple[Slot, ...]

    @property
    def peak(self) -> int:
        """Bytes alive at once while the plan runs: inputs, outputs and the arena."""
        return self.inputs + self.outputs + self.arena_bytes

    def __str__(self) -> str:
        parts = {"inputs and state": self.inputs, "outputs": self.outputs, "arena": self.arena_bytes}
        lines = [f"peak {size_text(self.peak)}: " + ", ".join(f"{k} {size_text(v)}" for k, v in parts.items())]
        kept = [slot for slot in self.slots if slot.kind in ("input", "output") and slot.nbytes]
        kept.sort(key=lambda slot: -slot.nbytes)
        for slot in kept[:LARGEST]:
            lines.append(f"{size_text(slot.nbytes):>22}  {slot.kind:<9}  {slot.label}")
        if len(kept) > LARGEST:
            rest = sum(slot.nbytes for slot in kept[LARGEST:])
            lines.append(f"{size_text(rest):>22}  and {len(kept) - LARGEST} smaller ones")
        if self.arena:
            lines.append(f"{'offset':>10}  {'size':>10}  steps      temporary")
        for interval in sorted(self.arena, key=lambda item: (item.offset, item.first)):
            steps = f"{interval.first}-{interval.last}"
            lines.append(f"{interval.offset:>10}  {size_text(interval.nbytes):>10}  {steps:<9}  {interval.label}")
        return "\n".join(lines)


class PlanReport:
    """What `step.plan` returns. Print it for a table."""

    def __init__(self, plan: Plan, device: Any, names: Mapping[int, str] | None = None):
        self.plan = plan
        self._device = device
        self._names = names or {}  # what people call the slots

    def kernels(self) -> list[KernelReport]:
        """One entry per step, in order of execution."""
        out = []
        for step in self.plan.steps:
            kernel = step.kernel if isinstance(step, Launch) else step.epilogue.kernel if step.epilogue else None
            out.append(KernelReport(step.name, kernel.text if isinstance(kernel, Code) else "", step.bytes, step.flops))
        return out

    def memory(self) -> MemoryReport:
        """Predicted peak and the arena map."""
        by_kind = {"input": 0, "output": 0}
        for slot in self.plan.slots:
            if slot.kind in by_kind:
                by_kind[slot.kind] += slot.nbytes
        slots = tuple([replace(s, label=self._names.get(k, s.label)) for k, s in enumerate(self.plan.slots)])
        return MemoryReport(by_kind["input"], by_kind["output"], self.plan.arena_bytes, self.plan.arena, slots)

    @property
    def bytes(self) -> int:
        """Bytes that all steps read and write."""
        return sum(step.bytes for step in self.plan.steps)

    def __len__(self) -> int:
        return len(self.plan.steps)

    def __str__(self) -> str:
        lines = [f"{len(self.plan.steps)} kernels on {self._device}"]
        for number, step in enumerate(self.plan.steps):
            kind = "library" if isinstance(step, Gemm) else "kernel"
            lines.append(f"{number:>3}  {kind:<8} {size_text(step.bytes):>10}  {step.flops:>12} flop  {step.name}")
        return "\n".join([*lines, str(self.memory()).splitlines()[0]])

    __repr__ = __str__


def size_text(nbytes: int) -> str:
    """Bytes in a readable unit."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
