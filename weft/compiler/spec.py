"""What must hold of the structures between the compiler's passes. Tests check it after every pass; users never
pay for it.

Programs are graphs (`weft.graph.spec`) with their nodes in topological order. A fusion computes every output, reads
only what is stored, and its regions form no cycle. An allocation gives every stored value memory; once scheduled, every
region runs after what it depends on; once laid out, values that are alive at the same time do not overlap in the arena.
Every region is lowered to a legal nest or kernel (`weft.kernels.ir.spec`, `weft.kernels.ir.kernel_spec`). A plan stays
inside its slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.base.errors import GraphError, problem
from weft.compiler.fusion.fuse import Fusion
from weft.compiler.fusion.region import FORMS, Region
from weft.compiler.lowering.emit import CompiledProgram
from weft.compiler.lowering.expressions import STATUS
from weft.compiler.lowering.lower import LoweredProgram
from weft.compiler.lowering.nests import LoweredNest
from weft.compiler.lowering.schedule import ScheduledProgram
from weft.compiler.lowering.sorting import LoweredKernel
from weft.compiler.memory.storage import ALIGN, Allocation
from weft.compiler.primitives import ALL_PRIMITIVES
from weft.compiler.program import Program
from weft.compiler.templates.template import Called, ScheduledKernel
from weft.graph.node import Node
from weft.graph.spec import check_node
from weft.kernels.ir import index as ix
from weft.kernels.ir.kernel_spec import check_kernel
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.nest import Nest
from weft.kernels.ir.spec import check_nest
from weft.plan.plan import Gemm, Launch, LibraryCall, Place, Plan, Repeat, Step


class Known:
    """What was found legal after an earlier pass of the same run: nodes, the last program, nests and kernels. None of
    them ever changes."""

    __slots__ = ("code", "nodes", "program")

    def __init__(self) -> None:
        self.nodes: set[Node] = set()
        self.program: Program | None = None
        self.code: dict[int, Nest | Kernel] = {}  # by id

    def is_new(self, code: Nest | Kernel) -> bool:
        """Whether a nest or a kernel was not met before."""
        if id(code) in self.code:
            return False
        self.code[id(code)] = code
        return True


def _illegal_plan(what: str, given: str, expected: str) -> Exception:
    return problem(GraphError, f"compiler spec, {what}", given, expected)


# --- programs --------------------------------------------------------------------------------------------------------


def check_program(program: Program, known: Known) -> None:
    """Raise GraphError unless every node is legal and comes after its sources, outputs are among them, and writes
    name outputs and leaves of their size."""
    if program is known.program:  # the pass had nothing to do
        return
    leaves, seen = set(program.leaves), set()
    for node in program.nodes:
        seen.add(node)
        if node in leaves:
            continue
        for source in node.srcs:
            if source not in seen:
                raise _illegal_plan(f"program, node {node!r}", f"its source {source!r} later", "sources before users")
        if node not in known.nodes:
            check_node(node, ALL_PRIMITIVES)
            known.nodes.add(node)
    for number, output in enumerate(program.outputs):
        if output not in seen:
            raise _illegal_plan(f"program, output {number}", f"{output!r}", "one of the program's nodes")
    for write in program.writes:
        if not (0 <= write.output < len(program.outputs) and 0 <= write.leaf < len(program.leaves)):
            raise _illegal_plan("program", f"the write {write}", "numbers of an output and of a leaf")
    for inner, outer, offset in program.overlaps:
        small, big = program.leaves[inner], program.leaves[outer]
        if not (0 <= offset <= big.nbytes - small.nbytes):
            raise _illegal_plan("program", f"leaf {inner} at byte {offset} of leaf {outer}", "a leaf inside the other")
    known.program = program


# --- regions ---------------------------------------------------------------------------------------------------------


def check_fusion(fusion: Fusion, known: Known) -> None:
    """Raise GraphError unless the regions store all outputs, read only what is stored, and run in some order."""
    regions, stored = fusion.regions, fusion.stored
    _check_regions(regions)
    by_bit = {region.bit: region for region in regions}
    if len(by_bit) != len(regions):
        raise _illegal_plan("fusion", "two regions of one number", "a number for each")
    for region in regions:
        for read in region.reads:
            if read not in stored:
                raise _illegal_plan(_name(region), f"reads {read!r}", "reads of what is stored")
            for writer in stored[read]:
                if not (writer is region or region.before & writer.bit):
                    raise _illegal_plan(
                        _name(region), f"no order after region {writer.number}, which writes {read!r}", "writers before"
                    )
        for result in region.stores:
            if region not in stored.get(result, ()):
                raise _illegal_plan(_name(region), f"{result!r} stored elsewhere", "its own results")
    final = set(regions)
    for node, writers in stored.items():
        if not final.issuperset(writers):
            raise _illegal_plan("fusion", f"{node!r} stored by a region that is gone", "its own regions")
    for node, window in fusion.windows.items():
        last = sum((extent - 1) * step for extent, step in zip(node.shape, window.strides, strict=True))
        fits = not node.size or 0 <= window.offset <= window.offset + last < window.whole.size
        if not fits:
            raise _illegal_plan("fusion", f"{node!r} at {window}", f"a part of {window.whole!r}")


def _check_regions(regions: Sequence[Region]) -> None:
    for region in regions:
        if region.form not in FORMS:
            raise _illegal_plan(_name(region), f"the form {region.form!r}", "a key of FORMS")
        if region.before & region.bit:
            raise _illegal_plan(_name(region), "a region before itself", "no cycle")
        if not region.stores:
            raise _illegal_plan(_name(region), "no results", "at least one")
        if len(region.index) != len(region.shape):
            raise _illegal_plan(_name(region), f"{len(region.index)} indices", "one per axis")
        missing = [k for k in region.reduced if not 0 <= k < len(region.shape)]
        if missing:
            raise _illegal_plan(_name(region), f"reduced axes {region.reduced}", f"axes of {region.shape}")
        for node, at in region.accesses:
            if len(at) != len(node.shape):
                raise _illegal_plan(_name(region), f"{len(at)} indices for {node!r}", "one per axis")
        if region.form in ("map", "rows", "cols", "split"):
            own = {axis for index in region.index for axis in ix.axes_of(index)}
            for node, at in region.accesses:
                axes = {axis for index in at for axis in ix.axes_of(index) if axis.kind != "value"}
                if not axes <= own:
                    raise _illegal_plan(_name(region), f"{node!r} read along other axes", "the axes of its domain")


def _name(region: Region) -> str:
    return f"region {region.number} ({region.form} {list(region.shape)})"


# --- memory ----------------------------------------------------------------------------------------------------------


def check_allocation(allocation: Allocation, known: Known) -> None:
    """Raise GraphError unless every value that is stored inside another fits there, and copies end in leaves."""
    _check_regions(allocation.regions)
    storage, leaves = allocation.storage, set(allocation.program.leaves)
    for node in storage.inside:
        whole, offset = storage.locate(node)
        if not (offset >= 0 and (node.op == "write_rows" or offset + _extent(node, allocation) <= whole.nbytes)):
            raise _illegal_plan("memory", f"{node!r} at byte {offset} of {whole!r}", "a part of it")
    for value, leaf, offset in storage.copies:
        if leaf not in leaves:
            raise _illegal_plan("memory", f"a copy to {leaf!r}", "copies to leaves")
        if offset + leaf.nbytes > value.nbytes:
            raise _illegal_plan("memory", f"a copy of {value!r} from byte {offset}", "its bytes")
    for output in storage.outputs:
        if output in leaves:
            raise _illegal_plan("memory", f"the leaf {output!r} as an output", "memory of its own")


def _extent(node: Node, allocation: Allocation) -> int:
    """Bytes from the first to the last element of a node in memory."""
    for region in allocation.regions:
        if node in region.strides:
            return _extent_of(node, region)
    return node.nbytes


def _extent_of(node: Node, region: Region) -> int:
    """The same for a result of `region`."""
    if node not in region.strides or not node.size:
        return node.nbytes
    steps = zip(node.shape, region.strides[node], strict=True)
    return (1 + sum((extent - 1) * step for extent, step in steps)) * node.dtype.itemsize


def check_schedule(allocation: Allocation, known: Known) -> None:
    """The same, and every region runs after all that must run before it."""
    check_allocation(allocation, known)
    done = 0
    for region in allocation.regions:
        if region.before & ~done:
            raise _illegal_plan(_name(region), "a step before what it depends on", "dependencies first")
        done |= region.bit


def check_layout(allocation: Allocation, known: Known) -> None:
    """The same, and every value has memory: one that is alive with another does not overlap it."""
    check_schedule(allocation, known)
    storage, fixed = allocation.storage, allocation.outside_arena()
    for region in allocation.regions:
        for node in (*[one for one in region.stores if region.is_stored(one)], *region.reads):
            value = storage.locate(node)[0]
            is_placed = value in fixed or value in storage.arena or not value.size
            if not is_placed:
                raise _illegal_plan(_name(region), f"{node!r} without memory", "a slot or a part of the arena")
    placed = sorted(storage.intervals, key=lambda interval: interval.offset)
    for number, interval in enumerate(placed):
        end = interval.offset + interval.nbytes
        inside = interval.offset % ALIGN == 0 and end <= storage.arena_bytes
        if not inside:
            raise _illegal_plan("arena", f"{interval}", f"a multiple of {ALIGN} inside {storage.arena_bytes} bytes")
        for other in placed[number + 1 :]:
            if other.offset >= end:
                break
            apart = other.last < interval.first or interval.last < other.first
            if not apart:
                raise _illegal_plan("arena", f"{other} on {interval}", "values alive together that do not overlap")


# --- kernels ----------------------------------------------------------------------------------------------------------


def check_lowered(lowered: LoweredProgram, known: Known) -> None:
    """Raise GraphError unless there is a legal nest, a legal kernel or a library's call for every region, whose buffers
    have the dtypes of what they hold."""
    regions = lowered.allocation.regions
    if len(lowered.regions) != len(regions):
        raise _illegal_plan("lowering", f"{len(lowered.regions)} for {len(regions)} regions", "one for each")
    for region, result in zip(regions, lowered.regions, strict=True):
        if result is None:
            if region.form not in ("dot", "loop"):
                raise _illegal_plan(_name(region), "nothing", "a nest or a kernel")
        elif isinstance(result, LoweredNest):
            _check_uses(region, result.nest, result)
            if known.is_new(result.nest):
                check_nest(result.nest, _sizes(result, region), result.tile or ())
        elif not isinstance(result, Called):
            _check_kernel(region, result, known)
    for nest in lowered.copies.values():
        check_nest(nest, {})


def _check_uses(region: Region, code: Nest | Kernel, result: LoweredNest | LoweredKernel | ScheduledKernel) -> None:
    """The buffers and scalars of a nest or a kernel, and the values and numbers behind them."""
    uses, scalars = result.uses, result.scalars
    if not (len(uses) == len(code.buffers) and len(scalars) == len(code.scalars)):
        raise _illegal_plan(_name(region), f"{len(uses)} values and {len(scalars)} numbers", "one per parameter")
    for param, use in zip(code.buffers, uses, strict=True):
        node: Any = use[0] if isinstance(use, tuple) else use
        if node.dtype is not param.dtype:
            raise _illegal_plan(_name(region), f"{node!r} as {param.dtype.name} '{param.name}'", "its dtype")


def _check_kernel(region: Region, result: LoweredKernel | ScheduledKernel, known: Known) -> None:
    _check_uses(region, result.kernel, result)
    if known.is_new(result.kernel):
        check_kernel(result.kernel)


def _sizes(lowered: LoweredNest, region: Region) -> dict[str, int]:
    """How many elements the buffers of a nest have. Rows that are written into a table lie anywhere in it."""
    found = {}
    for param, node in zip(lowered.nest.buffers, lowered.uses, strict=True):
        if node is STATUS:
            found[param.name] = len(lowered.sites)
        elif node.op != "write_rows":
            found[param.name] = max(node.size, _extent_of(node, region) // node.dtype.itemsize)
    return found


def check_scheduled(scheduled: ScheduledProgram, known: Known) -> None:
    """Raise GraphError unless every region has a legal kernel, in tasks of some points."""
    regions = scheduled.allocation.regions
    if not len(scheduled.kernels) == len(scheduled.traffic) == len(regions):
        raise _illegal_plan("schedule", f"{len(scheduled.kernels)} for {len(regions)} regions", "one for each")
    for region, result in zip(regions, scheduled.kernels, strict=True):
        if isinstance(result, ScheduledKernel):
            _check_kernel(region, result, known)
            if not (result.extent >= 0 and result.chunk > 0):
                raise _illegal_plan(
                    _name(region), f"{result.extent} points in chunks of {result.chunk}", "points in chunks"
                )
            is_for_gpu = result.kernel.geometry is not None
            if is_for_gpu != region.stores[0].device.features.workgroups:
                raise _illegal_plan(_name(region), "a kernel for another device", "a kernel for its own")
    for kernel in scheduled.copies.values():
        check_kernel(kernel)


# --- plans -----------------------------------------------------------------------------------------------------------


def check_plan(compiled: CompiledProgram, known: Known) -> None:
    """Raise GraphError unless every step stays inside the plan's slots and each launch has what its kernel takes."""
    plan = compiled.plan
    _check_steps(plan, plan.steps, known)
    for slot, offset in compiled.outputs:
        _check_place(plan, "outputs", Place(slot, offset))


