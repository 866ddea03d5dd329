"""The pass from scheduled kernels to a plan: steps over slots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.compiler.fusion.region import Region
from weft.compiler.fusion.views import base_of, window
from weft.compiler.inspect.explain import explain_region
from weft.compiler.inspect.origins import NOWHERE
from weft.compiler.lowering.expressions import STATUS
from weft.compiler.lowering.schedule import ScheduledProgram
from weft.compiler.lowering.tasks import COPY_MULTIPLE, even_chunk
from weft.compiler.memory.storage import Allocation, label_of
from weft.compiler.options import Options
from weft.compiler.passes.loops import Relocation
from weft.compiler.templates.template import Called, ScheduledKernel
from weft.graph.node import Node
from weft.kernels.ir.language import Kernel
from weft.kernels.numerics import product_tiles
from weft.plan.plan import Gemm, Launch, LibraryCall, Place, Plan, Repeat, Slot, Step


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A plan, the allocation whose regions its first steps compute, and for each output that replaces no leaf its
    (slot, byte offset)."""

    allocation: Allocation
    plan: Plan
    outputs: tuple[tuple[int, int], ...]


def emit_plan(scheduled: ScheduledProgram, options: Options) -> CompiledProgram:
    """The plan of scheduled kernels: one step for each region, then copies."""
    return _Emitter(scheduled, options).emit()


