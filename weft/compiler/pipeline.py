"""The passes in order, from a program to a plan.

`PASSES` is all that happens. Each pass maps a frozen structure to a new one and changes nothing of what it was given:
a `Program` (the graph) becomes a `Fusion` (regions, each one kernel), that an `Allocation` (regions with memory, in the
order of their steps), that a `LoweredProgram` (nests of loops), that a `ScheduledProgram` (kernels for the device), and
that a `CompiledProgram` (a plan). The backend then renders the kernels of the plan. With `CHECK` on, as in the whole
test suite, the spec of the structure (`compiler.spec`) is checked after each pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from weft.base.dtypes import ALL
from weft.compiler import spec
from weft.compiler.fusion.fuse import fuse
from weft.compiler.inspect.explain import Explained
from weft.compiler.inspect.origins import Origins
from weft.compiler.lowering.batch_launches import batch_launches
from weft.compiler.lowering.emit import emit_plan
from weft.compiler.lowering.lower import lower_regions
from weft.compiler.lowering.schedule import schedule_kernels
from weft.compiler.memory.allocate import assign_memory
from weft.compiler.memory.arena import lay_out_arena, reserve_scratch
from weft.compiler.memory.schedule import schedule_steps
from weft.compiler.memory.storage import Allocation
from weft.compiler.options import Options
from weft.compiler.passes import rewrites
from weft.compiler.passes.loops import LoopBody, program_of
from weft.compiler.passes.row_writes import RowsConflict
from weft.compiler.program import Program
from weft.plan.device import Device, missing_dtype
from weft.plan.plan import Plan

CHECK = False  # check the spec after every pass; the test suite switches it on (tests/conftest.py)


@dataclass(frozen=True, slots=True)
class Pass:
    """A step of the compiler: `run(structure, options)` gives the next structure, for which `check` raises if it is
    not as its spec says."""

    name: str
    run: Callable[[Any, Options], Any]
    check: Callable[[Any, spec.Known], None]


def compile_loop_bodies(allocation: Allocation, options: Options) -> Allocation:
    """The plans of one iteration of each loop."""
    bodies = {}
    for region in allocation.regions:
        if region.form == "loop":
            assert region.anchor is not None
            program = program_of(region.anchor, region.roots)
            plan, outputs = _compile(program, Options(options.device, is_loop_body=True))
            bodies[region.number] = LoopBody(region.anchor, region.roots, plan, tuple([slot for slot, _ in outputs]))
    return replace(allocation, bodies=MappingProxyType(bodies))


PASSES: tuple[Pass, ...] = (
    Pass("expand row writes", rewrites.expand_row_writes, spec.check_program),
    Pass("expand updates", rewrites.expand_updates, spec.check_program),
    Pass("simplify", rewrites.simplify_program, spec.check_program),
    Pass("prepare loops", rewrites.prepare_loops, spec.check_program),
    Pass("expand primitives", rewrites.expand_primitives, spec.check_program),
    Pass("canonicalize", rewrites.canonicalize, spec.check_program),
    Pass("call product libraries", rewrites.call_product_libraries, spec.check_program),
    Pass("tile GPU products", rewrites.tile_gpu_products, spec.check_program),
    Pass("separate outputs", rewrites.separate_outputs, spec.check_program),
    Pass("fuse", fuse, spec.check_fusion),
    Pass("assign memory", assign_memory, spec.check_allocation),
    Pass("schedule steps", schedule_steps, spec.check_schedule),
    Pass("compile loop bodies", compile_loop_bodies, spec.check_schedule),
    Pass("reserve scratch", reserve_scratch, spec.check_schedule),
    Pass("lay out arena", lay_out_arena, spec.check_layout),
    Pass("lower regions", lower_regions, spec.check_lowered),
    Pass("schedule kernels", schedule_kernels, spec.check_scheduled),
    Pass("emit plan", emit_plan, spec.check_plan),
    Pass("batch launches", batch_launches, spec.check_plan),
)


def run_passes(structure: Any, options: Options, passes: tuple[Pass, ...] = PASSES) -> Any:
    """What the last of `passes` gives for `structure`."""
    known = spec.Known()
    for step in passes:
        structure = step.run(structure, options)
        if CHECK:
            step.check(structure, known)
    return structure


def assemble(
    program: Program, device: Device, notes: list[Explained] | None = None, origins: Origins | None = None
) -> tuple[Plan, list[tuple[int, int]]]:
    """The plan of a program, and for each output that is not written in place its (slot, byte offset).

    `notes`, if given, gets what each step computes; the steps after the last note are copies. `origins`, if given, gets
    what each step was made for; the plan is the same.
    """
    if len(device.dtypes) < len(ALL):
        check_dtypes(program, device)
    return _compile(program, Options(device, rows_in_place=notes is None, notes=notes, origins=origins))


def check_dtypes(program: Program, device: Device) -> None:
    """Raise DTypeError where a value of the program, or of a loop in it, has a dtype that the device does not have."""
    for node in program.nodes:
        inner = node.attrs.body.nodes if node.op == "loop" else ()
        for one in (node, *inner):
            if one.dtype not in device.dtypes:
                raise missing_dtype(f"{one.op} ({one.site})" if one.site else one.op, one.dtype, device)


def _compile(program: Program, options: Options) -> tuple[Plan, list[tuple[int, int]]]:
    try:
        compiled = run_passes(program, options)
    except RowsConflict:  # rows cannot be written into their table
        compiled = run_passes(program, replace(options, rows_in_place=False))
    return compiled.plan, list(compiled.outputs)
