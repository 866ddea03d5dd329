"""A compiled function kernel by kernel against the NumPy reference.

Each step of the plan runs on the memory that the steps before it wrote, and what it stores is compared with what NumPy
computes from the same numbers. So a wrong kernel is identified itself, not a later one that reads its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.base.dtypes import DType, bfloat16, finfo, float16, float64, uint8
from weft.compiler.inspect.explain import Explained, Stored
from weft.compiler.pipeline import assemble
from weft.compiler.plan_cache import render_kernels
from weft.compiler.program import Program
from weft.compiler.transplant import move_program
from weft.graph.node import Node
from weft.graph.reference import run_all
from weft.jit.compiled import Compiled
from weft.plan.device import Buffer, Device
from weft.plan.plan import Place, Plan, Step

ROUNDING = {float16: 4e-3, bfloat16: 3e-2, float64: 1e-9}  # of the largest element; float32: 1e-5
SPREAD = 64  # how much worse than one rounding of each value a kernel may be
EXACT = frozenset({"leaf", "generate", "movement", "update", "gather", "concat", "after"})  # kinds that do not round


@dataclass(frozen=True, slots=True)
class Checked:
    """One step that agrees with the reference: its name, and its largest error as a part of what is allowed."""

    name: str
    error: float


def check(function: Callable, args: tuple, kwargs: dict[str, Any], device: Device | None = None) -> list[Checked]:
    """What `weft.testing.verify` does; on `device`, where one is given, with what lies elsewhere copied there."""
    source = function.function if isinstance(function, Compiled) else function
    variant, flat = Compiled(source).prepare_variant(args, kwargs, "verify")
    assert variant.program is not None
    program, target = variant.program, device or variant.device
    if target is not variant.device:
        program = move_program(program, target)
    return _Run(program, target, variant.input_buffers(flat)).check()


class _Run:
    """A program on memory of its own."""

    def __init__(self, program: Program, device: Device, inputs: dict[int, Buffer]):
        self.device, self.backend = device, device.backend
        self.notes: list[Explained] = []
        plan, _ = assemble(program, device, notes=self.notes)
        self.plan: Plan = render_kernels(plan, self.backend)
        self.memory = self._memory(program, inputs)

    def _memory(self, program: Program, inputs: dict[int, Buffer]) -> list[Buffer]:
        """A buffer for each slot. Leaves that are inside others are so here, too."""
        outer: dict[int, tuple[int, int]] = {}
        for small, big, offset in program.overlaps:
            nbytes = self.plan.slots[big].nbytes
            if small not in outer or nbytes > self.plan.slots[outer[small][0]].nbytes:
                outer[small] = (big, offset)
        found = [Buffer(self.backend.allocate(max(s.nbytes, 4)), 0, s.nbytes) for s in self.plan.slots]
        for small, (big, offset) in outer.items():
            if big not in outer:
                found[small] = Buffer(found[big].slab, offset, self.plan.slots[small].nbytes)
        for slot, buffer in inputs.items():
            nbytes = self.plan.slots[slot].nbytes
            if nbytes:
                self._copy(first_bytes(found[slot], nbytes), first_bytes(buffer, nbytes))
        self.backend.clear(found[-1])
        return found

    def _copy(self, target: Buffer, source: Buffer) -> None:
        owner = source.slab.device
        if owner is self.device:
            self.backend.copy(target, source)
        else:
            self.backend.upload(target, owner.backend.download(source, (source.nbytes,), uint8))

    def check(self) -> list[Checked]:
        """Run step after step."""
        table = self.backend.slot_table(len(self.plan.slots))
        for slot, buffer in enumerate(self.memory):
            table[slot] = buffer.pointer
        slots = [replace(slot, kind="input") if slot.kind == "arena" else slot for slot in self.plan.slots]
        plan = replace(self.plan, slots=tuple(slots))  # what one step writes to the arena, the next one reads there
        found = []
        for number, step in enumerate(self.plan.steps):
            note = self.notes[number] if number < len(self.notes) else None  # copies at the end have no note
            values = {read.node: self._read(read) for read in note.reads} if note else {}
            self.backend.executable(replace(plan, steps=(step,))).run(table)
            error = self._compare(number, step, note, values) if note else 0.0
            found.append(Checked(step.name, error))
        return found

    def _read(self, stored: Stored) -> np.ndarray:
        """A copy of a value as it is in memory now."""
        node, dtype = stored.node, stored.node.dtype
        if not node.size:
            return np.zeros(node.shape, dtype.numpy)
        last = sum((extent - 1) * stride for extent, stride in zip(node.shape, stored.strides, strict=True))
        flat = self.backend.download(self._buffer(stored.place, (last + 1) * dtype.itemsize), (last + 1,), dtype)
        steps = [stride * dtype.itemsize for stride in stored.strides]
        return np.lib.stride_tricks.as_strided(flat, node.shape, steps).copy()

    def _buffer(self, place: Place, nbytes: int) -> Buffer:
        memory = self.memory[place.slot]
        return Buffer(memory.slab, memory.offset + place.offset, nbytes)

    def _compare(self, number: int, step: Step, note: Explained, values: dict[Node, np.ndarray]) -> float:
        """The largest error of a step's results, as a part of what is allowed."""
        rounded, wide = _reference(note, values, False), _reference(note, values, True)
        perturbed = _run_perturbed(note, values)
        worst = 0.0
        for result in note.results:
            actual, node = self._read(result), result.node
            if not node.size:
                continue
            is_, close, expected, moved = (
                _as_floats(x, node.dtype) for x in (actual, rounded[node], wide[node], perturbed[node])
            )
            error, allowed = _errors(is_, close, expected, moved, node.dtype)
            at = np.unravel_index(int(np.argmax(error)), node.shape)
            if error[at] > allowed:
                raise AssertionError(self._difference(number, step, note, node, at, actual, rounded[node], allowed))
            worst = max(worst, float(error[at]) / allowed if allowed else 0.0)
        return worst

    def _difference(
        self,
        number: int,
        step: Step,
        note: Explained,
        node: Node,
        at: Sequence[Any],
        actual: np.ndarray,
        expected: np.ndarray,
        allowed: float,
    ) -> str:
        where = f"element {tuple(int(k) for k in at)}" if node.shape else "the value"
        lines = [
            f"verify: step {number} of {len(self.plan.steps)}, {step.name},"
            f" differs from the reference on {self.device}.",
            f"{where} of {node.op} {node.dtype.name}{list(node.shape)} is {actual[tuple(at)]}"
            f" and should be {expected[tuple(at)]} (allowed: {allowed:.1e}). It computes:",
            *["  " + line for line in _listing(note)],
        ]
        return "\n".join(lines)


