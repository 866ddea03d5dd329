"""join: small launches in a row become one (`kernels.joined`): those that have work for one block each, which then run
one after the other in it, and those that do not depend on each other, whose blocks then run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from weft.compiler.plan import Launch, Place, Scalar, Step
from weft.dtypes import DType
from weft.kernels import joined as kernels
from weft.kernels.gpu_tile import Target
from weft.kernels.language import DECLARED, BufferParam, Kernel, shared_bytes

MOST = 24  # launches in one: what is compiled as one text should stay short
MOST_BUFFERS = 48
MOST_BLOCKS = 256  # of a launch that others run beside: more keep a GPU busy alone

Apart = Callable[[int, int], bool]  # whether the steps with these numbers may run at the same time


def joined(steps: Sequence[Step], apart: Apart, target: Target) -> list[Step]:
    """The steps, small neighbours joined, as long as a block has room for the arrays of all of them, and is made of
    whole subgroups, among which some parts may deal out rows."""
    return [step for step, _ in joined_groups(steps, apart, target)]


def joined_groups(steps: Sequence[Step], apart: Apart, target: Target) -> list[tuple[Step, tuple[int, ...]]]:
    """The same, each with the numbers of the steps that it was made of."""
    numbered = [_Single(step, (number,)) for number, step in enumerate(steps)]

    def agree(group: Sequence[_Single]) -> bool:
        parts = [_kernel(_launch(single)) for single in group]
        room = sum(map(shared_bytes, parts)) <= min(target.shared_bytes, DECLARED)
        return room and (kernels.threads_of(parts) or 0) % max(target.subgroup, 1) == 0

    def agree_apart(group: Sequence[_Single]) -> bool:
        return agree(group) and group[-1].stands_apart(group[:-1], apart)

    chains = _grouped(numbered, _has_one_block, agree, _one_after_the_other)
    pairs = _grouped(chains, _has_few_blocks, agree_apart, _side_by_side)
    return [(single.step, single.numbers) for single in pairs]


@dataclass(frozen=True, slots=True)
class _Single:
    """A step, and the numbers of the steps that it was made of."""

    step: Step
    numbers: tuple[int, ...]

    def stands_apart(self, group: Sequence[_Single], apart: Apart) -> bool:
        return all(apart(other.numbers[0], self.numbers[0]) for other in group)


def _grouped(
    singles: Iterable[_Single],
    fits: Callable[[_Single], bool],
    agree: Callable[[Sequence[_Single]], bool],
    made_one: Callable[[_Bound], Launch],
) -> list[_Single]:
    """The steps, those in a row that fit and agree with each other made one."""
    out: list[_Single] = []
    group: list[_Single] = []

    def close() -> None:
        if len(group) < 2:
            out.extend(group)
        else:
            numbers = tuple([number for single in group for number in single.numbers])
            out.append(_Single(made_one(_Bound([_launch(single) for single in group])), numbers))
        group.clear()

    for single in singles:
        if not fits(single):
            close()
            out.append(single)
            continue
        if not _can_be_one([*group, single]) or not agree([*group, single]):
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


def _blocks(step: Step) -> int:
    """The blocks of a launch that can be a part of another; 0 for other steps."""
    if not isinstance(step, Launch) or not isinstance(step.kernel, Kernel) or step.kernel.geometry is None:
        return 0
    return step.kernel.geometry.blocks(step.extent) if step.extent > 0 and kernels.can_join(step.kernel) else 0


def _has_one_block(single: _Single) -> bool:
    return _blocks(single.step) == 1


def _has_few_blocks(single: _Single) -> bool:
    few = len(single.numbers) == 1 and 0 < _blocks(single.step) <= MOST_BLOCKS
    return few and kernels.can_stand_beside(_kernel(_launch(single)))


def _can_be_one(group: Sequence[_Single]) -> bool:
    launches = [_launch(single) for single in group]
    parts = [_kernel(launch) for launch in launches]
    few = len(group) <= MOST and sum(len(launch.places) for launch in launches) <= MOST_BUFFERS
    return few and kernels.threads_of(parts) is not None


@dataclass(slots=True)
class _Bound:
    """Launches that will be one: their kernels over common buffers, each place once."""

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
                self.memory[key] = replace(param, name=f"m{number}", written=written)
            self.parts.append(kernels.Part(_kernel(launch), tuple([numbers[key] for key in bound])))

    def launch(self, kernel: Kernel, scalars: Sequence[Scalar], extent: int) -> Launch:
        nbytes, flops = (sum(getattr(launch, what) for launch in self.launches) for what in ("bytes", "flops"))
        places = tuple([place for place, _ in self.memory])
        return Launch(kernel, places, tuple(scalars), extent, 1, nbytes, flops)

    def name(self, what: str, between: str) -> str:
        return f"{what}_{len(self.parts)}_{self.launches[0].name}_{between}_{self.launches[-1].name}"


def _one_after_the_other(bound: _Bound) -> Launch:
    scalars = [scalar for launch in bound.launches for scalar in (*launch.scalars, launch.extent)]
    kernel = kernels.join(bound.name("steps", "to"), bound.parts, list(bound.memory.values()))
    return bound.launch(kernel, scalars, 1)


def _side_by_side(bound: _Bound) -> Launch:
    kernel = kernels.beside(bound.name("beside", "and"), bound.parts, list(bound.memory.values()))
    assert kernel.geometry is not None
    scalars: list[Scalar] = []
    blocks, threads = 0, kernel.geometry.threads
    for launch, part in zip(bound.launches, bound.parts, strict=True):
        scalars += [*launch.scalars, launch.extent, kernels.first_of(part.kernel, blocks, threads)]
        blocks += kernels.blocks_of(part.kernel, launch.extent, threads)
    return bound.launch(kernel, scalars, blocks)
