"""Compute nodes now. The path of every tensor whose value is read outside a compiled function.

Programs are found again by their key, so a Python loop pays for tracing only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.base.counters import COUNTERS
from weft.base.errors import OutOfMemoryError, StorageError, problem
from weft.base.locks import call_holding, locks_of, new_lock, thread_lock
from weft.compiler import program as programs
from weft.compiler.inspect.diagnose import Diagnosis, explanation
from weft.compiler.program import Program
from weft.graph.node import Node
from weft.plan.device import Buffer, Device
from weft.plan.plan import Plan
from weft.plan.protocols import Executable

MOST_PLANS = 2048  # plans kept in memory; the least recently used goes first


@dataclass(slots=True)
class Entry:
    """A compiled program: its plan, the native form, and where the outputs are: (slot, byte offset) each."""

    plan: Plan
    executable: Executable
    outputs: list[tuple[int, int]]
    needs: int = 0  # bytes of the results and temporaries of a run
    diagnosis: Diagnosis | None = None  # of a plan that checks indices


_plans: OrderedDict[tuple, Entry] = OrderedDict()
_forms: OrderedDict[tuple, tuple] = OrderedDict()  # by keys with open starts of slices: the key that was met first
_lock = new_lock()  # of `_plans`: two threads may compile one program twice, but neither loses what it holds


def entry_for(program: Program, device: Device) -> Entry:
    """The compiled form of a program, from memory, from disk, or made now."""
    with _lock:
        entry = _plans.get(program.key)
        if entry is not None:
            _plans.move_to_end(program.key)
            COUNTERS.plans_reused += 1
            return entry
    from weft.compiler import plan_cache  # loaded when there is something to compile

    started = time.perf_counter()
    digest = plan_cache.digest_of(program, device)
    known = plan_cache.load(digest, program)
    plan, outputs = known or _assemble(program, device)
    needs = sum(slot.nbytes for slot in plan.slots if slot.kind in ("output", "arena"))
    diagnosis = Diagnosis(program, plan.sites) if plan.sites else None
    entry = Entry(plan, device.backend.executable(plan), outputs, needs, diagnosis)
    if known is None:
        plan_cache.store(digest, program, plan, outputs)
    COUNTERS.plans_built += known is None
    COUNTERS.plans_from_disk += known is not None
    COUNTERS.compile_seconds += time.perf_counter() - started
    with _lock:
        _plans[program.key] = entry
        if len(_plans) > MOST_PLANS:
            _plans.popitem(last=False)
    return entry


def plan_for(program: Program, device: Device) -> Plan:
    """The plan of a program, without compiling a kernel of it where it is not known yet."""
    from weft.compiler import plan_cache
    from weft.compiler.pipeline import assemble

    with _lock:
        entry = _plans.get(program.key)
    if entry is not None:
        return entry.plan
    known = plan_cache.load(plan_cache.digest_of(program, device), program)
    return (known or assemble(program, device))[0]


def _assemble(program: Program, device: Device) -> tuple[Plan, list[tuple[int, int]]]:
    from weft.compiler import plan_cache
    from weft.compiler.pipeline import assemble  # the passes are loaded when the first program is compiled

    plan, outputs = assemble(program, device)
    return plan_cache.render_kernels(plan, device.backend), outputs


def realize_nodes(nodes: Sequence[Node], also: Sequence[Node] = ()) -> None:
    """Compute `nodes`, and `also` on the way; afterwards each has its `buffer`."""
    by_device: dict[Any, list[Node]] = {}
    for node in (*nodes, *also):
        if node.buffer is None:
            by_device.setdefault(node.device, []).append(node)
        else:
            check_live(node.buffer)
    for device, pending in by_device.items():
        run = getattr(device.backend, "run_nodes", None)
        with thread_lock():  # a fork must not cut through
            if run is not None:
                run(pending)
            else:
                _realize_on(device, list(dict.fromkeys(pending)))


def _realize_on(device: Device, pending: list[Node]) -> None:
    while pending:
        located = programs.locate(pending, {})
        for buffer in located.values():
            if buffer is not None:
                check_live(buffer)
        todo: list[Node] = []
        for node in pending:
            buffer = located.get(node)
            if buffer is None or buffer.slab.pinned:
                located.pop(node, None)
                todo.append(node)
            else:
                node.buffer = buffer
        if not todo or _run_program(device, todo, located):
            return


def _run_program(device: Device, todo: list[Node], located: dict[Node, Any]) -> bool:
    """Compile and run what computes `todo`. False where it reads memory that compiled functions rewrite in place, and
    another thread did so since `located` was found."""
    program, buffers = _program_for(device, todo, located)
    entry = entry_for(program, device)
    inputs = [buffer for buffer in buffers if buffer is not None]
    groups = {buffer.slab.pinned for buffer in inputs if buffer.slab.pinned is not None}
    try:
        if groups:
            results = call_holding(locks_of(groups), _run_located, entry, device, inputs, program, located)
        else:
            results = run_entry(entry, device, inputs, program, program.values)
    except OutOfMemoryError:
        from weft.compiler.memory.report import too_large

        shapes = [leaf.shape for leaf in program.leaves]
        raise too_large(todo[-1].site or todo[-1].op, entry.plan, {}, device, shapes) from None
    if results is None:
        return False
    for node, buffer in zip(todo, results, strict=True):
        buffer.nbytes = node.nbytes
        node.buffer = buffer
    return True


def _run_located(
    entry: Entry, device: Device, inputs: Sequence[Buffer], program: Program, located: Mapping[Node, Any]
) -> list[Buffer] | None:
    """`run_entry` under the locks of what is read, or None where the leaves were given copies before."""
    if any(node.buffer is not None and node.buffer is not was for node, was in located.items()):
        return None
    return run_entry(entry, device, inputs, program, program.values)


def _program_for(
    device: Device, todo: Sequence[Node], located: Mapping[Node, Buffer | None]
) -> tuple[Program, list[Buffer | None]]:
    """The program that computes `todo`. One that differs from an earlier one only in where slices begin gets their
    starts with each run, so a loop over them compiles one plan with constants and one for all other iterations."""
    with_numbers = device.features.scalar_arguments
    built = programs.build(todo, located, with_numbers=with_numbers)
    if not with_numbers or built[0].key in _plans:
        return built
    if not any(node.op in ("slice", "update_slice") and node not in located for node in built[0].nodes):
        return built
    opened = programs.build(todo, located, with_numbers=True, with_positions=True)
    key, form = built[0].key, opened[0].key
    with _lock:
        first = _forms.setdefault(form, key)
        _forms.move_to_end(form)
        if len(_forms) > MOST_PLANS:
            _forms.popitem(last=False)
        return built if first == key and form not in _plans else opened


def run_entry(
    entry: Entry, device: Device, inputs: Sequence[Buffer], program: Program, numbers: Sequence[float] = ()
) -> list[Buffer]:
    """Run a plan once with fresh outputs and the values of its open numbers; returns the memory of each output.
    `program` is of the plan's form, and says at which lines the user asked for this run."""
    backend, plan = device.backend, entry.plan
    table = backend.slot_table(len(plan.slots))
    slabs: dict[int, Any] = {}
    for number, buffer in enumerate(inputs):
        table[number] = buffer.slab.pointer + buffer.offset
    backend.require(entry.needs)
    get = {"output": backend.allocate, "arena": backend.arena, "status": backend.status}
    try:
        for number, slot in enumerate(plan.slots[len(inputs) :], len(inputs)):
            if slot.kind != "moving":
                slabs[number] = get[slot.kind](slot.nbytes)
                table[number] = slabs[number].pointer
        entry.executable.run(table, numbers)
    except OutOfMemoryError:
        slabs.clear()  # the memory is free while the error is handled or referred to
        raise
    if entry.diagnosis is not None:
        backend.watch(slabs[len(plan.slots) - 1], plan, explanation(entry.diagnosis, program, inputs))
    return [Buffer(slabs[slot], offset, 0) for slot, offset in entry.outputs]


def check_live(buffer: Buffer) -> None:
    """Raise if the memory was donated."""
    if buffer.state != "live":
        raise problem(
            StorageError, "tensor", f"a tensor whose memory was {buffer.state}", "a live tensor",
            "use the value that replaced it, or clone() it before",
        )  # fmt: skip
