"""evaluate: compute nodes now. The path of every tensor whose value is read outside a compiled function.

Programs are found again by their key, so a Python loop pays for tracing only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.backends.base import Buffer, Device, Executable
from weft.compiler import program as programs
from weft.compiler.plan import Plan
from weft.compiler.program import Program
from weft.counting import COUNTERS
from weft.errors import BufferError_, OutOfMemoryError, problem
from weft.graph.node import Node
from weft.locks import ACTIVITY, lock_of, new_lock

MOST_PLANS = 2048  # plans kept in memory; the least recently used goes first


@dataclass(slots=True)
class Entry:
    """A compiled program: its plan, the native form, and where the outputs are: (slot, byte offset) each."""

    plan: Plan
    executable: Executable
    outputs: list[tuple[int, int]]


_plans: OrderedDict[tuple, Entry] = OrderedDict()
_lock = new_lock()  # of `_plans`: two threads may compile one program twice, but neither loses what it holds


def entry_for(program: Program, device: Device) -> Entry:
    """The compiled form of a program, from memory, from disk, or made now."""
    with _lock:
        entry = _plans.get(program.key)
        if entry is not None:
            _plans.move_to_end(program.key)
            COUNTERS.plans_reused += 1
            return entry
    from weft.compiler import plancache  # loaded when there is something to compile

    started = time.perf_counter()
    digest = plancache.digest_of(program, device)
    known = plancache.load(digest, program)
    plan, outputs = known or _assembled(program, device)
    entry = Entry(plan, device.backend.executable(plan), outputs)
    if known is None:
        plancache.store(digest, program, plan, outputs)
    COUNTERS.plans_built += known is None
    COUNTERS.plans_from_disk += known is not None
    COUNTERS.compile_seconds += time.perf_counter() - started
    with _lock:
        _plans[program.key] = entry
        if len(_plans) > MOST_PLANS:
            _plans.popitem(last=False)
    return entry


def _assembled(program: Program, device: Device) -> tuple[Plan, list[tuple[int, int]]]:
    from weft.compiler import plancache
    from weft.compiler.assemble import assemble  # the passes are loaded when the first program is compiled

    plan, outputs = assemble(program, device)
    return plancache.rendered(plan, device.backend), outputs


def evaluate(nodes: Sequence[Node], also: Sequence[Node] = ()) -> None:
    """Compute `nodes`, and `also` on the way; afterwards each has its `buffer`."""
    by_device: dict[Any, list[Node]] = {}
    for node in (*nodes, *also):
        if node.buffer is None:
            by_device.setdefault(node.device, []).append(node)
        else:
            check_live(node.buffer)
    for device, pending in by_device.items():
        run = getattr(device.backend, "evaluate_nodes", None)
        with ACTIVITY:
            if run is not None:
                run(pending)
            else:
                _evaluate_on(device, list(dict.fromkeys(pending)))


def _evaluate_on(device: Device, pending: list[Node]) -> None:
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
    program, buffers = programs.build(todo, located, with_numbers="numbers" in device.features)
    entry = entry_for(program, device)
    numbers = [node.attrs[0] for node in program.numbers]
    inputs = [buffer for buffer in buffers if buffer is not None]
    groups = {buffer.slab.pinned for buffer in inputs if buffer.slab.pinned is not None}
    try:
        if groups:
            with lock_of(groups):
                if any(node.buffer is not None and node.buffer is not was for node, was in located.items()):
                    return False  # its leaves were given copies
                results = run_entry(entry, device, inputs, numbers)
        else:
            results = run_entry(entry, device, inputs, numbers)
    except OutOfMemoryError:
        from weft.compiler.memorymap import too_large

        shapes = [leaf.shape for leaf in program.leaves]
        raise too_large(todo[-1].site or todo[-1].op, entry.plan, {}, device, shapes) from None
    for node, buffer in zip(todo, results, strict=True):
        buffer.nbytes = node.nbytes
        node.buffer = buffer
    return True


def run_entry(entry: Entry, device: Device, inputs: Sequence[Buffer], numbers: Sequence[float] = ()) -> list[Buffer]:
    """Run a plan once with fresh outputs and the values of its open numbers; returns the memory of each output."""
    backend, plan = device.backend, entry.plan
    table = backend.slot_table(len(plan.slots))
    slabs: dict[int, Any] = {}
    for number, buffer in enumerate(inputs):
        table[number] = buffer.slab.pointer + buffer.offset
    get = {"output": backend.allocate, "arena": backend.arena, "status": backend.status}
    try:
        for number, slot in enumerate(plan.slots[len(inputs) :], len(inputs)):
            if slot.kind != "moving":
                slabs[number] = get[slot.kind](slot.nbytes)
                table[number] = slabs[number].pointer
        entry.executable.run(table, numbers)
    except OutOfMemoryError:
        slabs.clear()  # whoever handles the error, or holds it, finds the memory free
        raise
    if plan.sites:
        backend.watch(slabs[len(plan.slots) - 1], plan)
    return [Buffer(slabs[slot], offset, 0) for slot, offset in entry.outputs]


def check_live(buffer: Buffer) -> None:
    """Raise if the memory was given away."""
    if buffer.state != "live":
        raise problem(
            BufferError_, "tensor", f"a tensor whose memory was {buffer.state}", "a live tensor",
            "use the value that replaced it, or clone() it before",
        )  # fmt: skip
