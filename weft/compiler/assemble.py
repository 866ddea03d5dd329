"""assemble: the passes in order, from a program to a plan.

simplify -> decompose -> fuse -> memory -> lower -> plan. Every pass keeps the graph legal; with CHECK on (as in the
tests) the spec runs after each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.backends.base import Device
from weft.compiler import memory
from weft.compiler.access import row_major
from weft.compiler.block_product import by_blocks
from weft.compiler.decompose import copy_of, decompose, number_for, numbers_for
from weft.compiler.expand import expand_heavy, spell_out
from weft.compiler.explain import Explained, explained
from weft.compiler.fuse import Fused, fuse
from weft.compiler.join import joined, joined_groups
from weft.compiler.loops import Relocation, Turn, last_entries, program_of, settle
from weft.compiler.lower import Lowered, lower, lower_epilogue, result_nodes
from weft.compiler.lower_blocks import BLOCK_ORDERINGS
from weft.compiler.lower_order import ORDERINGS
from weft.compiler.matmul import tiles
from weft.compiler.memory import Storage
from weft.compiler.origins import NOWHERE, Origins
from weft.compiler.plan import Gemm, Launch, LibraryCall, Place, Plan, Repeat, Slot, Step
from weft.compiler.products import absorb
from weft.compiler.program import Program
from weft.compiler.region import Region, is_fold
from weft.compiler.rows import RowsConflict, spell_out_rows
from weft.compiler.sharing import Sharing
from weft.compiler.simplify import reshape, simplify
from weft.compiler.tables import lower_scatter, lower_segment
from weft.compiler.template import Built, Called
from weft.compiler.values import STATUS
from weft.compiler.windows import base_of, window, window_base
from weft.dtypes import bool_
from weft.graph import spec
from weft.graph.node import Node, placeholder, toposort
from weft.kernels import cpu, gpu
from weft.kernels import index as ix
from weft.kernels.index import Axis
from weft.kernels.language import Kernel
from weft.kernels.nest import Nest, copy_nest

CHECK = False  # run the graph's spec after every pass; tests switch it on
TASK_BYTES = 32768  # a task is worth at least about this much memory traffic
MOST_TASKS = 64
STREAM_BYTES = 8 << 20  # a result at least this large would push everything else out of the caches


def assemble(
    program: Program,
    device: Device,
    turn: bool = False,
    notes: list[Explained] | None = None,
    origins: Origins | None = None,
) -> tuple[Plan, list[tuple[int, int]]]:
    """The plan of a program, and for each output that is not written in place its (slot, byte offset).

    The program of a `turn` of a loop has a slot for each output. `notes`, if given, gets what each step computes; the
    steps after the last note are copies. `origins`, if given, gets what each step was made for; the plan is the same.
    """
    try:
        program, outputs, fused, storage = _divide(program, device, turn, notes is None, origins)
    except RowsConflict:
        program, outputs, fused, storage = _divide(program, device, turn, False, origins)
    written = {write.output for write in program.writes}
    result_nodes(
        fused.regions,
        [base_of(node) for node in outputs]
        + [v for v, _, _ in storage.copies]
        + list(storage.roots)
        + [root for root, _ in storage.roots.values()],
        fused.homes,
    )
    order = memory.order(storage, fused, program.leaves)
    extra = {storage.place(value)[0]: len(order) for value, _, _ in storage.copies}
    scratch = {region: _product_home(region, storage) for region in order if region.form == "dot"}
    turns = {region: _turn(region, device) for region in order if region.form == "loop"}
    for region in order:
        _add_scratch(region, device)
    memory.lay_out(storage, fused, order, program.leaves, extra)
    assembly = _Assembly(program, storage, order, scratch, turns, device)
    assembly.streams = not turn
    assembly.joins = "blocks" in device.features and notes is None
    if notes is not None:
        notes.extend([explained(region, assembly.place) for region in order])
    return assembly.plan(outputs, written, origins)


def _divide(
    program: Program, device: Device, turn: bool, rows_in_place: bool, origins: Origins | None
) -> tuple[Program, list[Node], Fused, Storage]:
    """The program in the form that the fuser takes, its regions and their memory."""
    program, outputs = _prepare(program, device, turn, rows_in_place, origins)
    nodes = toposort(outputs, set(program.leaves).__contains__)
    fused = fuse(nodes, outputs, program.leaves, {write.output for write in program.writes}, _changing(program))
    return program, outputs, fused, memory.assign(fused, program, outputs)


def _changing(program: Program) -> set[Node]:
    """The leaves whose memory a write of the program changes."""
    written = {write.leaf for write in program.writes}
    for small, big, _ in program.overlaps:
        if small in written or big in written:
            written |= {small, big}
    return {program.leaves[number] for number in written}


def _add_scratch(region: Region, device: Device) -> None:
    """Memory that a template needs while it runs is one more result, which nobody reads."""
    if region.template is not None and region.template.scratch is not None:
        nbytes = region.template.scratch(region)
        if nbytes:
            region.sinks.append(placeholder((nbytes,), bool_, device))


def _turn(region: Region, device: Device) -> Turn:
    """The compiled body of a loop. Its arena is one value of the outer one."""
    loop = region.anchor
    assert loop is not None
    picks = list(region.sinks)
    plan, outputs = assemble(program_of(loop, picks), device, turn=True)
    if plan.arena_bytes:
        region.sinks.append(placeholder((plan.arena_bytes,), bool_, loop.device))
    return Turn(loop, picks, plan, [slot for slot, _ in outputs])


def _prepare(
    program: Program, device: Device, turn: bool, rows_in_place: bool = True, origins: Origins | None = None
) -> tuple[Program, list[Node]]:
    """The program over stand-ins for its leaves, and its outputs in the form that the fuser takes."""
    watched: Callable[[list[Node]], list[Node]] = list if origins is None else origins.watched
    stand_ins = {leaf: placeholder(leaf.shape, leaf.dtype, leaf.device) for leaf in program.leaves}
    numbers = {node: number_for(node, slot) for slot, node in enumerate(program.numbers)}
    starts = numbers_for(program.positions)
    outputs = spell_out_rows(program, rows_in_place)
    nodes = program.nodes if outputs is program.outputs else toposort(outputs, stand_ins.__contains__)
    outputs = spell_out(watched(nodes), outputs, program.leaves, device, starts)
    nodes = program.nodes if outputs is program.outputs else toposort(outputs, stand_ins.__contains__)
    outputs = simplify(watched(nodes), outputs, {**stand_ins, **numbers})
    program = replace(program, leaves=list(stand_ins.values()))
    _check(outputs)
    leaves = set(program.leaves)
    outputs = settle(watched(toposort(outputs, leaves.__contains__)), outputs, leaves)
    _check(outputs)
    outputs = expand_heavy(watched(toposort(outputs, leaves.__contains__)), outputs, leaves, device)
    _check(outputs)
    apart = {_contiguous_base(node, leaves) for node in outputs} if turn else ()
    outputs = decompose(watched(toposort(outputs, leaves.__contains__)), outputs, leaves, apart)
    _check(outputs)
    outputs = absorb(watched(toposort(outputs, leaves.__contains__)), outputs, leaves, device)
    if "blocks" in device.features:
        outputs = by_blocks(watched(toposort(outputs, leaves.__contains__)), outputs, leaves)
    _check(outputs)
    own: set[Node] = set()
    written = {write.output for write in program.writes}
    copies = _copies(outputs, leaves) if written else {}
    entries = last_entries([node for node in toposort(outputs, leaves.__contains__) if node.op == "pick"])
    for position, node in enumerate(outputs):
        base = _contiguous_base(node, leaves)
        waits = base.op == "after" or window_base(node, leaves).op == "after"
        if base in leaves or waits or base in entries or (turn and base in own):
            outputs[position] = copy_of(node)
        elif position in written and node in own:
            made = copies.get(base)
            outputs[position] = reshape(made.pop(), node.shape) if made else copy_of(node)
        own.update((node, base))
    return program, outputs


def _copies(outputs: Sequence[Node], leaves: set[Node]) -> dict[Node, list[Node]]:
    """Copies of whole values that the graph has anyway, as contiguous parts of concatenations, the last one first."""
    found: dict[Node, list[Node]] = {}
    for node in reversed(toposort(outputs, leaves.__contains__)):
        if node.op == "concat" and math.prod(node.shape[: node.attrs[0]]) == 1:
            for part in reversed(node.srcs):
                if part.op == "copy":
                    found.setdefault(_contiguous_base(part.srcs[0], leaves), []).append(part)
    return found


def _contiguous_base(node: Node, leaves: set[Node]) -> Node:
    while node not in leaves and node.op == "reshape":
        node = node.srcs[0]
    return node


def _check(outputs: Sequence[Node]) -> None:
    if CHECK:
        spec.check(outputs)


def _product_home(region: Region, storage: Storage) -> Node:
    """Where a matrix product is written before its epilogue: its own memory, or that of a sink computed from it."""
    anchor = region.anchor
    assert anchor is not None
    if anchor in region.kept_results:
        return anchor
    for sink in region.sinks:
        whole = region.strides.get(sink) in (None, row_major(sink.shape))
        if sink is not anchor and sink.dtype is anchor.dtype and sink.size == anchor.size and whole:
            root = storage.place(sink)[0]
            if not any(storage.place(read)[0] is root for read in region.reads):
                storage.roots[anchor] = storage.place(sink)
                return sink
    return anchor


class _Assembly:
    """Turns ordered regions with assigned memory into steps."""

    def __init__(
        self, program: Program, storage: Storage, order: list[Region], scratch: dict[Region, Node],
        turns: dict[Region, Turn], device: Device,
    ):  # fmt: skip
        self.storage, self.order, self.scratch, self.turns = storage, order, scratch, turns
        self.device = device
        self.leaves = set(program.leaves)
        self.streams = True  # whether large results may bypass the caches
        self.joins = False  # whether small launches in a row become one
        self.blocks = "blocks" in device.features
        self.target = gpu.target_of(device.features, device.limits)
        self.small_products = "small products" in device.features
        inside = {small for small, _, _ in program.overlaps}  # memory that is counted with the leaf around it
        changing = _changing(program)
        self.slots: list[Slot] = [
            Slot("view" if number in inside else "input", leaf.nbytes, memory.label(leaf), leaf in changing)
            for number, leaf in enumerate(program.leaves)
        ]
        self.slot_of: dict[Node, int] = {leaf: k for k, leaf in enumerate(program.leaves)}
        for root in storage.outputs:
            self.slot_of[root] = len(self.slots)
            self.slots.append(Slot("output", root.nbytes, memory.label(root)))
        movers = sum(turn.moving for turn in turns.values())
        self.moving = iter(range(len(self.slots), len(self.slots) + movers))
        self.slots += [Slot("moving", 0, "moving")] * movers
        self.arena = len(self.slots)
        self.slots.append(Slot("arena", storage.arena_bytes, "arena"))
        self.status = len(self.slots)
        self.sites: list[str] = []
        self.sharing = Sharing()
        # By identity of a nest and what is written past the caches; the nest is kept, so that no other can have it.
        self.scheduled: dict[tuple, tuple[Nest, Kernel]] = {}

    def plan(
        self, outputs: Sequence[Node], written: set[int], origins: Origins | None
    ) -> tuple[Plan, list[tuple[int, int]]]:
        steps: list[Step] = [self._step(region) for region in self.order]
        for value, leaf, offset in self.storage.copies:
            steps.append(self._copy(value, leaf, offset))
        if origins is not None:
            made = [origins.shares(region) for region in self.order]
            origins.steps = made + [{origins.of(value) or NOWHERE: 1.0} for value, _, _ in self.storage.copies]
        if self.joins and origins is not None:
            groups = joined_groups(steps, self._apart, self.target)
            origins.steps = [origins.together(steps, numbers) for _, numbers in groups]
        if self.joins:
            steps = joined(steps, self._apart, self.target)
        self.slots.append(Slot("status", 4 * len(self.sites), "status"))
        plan = Plan(tuple(steps), tuple(self.slots), tuple(self.storage.intervals), "", tuple(self.sites))
        places = [self.place(base_of(node)) for position, node in enumerate(outputs) if position not in written]
        return plan, [(place.slot, place.offset) for place in places]

    def _apart(self, first: int, second: int) -> bool:
        """Whether two steps may run at the same time: neither waits for the other, nor lies where the other did."""
        if max(first, second) >= len(self.order):
            return False
        one, other = self.order[first], self.order[second]
        if one.before & other.bit or other.before & one.bit:
            return False
        return not any(
            a is not b and at < until and start < end
            for a, (at, end) in self._in_arena(one).items()
            for b, (start, until) in self._in_arena(other).items()
        )

    def _in_arena(self, region: Region) -> dict[Node, tuple[int, int]]:
        """What a region touches in the arena: (first byte, end) of each root."""
        roots = [self.storage.place(node)[0] for node in (*region.reads, *region.sinks, *region.partials)]
        starts = {root: self.storage.arena[root] for root in roots if root in self.storage.arena}
        return {root: (start, start + root.nbytes) for root, start in starts.items()}

    def place(self, node: Node, offset: int = 0) -> Place:
        if node is STATUS:
            return Place(self.status, 4 * len(self.sites))
        root, at = self.storage.place(node)
        slot = self.slot_of.get(root)
        if slot is None:
            return Place(self.arena, self.storage.arena[root] + at + offset)
        return Place(slot, at + offset)

    def _step(self, region: Region) -> Step:
        if region.form == "dot":
            return self._gemm(region)
        if region.template is not None:
            build = region.template.build
            return self._template(self.sharing.lower(region, lambda region: build(region, self.device)), region)
        if region.form in ORDERINGS:
            return self._ordering(region)
        if region.form == "loop":
            return self._repeat(region)
        lowered = self.sharing.lower(
            region, {"scatter": lower_scatter, "segment": lower_segment}.get(region.form, lower)
        )
        return self._launch(self._kernel(lowered), lowered, region)

    def _schedule(self, nest: Nest) -> Kernel:
        return gpu.schedule(nest, self.target) if self.blocks else cpu.schedule(nest)

    def _kernel(self, lowered: Lowered) -> Kernel:
        """The kernel of a nest; regions that share the nest share it."""
        streamed = self._streamed(lowered)
        key = (id(lowered.nest), streamed)
        if key not in self.scheduled:
            pairs = zip(lowered.nest.buffers, streamed, strict=True)
            buffers = tuple([replace(param, stream=stream) for param, stream in pairs])
            self.scheduled[key] = lowered.nest, self._schedule(replace(lowered.nest, buffers=buffers))
        return self.scheduled[key][1]

    def _streamed(self, lowered: Lowered) -> tuple[bool, ...]:
        """Which buffers are large results that no later step reads: better kept out of the caches."""
        found = []
        for param, node in zip(lowered.nest.buffers, lowered.uses, strict=True):
            large = self.streams and param.written and node is not STATUS and node.nbytes >= STREAM_BYTES
            root, offset = self.storage.place(node) if large else (node, 0)
            alone = large and root in self.storage.outputs and offset % memory.ALIGN == 0
            read = alone and any(node in region.reads or root in region.reads for region in self.order)
            found.append(alone and not read)
        return tuple(found)

    def _launch(self, kernel: Kernel, lowered: Lowered, region: Region) -> Launch:
        places = tuple([self.place(node) for node in lowered.uses])
        self.sites.extend(lowered.sites)
        moved = _traffic(region)
        chunk = _chunk(lowered, moved, region)
        return Launch(kernel, places, lowered.scalars, lowered.points, chunk, moved, lowered.flops)

    def _template(self, built: Built | Called, region: Region) -> Launch | LibraryCall:
        places = [self.place(node, offset * node.dtype.itemsize) for node, offset in built.uses]
        moved = _traffic(region)
        if isinstance(built, Called):
            scratch = [sink for sink in region.sinks if sink.op == "input"]
            places += [self.place(sink) for sink in scratch]
            moved -= sum(sink.nbytes for sink in scratch)
            return LibraryCall(built.name, built.library, built.config, tuple(places), moved, built.flops)
        self.sites.extend(built.sites)
        return Launch(built.kernel, tuple(places), built.scalars, built.extent, built.chunk, moved, built.flops)

    def _ordering(self, region: Region) -> Launch:
        """A scan, a sort or elements put into rows: its loops are written by hand, in the kernel language."""
        made = self.sharing.lower(region, (BLOCK_ORDERINGS if self.blocks else ORDERINGS)[region.form])
        places = tuple([self.place(node) for node in made.uses])
        self.sites.extend(made.sites)
        moved = _traffic(region)
        work = max(moved, 2 * made.flops) // max(made.points, 1) + 1
        chunk = _even(made.points, -(-TASK_BYTES // work), cpu.LANES * 8 if made.in_lanes else 1)
        return Launch(made.kernel, places, made.scalars, made.points, chunk, moved, made.flops)

    def _gemm(self, region: Region) -> Gemm:
        anchor, views = region.anchor, region.operands
        assert anchor is not None and views is not None
        a, b = views.a, views.b
        *batch_shape, m, n = anchor.shape
        batch, k = math.prod(batch_shape), anchor.srcs[0].shape[-1]
        size = anchor.dtype.itemsize
        epilogue = None
        if any(sink is not anchor for sink in region.sinks):
            lowered, axes = self.sharing.lower(region, lower_epilogue)
            if self.blocks:  # one launch after the product, over all its elements
                lowered = replace(lowered, points=anchor.size)
            epilogue = self._launch(self._tile_kernel(lowered, axes), lowered, region)
        tile_m, tile_n = tiles(batch, m, n, k, (a.transposed, b.transposed), self.small_products)
        return Gemm(
            name=f"gemm_{'x'.join(map(str, (*batch_shape, m, n, k)))}" + (f"_{epilogue.name}" if epilogue else ""),
            dtype=anchor.dtype, batch=batch, m=m, n=n, k=k,
            a=self.place(a.base, a.offset * size), b=self.place(b.base, b.offset * size),
            c=self.place(self.scratch[region]),
            lda=a.leading, ldb=b.leading, ldc=n, transpose_a=a.transposed, transpose_b=b.transposed,
            stride_a=views.strides[0][1], stride_b=views.strides[1][1], stride_c=m * n,
            tile_m=tile_m, tile_n=tile_n, epilogue=epilogue,
            bytes=_traffic(region), flops=2 * batch * m * n * k + (epilogue.flops if epilogue else 0),
            inner=views.inner, outer_a=views.strides[0][0], outer_b=views.strides[1][0],
        )  # fmt: skip

    def _tile_kernel(self, lowered: Lowered, axes: tuple[Axis, Axis, Axis]) -> Kernel:
        nest = lowered.nest
        key = (id(nest), axes)
        if key not in self.scheduled:
            made = gpu.schedule_tile(nest, *axes, target=self.target) if self.blocks else cpu.schedule_tile(nest, *axes)
            self.scheduled[key] = nest, made
        return self.scheduled[key][1]

    def _repeat(self, region: Region) -> Repeat:
        turn = self.turns[region]
        scratch = self.place(region.sinks[-1]) if turn.plan.arena_bytes else Place(self.arena, 0)
        slots = list(itertools.islice(self.moving, turn.moving))
        inside = Relocation(turn, self._window, scratch, Place(self.status, 4 * len(self.sites)), slots)
        self.sites.extend(turn.plan.sites)
        first = []
        for number in range(len(turn.loop.attrs[0].states)):
            source, target = inside.first_entry(number)
            first.append(self._copy_launch(self._window(source), target, source))
        return inside.repeat(first)

    def _window(self, node: Node) -> Place:
        """Where a source or a pick of a loop lies."""
        base, offset = window(node, self.leaves)
        return self.place(base, offset)

    def _copy_launch(self, source: Place, target: Place, value: Node) -> Launch:
        kernel = self._schedule(copy_nest(value.dtype))
        chunk = _even(value.size, 8192, 1024)
        return Launch(kernel, (source, target), (), value.size, chunk, 2 * value.nbytes, 0)

    def _copy(self, value: Node, leaf: Node, offset: int) -> Launch:
        """A value that could not be computed in place goes to its leaf after everything else."""
        return self._copy_launch(self.place(value, offset), self.place(leaf), leaf)


def _traffic(region: Region) -> int:
    """Bytes that a region reads and writes, each element once."""
    total = 0
    rows, *inner = region.shape or (1,)
    most = math.prod(region.shape) if region.pointers is None else max(math.prod(inner), rows * math.prod(inner[1:]))
    reached: dict[Node, int] = {}
    for node, at in region.accesses:
        if node in region.reads:
            axes = {axis for index in at for axis in ix.axes_of(index)}
            elements = min(node.size, math.prod(axis.extent for axis in axes), most)
            reached[node] = max(reached.get(node, 0), elements)
    for node in region.reads:
        total += reached.get(node, node.size) * node.dtype.itemsize
    for sink in region.sinks:
        if sink in region.kept_results or not is_fold(sink):
            total += (
                sink.nbytes if sink is not region.anchor or sink in region.kept_results or len(region.sinks) == 1 else 0
            )
    return total + sum(partial.nbytes for partial in region.partials)


def _chunk(lowered: Lowered, moved: int, region: Region) -> int:
    """Points per task: enough to be worth handing out, few enough to share."""
    points = lowered.points
    if region.partials:
        return 1
    work = max(moved, 2 * lowered.flops) // max(points, 1) + 1
    least = -(-TASK_BYTES // work)
    if lowered.nest.side == "points":
        return _even(points, least, cpu.LANES * 8)
    if lowered.nest.side == "scatter":
        assert lowered.nest.lane is not None  # every task reads all indices: that must be little beside what it adds
        return _even(points, -(-points // min(max(lowered.nest.lane.extent // 8, 1), 16)), 1)
    return _even(points, least, cpu.picked_together(lowered.nest))


def _even(points: int, least: int, multiple: int) -> int:
    """Task size at least `least`, a multiple of `multiple`, giving at most MOST_TASKS tasks."""
    chunk = max(least, -(-points // MOST_TASKS), 1)
    return -(-chunk // multiple) * multiple
