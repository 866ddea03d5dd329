"""A plan for people. What kernels it has, what they move and compute, how much memory it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.compiler.memory.report import MemoryReport, memory_report, size_text
from weft.plan.plan import Code, Gemm, Plan, iterate_steps, launch_of


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One step: its name, the source of its kernel ('' for a library call without one), bytes moved and operations, and
    how often it runs (inside a loop, more than once)."""

    name: str
    source: str
    bytes: int
    flops: int
    times: int = 1


class PlanReport:
    """What `step.plan` returns. Print it for a table."""

    def __init__(self, plan: Plan, device: Any, names: dict[int, str] | None = None):
        self.plan = plan
        self._device = device
        self._names = names or {}  # what people call the slots

    def kernels(self) -> list[KernelReport]:
        """One entry per step, in order of execution."""
        out = []
        for step, times in iterate_steps(self.plan.steps):
            launch = launch_of(step)
            text = launch.kernel.text if launch is not None and isinstance(launch.kernel, Code) else ""
            out.append(KernelReport(step.name, text, step.bytes, step.flops, times))
        return out

    def memory(self) -> MemoryReport:
        """Predicted peak and the arena map."""
        return memory_report(self.plan, self._names)

    @property
    def bytes(self) -> int:
        """Bytes that all steps read and write."""
        return sum(step.bytes for step in self.plan.steps)

    def __len__(self) -> int:
        return sum(1 for _ in iterate_steps(self.plan.steps))

    def __str__(self) -> str:
        lines = [f"{len(self)} kernels on {self._device}"]
        for number, (step, times) in enumerate(iterate_steps(self.plan.steps)):
            kind = "library" if isinstance(step, Gemm) else "kernel"
            often = f"{times} x " if times > 1 else ""
            size = size_text(step.bytes)
            lines.append(f"{number:>3}  {kind:<8} {size:>10}  {step.flops:>12} flop  {often}{step.name}")
        return "\n".join([*lines, self.memory().summary()])

    __repr__ = __str__
