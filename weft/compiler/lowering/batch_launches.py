"""The pass in which small consecutive launches of a plan become one (`kernels.gpu.batched`), on GPUs.

Launches with work for one workgroup each run in sequence in one workgroup; launches that are independent of each other
run concurrently, each with workgroups of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from weft.base.dtypes import DType
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.emit import CompiledProgram
from weft.compiler.memory.storage import Allocation
from weft.compiler.options import Options
from weft.graph.node import Node
from weft.kernels.gpu import batched as kernels
from weft.kernels.gpu import schedule as gpu_schedule
from weft.kernels.gpu.target import Target
from weft.kernels.ir.language import BufferParam, Kernel, shared_bytes
from weft.plan.plan import Launch, Place, Scalar, Step

Independence = Callable[[int, int], bool]  # whether the steps with these numbers may run at the same time


def batch_launches(compiled: CompiledProgram, options: Options) -> CompiledProgram:
    """The plan with fewer launches, where the device has workgroups; with `notes` each step keeps its own."""
    device, origins, steps = options.device, options.origins, compiled.plan.steps
    if not device.features.workgroups or options.notes is not None:
        return compiled
    target = gpu_schedule.target_of(device.features, device.limits, device.tuning)
    memory, most = _Memory(compiled.allocation), device.limits.storage_buffers
    if origins is not None:
        groups = join_launch_groups(steps, memory.are_independent, target, most)
        origins.steps = [origins.join_shares(steps, numbers) for _, numbers in groups]
    joined = join_launches(steps, memory.are_independent, target, most)
    return replace(compiled, plan=replace(compiled.plan, steps=tuple(joined)))


@dataclass(frozen=True, slots=True)
class _Memory:
    """What the steps of an allocation's regions read and write."""

    allocation: Allocation

    def are_independent(self, first: int, second: int) -> bool:
        """Whether two steps may run at the same time: neither waits for the other, nor is in memory that
        the other uses."""
        regions = self.allocation.regions
        if max(first, second) >= len(regions):
            return False
        one, other = regions[first], regions[second]
        if one.before & other.bit or other.before & one.bit:
            return False
        return not any(
            a is not b and at < until and start < end
            for a, (at, end) in self._in_arena(one).items()
            for b, (start, until) in self._in_arena(other).items()
        )

    def _in_arena(self, region: Region) -> dict[Node, tuple[int, int]]:
        """What a region touches in the arena: (first byte, end) of each value."""
        storage = self.allocation.storage
        values = [storage.locate(node)[0] for node in (*region.reads, *region.stores)]
        starts = {value: storage.arena[value] for value in values if value in storage.arena}
        return {value: (start, start + value.nbytes) for value, start in starts.items()}


def join_launches(
    steps: Sequence[Step], are_independent: Independence, target: Target, storage_buffers: int = 0
) -> list[Step]:
    """The steps with small consecutive ones joined, where a workgroup has shared memory for the arrays of all of them
    and consists of whole subgroups, to which some parts may distribute rows, and a kernel may bind the buffers of all
    (`storage_buffers`; 0: any number)."""
    return [step for step, _ in join_launch_groups(steps, are_independent, target, storage_buffers)]


def join_launch_groups(
    steps: Sequence[Step], are_independent: Independence, target: Target, storage_buffers: int = 0
) -> list[tuple[Step, tuple[int, ...]]]:
    """As `join_launches`; each step with the numbers of the steps that it consists of."""
    numbered = [_Single(step, (number,)) for number, step in enumerate(steps)]

    def fits_together(group: Sequence[_Single]) -> bool:
        buffers = sum(len(_launch(single).places) for single in group)
        if len(group) > target.tuning.max_batched_launches or buffers > target.tuning.max_batched_buffers:
            return False
        parts = [_kernel(_launch(single)) for single in group]
        lanes = kernels.common_lanes(parts)
        if storage_buffers and _Bound([_launch(single) for single in group]).bindings > storage_buffers:
            return False
        has_memory = sum(map(shared_bytes, parts)) <= min(target.shared_bytes, target.static_shared_bytes)
        return lanes is not None and has_memory and lanes % max(target.subgroup_size, 1) == 0

    def has_few_workgroups(single: _Single) -> bool:
        few = len(single.numbers) == 1 and 0 < _workgroups(single.step) <= target.tuning.max_concurrent_workgroups
        return few and kernels.can_stand_beside(_kernel(_launch(single)))

    def fits_concurrently(group: Sequence[_Single]) -> bool:
        return fits_together(group) and group[-1].is_independent_of(group[:-1], are_independent)

    chains = _group(numbered, _has_one_workgroup, fits_together, _run_in_sequence)
    groups = _group(chains, has_few_workgroups, fits_concurrently, _run_concurrently)
    return [(single.step, single.numbers) for single in groups]