def _check_steps(plan: Plan, steps: Iterable[Step], known: Known) -> None:
    for step in steps:
        if isinstance(step, Launch):
            _check_launch(plan, step, known)
        elif isinstance(step, Gemm):
            _check_places(plan, step.name, (step.a, step.b, step.c))
            if not (step.tile_m > 0 and step.tile_n > 0):
                raise _illegal_plan(step.name, f"{step.tile_m} x {step.tile_n}", "tiles")
            if step.epilogue is not None:
                _check_launch(plan, step.epilogue, known)
        elif isinstance(step, LibraryCall):
            _check_places(plan, step.name, step.places)
        else:
            _check_repeat(plan, step, known)


def _check_launch(plan: Plan, launch: Launch, known: Known) -> None:
    _check_places(plan, launch.name, launch.places)
    kernel: Any = launch.kernel
    if not isinstance(kernel, Kernel):
        raise _illegal_plan(launch.name, f"a {type(kernel).__name__}", "a kernel in the kernel language")
    if len(launch.places) != len(kernel.buffers):
        raise _illegal_plan(launch.name, f"{len(launch.places)} places", "one per buffer")
    if len(launch.scalars) != len(kernel.scalars):
        raise _illegal_plan(launch.name, f"{len(launch.scalars)} scalars", "one each")
    if not (launch.extent >= 0 and launch.chunk > 0):
        raise _illegal_plan(launch.name, f"chunks of {launch.chunk}", "points in chunks")
    if known.is_new(kernel):  # several launches became one
        check_kernel(kernel)


def _check_repeat(plan: Plan, repeat: Repeat, known: Known) -> None:
    if repeat.count < 0:
        raise _illegal_plan(repeat.name, f"{repeat.count} iterations", "a count")
    for moving in repeat.moving:
        _check_place(plan, repeat.name, moving.place)
        is_moving = plan.slots[moving.slot].kind == "moving"
        if not is_moving:
            raise _illegal_plan(repeat.name, f"slot {moving.slot} moving", "a slot of kind 'moving'")
    _check_steps(plan, repeat.first, known)
    _check_steps(plan, repeat.steps, known)


def _check_places(plan: Plan, name: str, places: Iterable[Place]) -> None:
    for place in places:
        _check_place(plan, name, place)


def _check_place(plan: Plan, name: str, place: Place) -> None:
    if not (0 <= place.slot < len(plan.slots)):
        raise _illegal_plan(f"step {name}", f"slot {place.slot}", f"one of {len(plan.slots)}")
    slot = plan.slots[place.slot]
    fits = slot.kind == "moving" or 0 <= place.offset <= slot.nbytes
    if not fits:
        raise _illegal_plan(f"step {name}", f"byte {place.offset} of a slot of {slot.nbytes}", "a byte of the slot")