class _Emitter:
    """Turns scheduled kernels into steps."""

    def __init__(self, scheduled: ScheduledProgram, options: Options):
        allocation, device = scheduled.allocation, options.device
        program, storage = allocation.program, allocation.storage
        self.scheduled, self.allocation, self.options = scheduled, allocation, options
        self.program, self.storage, self.regions = program, storage, allocation.regions
        self.tuning, self.limits = device.tuning, device.limits
        self.bound: dict[tuple[int, tuple[int, ...]], Kernel] = {}  # kernels by identity and bindings of each buffer
        self.leaves = set(program.leaves)
        self.small_products = device.features.small_products
        inside = {small for small, _, _ in program.overlaps}  # memory that is counted with the leaf around it
        changed = program.changed_leaves
        self.slots: list[Slot] = [
            Slot("view" if number in inside else "input", leaf.nbytes, label_of(leaf), leaf in changed)
            for number, leaf in enumerate(program.leaves)
        ]
        self.slot_of: dict[Node, int] = {leaf: k for k, leaf in enumerate(program.leaves)}
        for value in storage.outputs:
            self.slot_of[value] = len(self.slots)
            self.slots.append(Slot("output", value.nbytes, label_of(value)))
        moving = sum(body.moving for body in allocation.bodies.values())
        self.moving = iter(range(len(self.slots), len(self.slots) + moving))
        self.slots += [Slot("moving", 0, "moving")] * moving
        self.arena = len(self.slots)
        self.slots.append(Slot("arena", storage.arena_bytes, "arena"))
        self.status = len(self.slots)
        self.sites: list[str] = []

    def emit(self) -> CompiledProgram:
        program, notes, origins = self.program, self.options.notes, self.options.origins
        if notes is not None:
            notes.extend([explain_region(region, self.place_of) for region in self.regions])
        each = zip(self.regions, self.scheduled.kernels, self.scheduled.traffic, strict=True)
        steps = [self._step(region, kernel, moved) for region, kernel, moved in each]
        for value, leaf, offset in self.storage.copies:
            steps.append(self._copy(value, leaf, offset))
        if origins is not None:
            shares = [origins.count_shares(region, step) for region, step in zip(self.regions, steps, strict=False)]
            origins.steps = shares + [{origins.of(value) or NOWHERE: 1.0} for value, _, _ in self.storage.copies]
        self.slots.append(Slot("status", 4 * len(self.sites), "status"))
        plan = Plan(tuple(steps), tuple(self.slots), self.storage.intervals, "", tuple(self.sites))
        written = {write.output for write in program.writes}
        bases = [base_of(node) for position, node in enumerate(program.outputs) if position not in written]
        outputs = tuple([(place.slot, place.offset) for place in map(self.place_of, bases)])
        return CompiledProgram(self.allocation, plan, outputs)

    def place_of(self, node: Node, offset: int = 0) -> Place:
        if node is STATUS:
            return Place(self.status, 4 * len(self.sites))
        value, at = self.storage.locate(node)
        slot = self.slot_of.get(value)
        if slot is None:
            return Place(self.arena, self.storage.arena[value] + at + offset)
        return Place(slot, at + offset)

    def _step(self, region: Region, kernel: ScheduledKernel | Called | None, moved: int) -> Step:
        if isinstance(kernel, Called):
            return self._call(kernel, region, moved)
        if region.form == "dot":
            return self._gemm(region, kernel, moved)
        return self._repeat(region) if kernel is None else self._launch(kernel, region, moved)

    def _launch(self, scheduled: ScheduledKernel, region: Region, moved: int) -> Launch:
        places = [self.place_of(node, offset * node.dtype.itemsize) for node, offset in scheduled.uses]
        self.sites.extend(scheduled.sites)
        kernel = self._bind(scheduled.kernel, [region.span_of(node) for node, _ in scheduled.uses])
        extent, chunk = scheduled.extent, scheduled.chunk
        return Launch(kernel, tuple(places), scheduled.scalars, extent, chunk, moved, scheduled.flops)

    def _bind(self, kernel: Kernel, sizes: Sequence[int]) -> Kernel:
        """`kernel` for buffers of so many bytes, some of which may be too large for one binding."""
        if not self.limits.binding_bytes:
            return kernel
        counts = tuple([self.limits.count_bindings(nbytes) for nbytes in sizes])
        if max(counts, default=1) == 1:
            return kernel
        key = id(kernel), counts  # kernels live as long as `scheduled`
        if key not in self.bound:
            pairs = zip(kernel.buffers, counts, strict=True)
            self.bound[key] = replace(kernel, buffers=tuple([replace(one, bindings=count) for one, count in pairs]))
        return self.bound[key]

    def _call(self, called: Called, region: Region, moved: int) -> LibraryCall:
        places = [self.place_of(node, offset * node.dtype.itemsize) for node, offset in called.uses]
        scratch = [root for root in region.roots if root.op == "input"]
        places += [self.place_of(root) for root in scratch]
        moved -= sum(root.nbytes for root in scratch)
        return LibraryCall(called.name, called.library, called.config, tuple(places), moved, called.flops)

    def _gemm(self, region: Region, after: ScheduledKernel | None, moved: int) -> Gemm:
        anchor, views = region.anchor, region.operands
        assert anchor is not None and views is not None
        a, b = views.a, views.b
        *batch_shape, m, n = anchor.shape
        batch, k = math.prod(batch_shape), anchor.srcs[0].shape[-1]
        size = anchor.dtype.itemsize
        epilogue = None if after is None else self._launch(after, region, moved)
        tile_m, tile_n = product_tiles(batch, m, n, k, (a.transposed, b.transposed), self.small_products)
        return Gemm(
            name=f"gemm_{'x'.join(map(str, (*batch_shape, m, n, k)))}" + (f"_{epilogue.name}" if epilogue else ""),
            dtype=anchor.dtype, batch=batch, m=m, n=n, k=k,
            a=self.place_of(a.base, a.offset * size), b=self.place_of(b.base, b.offset * size),
            c=self.place_of(anchor),
            lda=a.leading, ldb=b.leading, ldc=n, transpose_a=a.transposed, transpose_b=b.transposed,
            stride_a=views.strides[0][1], stride_b=views.strides[1][1], stride_c=m * n,
            tile_m=tile_m, tile_n=tile_n, epilogue=epilogue,
            bytes=moved, flops=2 * batch * m * n * k + (epilogue.flops if epilogue else 0),
            inner=views.inner, outer_a=views.strides[0][0], outer_b=views.strides[1][0],
        )  # fmt: skip

    def _repeat(self, region: Region) -> Repeat:
        body = self.allocation.bodies[region.number]
        scratch = self.place_of(region.roots[-1]) if body.plan.arena_bytes else Place(self.arena, 0)
        slots = list(itertools.islice(self.moving, body.moving))
        inside = Relocation(body, self._window, scratch, Place(self.status, 4 * len(self.sites)), slots)
        self.sites.extend(body.plan.sites)
        first = []
        for number in range(len(body.loop.attrs.body.states)):
            source, target = inside.first_entry(number)
            first.append(self._copy_launch(self._window(source), target, source))
        return inside.repeat(first)

    def _window(self, node: Node) -> Place:
        """The place of a source or a pick of a loop."""
        base, offset = window(node, self.leaves)
        return self.place_of(base, offset)

    def _copy_launch(self, source: Place, target: Place, value: Node) -> Launch:
        kernel = self._bind(self.scheduled.copies[value.dtype], [value.nbytes] * 2)
        chunk = even_chunk(value.size, self.tuning.min_copy_chunk, COPY_MULTIPLE, self.tuning)
        return Launch(kernel, (source, target), (), value.size, chunk, 2 * value.nbytes, 0)

    def _copy(self, value: Node, leaf: Node, offset: int) -> Launch:
        """A value that could not be computed in place is copied to its leaf after everything else."""
        return self._copy_launch(self.place_of(value, offset), self.place_of(leaf), leaf)
