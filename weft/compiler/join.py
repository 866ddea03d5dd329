"""join: launches in a row that have work for one block each become one launch (`kernels.joined`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.compiler.plan import Launch, Place, Scalar, Step
from weft.dtypes import DType
from weft.kernels.joined import Part, can_join, join, threads_of
from weft.kernels.language import BufferParam, Kernel

MOST = 24  # launches in one: what is compiled as one text should stay short
MOST_BUFFERS = 48


def joined(steps: Sequence[Step]) -> list[Step]:
    """The steps, small neighbours joined."""
    out: list[Step] = []
    group = _Group()
    for step in steps:
        if not _is_small(step):
            out += [*group.steps(), step]
            group = _Group()
            continue
        assert isinstance(step, Launch)
        if not group.takes(step):
            out += group.steps()
            group = _Group()
        group.add(step)
    return out + group.steps()


def _is_small(step: Step) -> bool:
    if not isinstance(step, Launch) or not isinstance(step.kernel, Kernel) or step.kernel.geometry is None:
        return False
    return step.extent > 0 and step.kernel.geometry.blocks(step.extent) == 1 and can_join(step.kernel)


@dataclass(slots=True)
class _Group:
    """Launches that will be one."""

    launches: list[Launch] = field(default_factory=list)
    memory: dict[tuple[Place, DType], BufferParam] = field(default_factory=dict)

    def takes(self, launch: Launch) -> bool:
        assert isinstance(launch.kernel, Kernel)
        fits = len(self.launches) < MOST and len(self.memory) + len(launch.places) <= MOST_BUFFERS
        kernels = [one.kernel for one in self.launches if isinstance(one.kernel, Kernel)]
        return fits and threads_of([*kernels, launch.kernel]) is not None

    def add(self, launch: Launch) -> None:
        assert isinstance(launch.kernel, Kernel)
        self.launches.append(launch)
        for place, param in zip(launch.places, launch.kernel.buffers, strict=True):
            number = len(self.memory)
            self.memory.setdefault((place, param.dtype), BufferParam(f"m{number}", param.dtype, True))

    def steps(self) -> list[Step]:
        if len(self.launches) < 2:
            return list(self.launches)
        numbers = {key: number for number, key in enumerate(self.memory)}
        parts: list[Part] = []
        scalars: list[Scalar] = []
        for launch in self.launches:
            assert isinstance(launch.kernel, Kernel)
            bound = zip(launch.places, launch.kernel.buffers, strict=True)
            parts.append(Part(launch.kernel, tuple([numbers[place, param.dtype] for place, param in bound])))
            scalars += [*launch.scalars, launch.extent]
        name = f"steps_{len(parts)}_{self.launches[0].name}_to_{self.launches[-1].name}"
        kernel = join(name, parts, list(self.memory.values()))
        places = tuple([place for place, _ in self.memory])
        nbytes, flops = (sum(getattr(launch, what) for launch in self.launches) for what in ("bytes", "flops"))
        return [Launch(kernel, places, tuple(scalars), 1, 1, nbytes, flops)]
