"""The memory of a plan for people, known before it runs. As a table, and as a picture of the arena."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.base import files
from weft.base.errors import OutOfMemoryError, RangeError, WeftError, problem
from weft.base.errors import size_text as size_text
from weft.plan.device import describe_available
from weft.plan.plan import Interval, Plan, Slot

LARGEST = 16  # tensors that a table names by default
LARGEST_NAMED = 5  # that an error names
MARGIN = 0.95  # of the memory that is available: some of it is fragmented


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor in memory: its name, kind ('input', 'output' or 'arena'), bytes, and the first and last step for which
    it is retained: all of them for inputs and outputs."""

    name: str
    kind: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Predicted memory of a plan, before it runs. Print it for a table; `plot` draws the arena.

    `inputs` are the bytes of arguments, parameters and state, `outputs` those of the results, `arena_bytes` those of
    the memory that temporaries share; `arena` says where in it each is, and from which of the `steps` to which. A GPU
    runs some small steps in a row as one: memory is planned before that, and `plan_steps` is how many the plan has.
    """

    inputs: int
    outputs: int
    arena_bytes: int
    arena: tuple[Interval, ...]
    slots: tuple[Slot, ...]
    stays: tuple[Stay, ...]
    steps: int
    plan_steps: int

    @property
    def peak(self) -> int:
        """Bytes alive at once while the plan runs: inputs, outputs and the arena."""
        return self.inputs + self.outputs + self.arena_bytes

    @property
    def temporaries(self) -> int:
        """Bytes that the temporaries would take if none shared memory."""
        return sum(interval.nbytes for interval in self.arena)

    def table(self, most: int = LARGEST) -> str:
        """The peak, what it consists of, and the `most` largest tensors with the steps in which they are used."""
        lines = [self.summary()]
        if self.arena:
            lines.append(self.sharing())
        if self.plan_steps < self.steps:
            lines.append(f"{self.steps} steps, of which some are one: the plan has {self.plan_steps}")
        stays = sorted(self.stays, key=lambda stay: -stay.nbytes)
        if stays:
            lines.append(f"{'size':>10}  kind    {'steps':<9}  tensor")
        for stay in stays[:most]:
            steps = f"{stay.first}-{stay.last}" if stay.kind == "arena" else "all"
            lines.append(f"{size_text(stay.nbytes):>10}  {stay.kind:<6}  {steps:<9}  {stay.name}")
        if len(stays) > most:
            rest = sum(stay.nbytes for stay in stays[most:])
            lines.append(f"{size_text(rest):>10}  in {len(stays) - most} smaller ones")
        return "\n".join(lines)

    def summary(self) -> str:
        """One line: the peak and its parts."""
        parts = {"inputs and state": self.inputs, "outputs": self.outputs, "arena": self.arena_bytes}
        return f"peak {size_text(self.peak)}: " + ", ".join(f"{k} {size_text(v)}" for k, v in parts.items())

    def sharing(self) -> str:
        """One line: how much memory the temporaries save by sharing it."""
        count = f"{len(self.arena)} temporar{'y' if len(self.arena) == 1 else 'ies'}"
        return f"{count} of {size_text(self.temporaries)} in an arena of {size_text(self.arena_bytes)}"

    def plot(self, path: str) -> None:
        """Draw the arena as an SVG picture: steps to the right, bytes upwards, one box for each temporary."""
        if not str(path).endswith(".svg"):
            raise problem(RangeError, "plot", f"the path {str(path)!r}", "a name that ends in .svg")
        files.write("plot", path, picture(self))

    def __str__(self) -> str:
        return self.table()


def memory_report(plan: Plan, names: dict[int, str]) -> MemoryReport:
    """The report of a plan; `names` are what people call its slots."""
    slots = tuple([dataclasses.replace(slot, label=names.get(k, slot.label)) for k, slot in enumerate(plan.slots)])
    steps = max([len(plan.steps), *[one.last + 1 for one in plan.arena]])
    last = max(steps - 1, 0)
    held = [slot for slot in slots if slot.kind in ("input", "output") and slot.nbytes]
    stays = [Stay(slot.label, slot.kind, slot.nbytes, 0, last) for slot in held]
    stays += [Stay(one.label, "arena", one.nbytes, one.first, one.last) for one in plan.arena]
    inputs, outputs = (sum(slot.nbytes for slot in slots if slot.kind == kind) for kind in ("input", "output"))
    sizes = (inputs, outputs, plan.arena_bytes)
    return MemoryReport(*sizes, plan.arena, slots, tuple(stays), steps, len(plan.steps))


def too_large(who: str, plan: Plan, names: dict[int, str], device: Any, shapes: Sequence[tuple[int, ...]]) -> WeftError:
    """The error for a plan that a device has no memory for; nothing of it was launched. `shapes` are those of the
    inputs, whose first extent, if they share one, counts as the batch."""
    report = memory_report(plan, names)
    asked, available = report.outputs + report.arena_bytes, device.backend.memory()[0]
    largest = sorted(report.stays, key=lambda stay: -stay.nbytes)[:LARGEST_NAMED]
    named = "; ".join(f"{size_text(stay.nbytes)} {stay.kind} {stay.name}" for stay in largest)
    given = (
        f"a program that needs {size_text(asked)} on {device} beside its inputs (results {size_text(report.outputs)}, "
        f"temporaries {size_text(report.arena_bytes)}). Its largest tensors: {named}"
    )
    most = device.limits.allocation_bytes
    if most and largest and asked <= available and most < largest[0].nbytes:  # which is one allocation
        asked, available = largest[0].nbytes, most
    expected = describe_available(device, asked)
    extents = Counter(shape[0] for shape in shapes if shape)
    batch = extents.most_common(1)[0][0] if extents else 0
    fits = int(MARGIN * batch * available) // max(asked, 1)
    fix = f"use a batch of at most about {fits} instead of {batch}" if 0 < fits < batch else "use smaller tensors"
    return problem(OutOfMemoryError, who, given, expected, fix)


# --- the picture -----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 960, 480
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 64, 52
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f")
NAMED = 10  # boxes that get their name written on them
CHARACTER = 6.3  # width of a letter at 11 pixels


def picture(report: MemoryReport) -> str:
    """The arena of a plan as SVG text."""
    from html import escape

    steps, top = max(report.steps, 1), max(report.arena_bytes, 1)
    across, up = (WIDTH - LEFT - RIGHT) / steps, (HEIGHT - TOP - BOTTOM) / top
    ground = HEIGHT - BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(report.summary())}</text>',
        f'<text x="{LEFT}" y="44" fill="#555">{escape(report.sharing())}; the line is what is alive</text>',
    ]
    for bytes_ in _ticks(report.arena_bytes, 1 << max(report.arena_bytes.bit_length() - 3, 0)):
        y = ground - bytes_ * up
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{size_text(bytes_)}</text>')
    names = []
    ranked = sorted(report.arena, key=lambda one: -one.nbytes)
    for rank, one in enumerate(ranked):
        x, wide = LEFT + one.first * across, (one.last - one.first + 1) * across
        y, high = ground - (one.offset + one.nbytes) * up, one.nbytes * up
        about = f"{one.label}: {size_text(one.nbytes)} at {one.offset}, steps {one.first}-{one.last}"
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{max(high, 0.5):.1f}" '
            f'fill="{COLOURS[rank % len(COLOURS)]}" fill-opacity="0.75" stroke="white" stroke-width="0.7">'
            f"<title>{escape(about)}</title></rect>"
        )
        if rank < NAMED:
            length = len(one.label) * CHARACTER
            inside = high >= 12 and wide >= length + 8
            start = x + 4 if inside else x + wide + 4
            if start + length < WIDTH - RIGHT:
                names.append(f'<text x="{start:.1f}" y="{y + high / 2 + 4:.1f}">{escape(one.label)}</text>')
    out += names
    if report.arena:
        points = " ".join(
            f"{LEFT + (step + side) * across:.1f},{ground - alive * up:.1f}"
            for step, alive in enumerate(_live_bytes(report.arena, steps))
            for side in (0, 1)
        )
        out.append(f'<polyline points="{points}" fill="none" stroke="#222" stroke-width="1.2"/>')
    for step in _ticks(steps, max(steps // 12, 1)):
        x = LEFT + step * across
        out.append(f'<text x="{x:.1f}" y="{ground + 16}" text-anchor="middle">{step}</text>')
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{ground}" y2="{ground}" stroke="#444"/>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">step</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _ticks(end: int, least: int) -> range:
    """Positions of ticks up to `end`: a multiple of one round number, at least `least` apart."""
    return range(0, end + 1, max(least, 1))


def _live_bytes(arena: Sequence[Interval], steps: int) -> list[int]:
    """Bytes of the temporaries that live in each step."""
    return [sum(one.nbytes for one in arena if one.first <= step <= one.last) for step in range(steps)]
