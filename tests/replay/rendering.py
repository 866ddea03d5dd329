"""A program's plans as text, and the digest of that text.

The text has all that decides what a device does: the slots, the arena, the steps with their places and numbers, and the
source of each kernel once. It depends on neither the machine nor the process nor the version of Python: lines of
source files, which plans keep for error messages, are given by the number of their node.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral
from typing import Any

import pytest

import weft
from tests.replay.devices import DEVICES, Renderer
from weft.base.dtypes import DType
from weft.compiler import plan_cache, realize
from weft.compiler.inspect.diagnose import split_site
from weft.compiler.program import Program
from weft.kernels.ir.language import Kernel
from weft.plan.device import Device
from weft.plan.plan import Code, Plan, iterate_steps, launch_of

DIGITS = 16  # of a digest


@dataclass(frozen=True)
class Line:
    """One line of the recorded file."""

    name: str
    device: str
    plans: int
    kernels: int
    digest: str

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.device

    def __str__(self) -> str:
        return f"{self.name} {self.device} {self.plans} {self.kernels} {self.digest}"


def read_line(text: str) -> Line:
    name, device, plans, kernels, digest = text.rsplit(None, 4)  # names of records may have spaces
    return Line(name, device, int(plans), int(kernels), digest)


class Rendered:
    """All plans that one program makes on one device, in the order in which it makes them."""

    def __init__(self) -> None:
        self.plans: list[str] = []
        self.kernels: dict[str, Code] = {}
        self.normal: dict[str, Kernel] = {}  # kernels as they are printed, if not of random GPUs

    def add(self, program: Program, plan: Plan, outputs: Any) -> None:
        for step, _ in iterate_steps(plan.steps):
            launch = launch_of(step)
            if launch is not None:
                assert isinstance(launch.kernel, Code)
                self.kernels[launch.kernel.symbol] = launch.kernel
        sites = [split_site(text, program) for text in plan.sites]
        parts = {"slot": plan.slots, "interval": plan.arena, "site": sites, "output": outputs, "step": plan.steps}
        lines = [f"  {name} {plain(value)}" for name, values in parts.items() for value in values]
        self.plans.append("\n".join([f"plan {len(self.plans)}", *lines]))

    @property
    def text(self) -> str:
        kernels = [f"kernel {symbol} ({code.name})\n{code.text}" for symbol, code in self.kernels.items()]
        return "\n\n".join([*self.plans, *kernels]) + "\n"

    def line(self, name: str, device: str) -> Line:
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:DIGITS]
        return Line(name, device, len(self.plans), len(self.kernels), digest)


def plain(value: Any) -> str:
    """Data as text, the same in every process."""
    if isinstance(value, Code):
        return value.symbol
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(plain, value)) + ")"
    if is_dataclass(value):
        inside = ", ".join(f"{field.name}={plain(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({inside})"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    raise TypeError(f"{type(value).__name__} in a plan")


@contextmanager
def without_old_garbage() -> Iterator[None]:
    """What exists already is left out of the garbage collections before each program, which would take most of the
    time. Where a run of tests has frozen what it keeps, that stays frozen."""
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


@contextmanager
def collecting() -> Iterator[Rendered]:
    """What is assembled meanwhile, in a process that remembers no plans and collects no garbage of its own accord: what
    is still held would be stored by plans."""
    rendered, assembled = Rendered(), realize._assemble

    def noting(program: Program, device: Device) -> tuple[Plan, Any]:
        plan, outputs = assembled(program, device)
        rendered.add(program, plan, outputs)
        return plan, outputs

    gc.collect()
    gc.freeze()  # what the programs before left in caches; the next collection need not look at it
    was_enabled = gc.isenabled()
    gc.disable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "ACTIVE", False)
        patch.setattr(realize, "_assemble", noting)
        try:
            realize._plans.clear()
            yield rendered
        finally:
            realize._plans.clear()
            if was_enabled:
                gc.enable()


def render(program: Callable[[Device], object], device: str) -> Rendered:
    """The plans of a program on the device of that name."""
    made = DEVICES[device]()
    with collecting() as rendered, weft.device(made):
        weft.manual_seed(0)
        program(made)
    assert isinstance(made.backend, Renderer)
    rendered.normal = made.backend.kernels
    return rendered