@dataclass(frozen=True, slots=True)
class _Single:
    """A step, and the numbers of the steps that it consists of."""

    step: Step
    numbers: tuple[int, ...]

    def is_independent_of(self, group: Sequence[_Single], are_independent: Independence) -> bool:
        return all(are_independent(other.numbers[0], self.numbers[0]) for other in group)


def _group(
    singles: Iterable[_Single],
    fits: Callable[[_Single], bool],
    fits_together: Callable[[Sequence[_Single]], bool],
    combine: Callable[[_Bound], Launch],
) -> list[_Single]:
    """The steps; consecutive ones that fit, and fit together, are combined into one."""
    out: list[_Single] = []
    group: list[_Single] = []

    def close() -> None:
        if len(group) < 2:
            out.extend(group)
        else:
            numbers = tuple([number for single in group for number in single.numbers])
            out.append(_Single(combine(_Bound([_launch(single) for single in group])), numbers))
        group.clear()

    for single in singles:
        if not fits(single):
            close()
            out.append(single)
            continue
        if not fits_together([*group, single]):
            close()
        group.append(single)
    close()
    return out


def _launch(single: _Single) -> Launch:
    assert isinstance(single.step, Launch)
    return single.step


def _kernel(launch: Launch) -> Kernel:
    assert isinstance(launch.kernel, Kernel)
    return launch.kernel


def _workgroups(step: Step) -> int:
    """The number of workgroups of a launch that can be joined; 0 for other steps."""
    if not isinstance(step, Launch) or not isinstance(step.kernel, Kernel) or step.kernel.geometry is None:
        return 0
    return step.kernel.geometry.workgroups(step.extent) if step.extent > 0 and kernels.can_join(step.kernel) else 0


def _has_one_workgroup(single: _Single) -> bool:
    return _workgroups(single.step) == 1


@dataclass(slots=True)
class _Bound:
    """Launches that become one: their kernels over common buffers, each place once."""

    launches: Sequence[Launch]
    memory: dict[tuple[Place, DType], BufferParam] = field(default_factory=dict)
    parts: list[kernels.Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbers: dict[tuple[Place, DType], int] = {}
        for launch in self.launches:
            bound = [(place, param.dtype) for place, param in zip(launch.places, _kernel(launch).buffers, strict=True)]
            for key, param in zip(bound, _kernel(launch).buffers, strict=True):
                number = numbers.setdefault(key, len(numbers))
                before = self.memory.get(key)
                written = param.written or (before is not None and before.written)
                bindings = max(param.bindings, before.bindings if before is not None else 1)
                self.memory[key] = replace(param, name=f"m{number}", written=written, bindings=bindings)
            self.parts.append(kernels.Part(_kernel(launch), tuple([numbers[key] for key in bound])))

    @property
    def bindings(self) -> int:
        return sum([param.bindings for param in self.memory.values()])

    def launch(self, kernel: Kernel, scalars: Sequence[Scalar], extent: int) -> Launch:
        nbytes, flops = (sum(getattr(launch, what) for launch in self.launches) for what in ("bytes", "flops"))
        places = tuple([place for place, _ in self.memory])
        return Launch(kernel, places, tuple(scalars), extent, 1, nbytes, flops)

    def name(self, what: str, between: str) -> str:
        return f"{what}_{len(self.parts)}_{self.launches[0].name}_{between}_{self.launches[-1].name}"


def _run_in_sequence(bound: _Bound) -> Launch:
    scalars = [scalar for launch in bound.launches for scalar in (*launch.scalars, launch.extent)]
    kernel = kernels.join(bound.name("steps", "to"), bound.parts, list(bound.memory.values()))
    return bound.launch(kernel, scalars, 1)


def _run_concurrently(bound: _Bound) -> Launch:
    kernel = kernels.batch_kernels(bound.name("beside", "and"), bound.parts, list(bound.memory.values()))
    assert kernel.geometry is not None
    scalars: list[Scalar] = []
    workgroups, lanes = 0, kernel.geometry.lanes
    for launch, part in zip(bound.launches, bound.parts, strict=True):
        scalars += [*launch.scalars, launch.extent, kernels.first_scalar(part.kernel, workgroups, lanes)]
        workgroups += kernels.count_workgroups(part.kernel, launch.extent, lanes)
    return bound.launch(kernel, scalars, workgroups)
