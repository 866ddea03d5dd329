"""The recorded digests: one line for each program on each device, sorted by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.replay.programs import Program, programs
from tests.replay.rendering import Line, Rendered, read_line, render, without_old_garbage

RECORDED = Path(__file__).with_name("recorded.txt")
HEAD = "# program, device, plans, kernels, digest of all plans and kernels. Written by: make replay ARGS=--record\n"
HOW = (
    "Compare the kernels: make replay ARGS='--show NAME', before and after the change.\n"
    "If the change is meant: make replay ARGS=--record, and commit the file with it."
)

Key = tuple[str, str]  # name, device
Lines = Mapping[Key, Line]


@cache
def _programs() -> dict[Key, Program]:
    return {(name, device): program for name, device, program in programs()}


def list_programs() -> list[Key]:
    """All there are, those of one kind together."""
    return list(_programs())


def programs_by_turns() -> list[Key]:
    """All programs; every second record and random graph for one device, the others for the other one."""
    names: dict[str, int] = {}
    chosen = []
    for name, device in list_programs():
        number = names.setdefault(name, len(names))
        if not name.startswith(("record/", "random/")) or device == ("cpu", "gpu")[number % 2]:
            chosen.append((name, device))
    return chosen


def render_programs(chosen: Iterable[Key]) -> Iterator[tuple[Line, Rendered]]:
    """The line of each of these programs and all its plans and kernels, as they are rendered now."""
    with without_old_garbage():
        for name, device in chosen:
            rendered = render(_programs()[name, device], device)
            yield rendered.line(name, device), rendered


def render_texts(chosen: Iterable[Key]) -> Iterator[tuple[Line, str]]:
    """The same, with plans and kernels as text."""
    for line, rendered in render_programs(chosen):
        yield line, rendered.text


def render_chunk(chosen: Sequence[Key], folder: Path | None = None) -> list[Line]:
    """The lines of these programs; the texts go to files in a folder, if one is given."""
    lines = []
    for line, text in render_texts(chosen):
        lines.append(line)
        if folder is not None:
            path = folder / line.device / (line.name.replace("/", ".") + ".txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return lines


def read() -> dict[Key, Line]:
    if not RECORDED.exists():
        return {}
    lines = [read_line(text) for text in RECORDED.read_text().splitlines() if not text.startswith("#")]
    return {line.key: line for line in lines}


def write(lines: Lines) -> None:
    RECORDED.write_text(HEAD + "".join([f"{lines[key]}\n" for key in sorted(lines)]))


def differences(recorded: Lines, found: Lines) -> list[str]:
    """What differs, in words; nothing if all is as recorded."""
    out = []
    for key in sorted({*recorded, *found}):
        old, new = recorded.get(key), found.get(key)
        if old == new:
            continue
        counts = ""
        if old and new and (old.plans, old.kernels) != (new.plans, new.kernels):
            counts = f": {old.plans} plans, {old.kernels} kernels before; {new.plans} plans, {new.kernels} kernels now"
        what = "is new" if old is None else "is gone" if new is None else "changed"
        out.append(f"{key[0]} on {key[1]} {what}{counts}")
    return [*out, f"{len(out)} of {len(found)} programs differ from the record.", HOW] if out else []