def first_bytes(buffer: Buffer, nbytes: int) -> Buffer:
    """The first `nbytes` bytes of a buffer."""
    return Buffer(buffer.slab, buffer.offset, nbytes)


def _reference(note: Explained, values: dict[Node, np.ndarray], wide: bool) -> dict[Node, np.ndarray]:
    """Every value of a step by NumPy, in its dtype or with all floats as float64."""
    known = {
        node: value.astype(np.float64) if wide and node.dtype.kind == "f" else value for node, value in values.items()
    }
    return run_all(note.nodes(), known, wide)


def _as_floats(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Values that can be subtracted without overflow; integers stay exact."""
    return array.astype(np.float64) if dtype.kind == "f" else array.astype(object)


def _run_perturbed(note: Explained, values: dict[Node, np.ndarray]) -> dict[Node, np.ndarray]:
    """The step in float64 with every value, and every term of a sum, perturbed by as much as rounding may change it.

    Where large numbers cancel, this shows how many digits of the difference are lost.
    """
    rng = np.random.default_rng(0)

    def perturb(value: np.ndarray, node: Node) -> np.ndarray:
        if node.dtype.kind != "f":
            return value
        return value * (1 + float(finfo(node.dtype).eps) * rng.uniform(-1, 1, value.shape))

    known = {node: value.astype(np.float64) if node.dtype.kind == "f" else value for node, value in values.items()}
    order = note.nodes()
    for node in order:
        kind = node.primitive.kind
        if node in known or kind == "pick":
            continue
        by_element = kind in EXACT or kind == "elementwise"
        sources = {src: known[src] if by_element else perturb(known[src], src) for src in node.srcs}
        targets = [node, *[pick for pick in order if pick.op == "pick" and pick.srcs[0] is node]]
        found = run_all(targets, sources, True)
        known |= {one: found[one] if kind in EXACT else perturb(found[one], one) for one in targets}
    return known


def _errors(
    actual: np.ndarray, close: np.ndarray, expected: np.ndarray, perturbed: np.ndarray, dtype: DType
) -> tuple[np.ndarray, float]:
    """The error of each element, and what is allowed.

    `close` is the reference in the dtype itself, `expected` in float64, `perturbed` in float64 with rounding added:
    their differences say how large rounding errors may be. An element that equals one of them has no error.
    """
    with np.errstate(all="ignore"):
        same = (actual == close) | (actual == expected) | (actual == perturbed)
        if dtype.kind != "f":
            return (~same.astype(bool)).astype(np.float64), 0.0
        same |= np.isnan(actual) & (np.isnan(close) | np.isnan(expected))
        error = np.where(same, 0.0, np.abs(actual - expected))
        error = np.where(np.isnan(error), np.inf, error)
        scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
        spread = np.concatenate([np.abs(close - expected).ravel(), np.abs(perturbed - expected).ravel()])
        allowed = ROUNDING.get(dtype, 1e-5) * scale + SPREAD * float(spread[np.isfinite(spread)].max(initial=0.0))
    return error, allowed + float(np.finfo(np.float32).tiny)


def _listing(note: Explained) -> list[str]:
    """What a step computes, one operation to a line."""
    reads, results = {read.node for read in note.reads}, {result.node for result in note.results}
    numbers: dict[Node, int] = {}
    lines = []
    for node in note.nodes():
        numbers[node] = len(numbers)
        if node in reads:
            words = ["read"]
        else:
            detail = [str(node.attrs.value if node.op == "const" else tuple(node.attrs))] if node.attrs else []
            words = [node.op, *[f"%{numbers[source]}" for source in node.srcs], *detail]
        mark = "  <-" if node in results else ""
        site = f"  # {node.site}" if node.site else ""
        lines.append(f"%{numbers[node]} = {node.dtype.name}{list(node.shape)} {' '.join(words)}{mark}{site}")
    return lines
