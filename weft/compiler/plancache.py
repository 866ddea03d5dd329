"""plancache: whole plans kept on disk by the form of their program. A second process lowers and renders nothing.

The key covers all that a plan follows from: the program's form, the device, the machine's code generator, and the text
of Weft's own compiler, so that a changed compiler never reads what another one wrote. Lines of the user's program,
which error messages name, are not part of the form: a plan remembers which nodes they belong to.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from weft import disk
from weft.backends.base import Device
from weft.compiler.plan import Code, Plan
from weft.compiler.program import Program
from weft.compiler.records import Damaged, Unstorable, canonical, pack, unpack
from weft.dtypes import DType
from weft.kernels.language import Kernel

ACTIVE = True  # tests that change the compiler under way switch it off
ROOMS = ("graph", "compiler", "kernels", "render", "backends")  # all that plans follow from, beside dtypes

Outputs = list[tuple[int, int]]  # (slot, byte offset) of each output


@functools.cache
def _compiler_text() -> str | None:
    """A digest of the rooms that make plans, or None where their text is not to be had (bytecode only)."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    try:
        for path in [package / "dtypes.py", *sorted(path for room in ROOMS for path in (package / room).rglob("*.py"))]:
            digest.update(path.as_posix().removeprefix(package.as_posix()).encode() + b"\0" + path.read_bytes() + b"\0")
    except OSError:
        return None
    return digest.hexdigest()


def digest_of(program: Program, device: Device) -> str | None:
    """The name under which the plan of `program` is kept, or None where it cannot be."""
    if not ACTIVE or disk.folder() is None:
        return None
    identity, compiler = device.backend.identity(), _compiler_text()
    if identity is None or compiler is None:
        return None
    about = (device.kind, sorted(device.features), sorted(device.limits.items()), identity, compiler)
    try:
        return hashlib.sha256(canonical((about, program.key[1:]))).hexdigest()
    except Unstorable:  # an attribute that has no meaning in another process, such as a Python function
        return None


def load(digest: str | None, program: Program) -> tuple[Plan, Outputs] | None:
    """The plan kept under `digest`."""
    data = disk.read(disk.PLAN, digest) if digest else None
    if data is None:
        return None
    try:
        plan, outputs, sites = unpack(data)
        named = tuple([f"{program.nodes[number].site if number >= 0 else ''}{rest}" for number, rest in sites])
        return replace(plan, sites=named), list(outputs)
    except (Damaged, ValueError, TypeError, IndexError):
        return None


def store(digest: str | None, program: Program, plan: Plan, outputs: Outputs) -> None:
    """Keep a rendered plan."""
    if digest is None:
        return
    with contextlib.suppress(Unstorable):
        sites = tuple([_site(text, program) for text in plan.sites])
        disk.write(disk.PLAN, digest, pack((replace(plan, sites=()), tuple(outputs), sites)))


def _site(text: str, program: Program) -> tuple[int, str]:
    """(number of the node, rest of the text) of a message that begins with the line of a node; else (-1, text)."""
    for number, node in enumerate(program.nodes):
        if node.site and text.startswith(node.site):
            return number, text[len(node.site) :]
    return -1, text


def rendered(plan: Plan, backend: Any) -> Plan:
    """The plan with every kernel as the backend compiles it."""
    done: dict[int, Code] = {}

    def visit(value: Any) -> Any:
        if isinstance(value, Kernel):
            if id(value) not in done:
                done[id(value)] = backend.render(value)
            return done[id(value)]
        if isinstance(value, tuple):
            return tuple([visit(item) for item in value])
        if is_dataclass(value) and not isinstance(value, (type, Code, DType)):
            return type(value)(*[visit(getattr(value, field.name)) for field in fields(value)])
        return value

    return replace(plan, steps=visit(plan.steps))
