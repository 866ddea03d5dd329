"""Whole plans kept on disk by the form of their program. A second process lowers and renders nothing.

The key covers all that a plan follows from (`PlanKey`): the program's form, the device, the machine's code generator,
and the text of Weft itself, so that a changed compiler never reads what another one wrote. Lines of the user's program,
which error messages name, are not part of the form: a plan remembers which nodes they belong to.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import time
from dataclasses import astuple, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from weft.base import disk
from weft.base.capabilities import Features, Limits
from weft.base.dtypes import DType
from weft.base.errors import DeviceError
from weft.compiler.inspect.diagnose import join_site, split_site
from weft.compiler.memory.report import too_large
from weft.compiler.program import Program
from weft.kernels.ir.language import Kernel
from weft.plan.device import Device
from weft.plan.plan import Code, Interval, Plan, Slot
from weft.plan.serialize import Damaged, Unstorable, canonical_text, pack, unpack

ACTIVE = True  # tests that change the compiler under way switch it off
Outputs = list[tuple[int, int]]  # (slot, byte offset) of each output


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that decides what a plan is; two programs with equal keys have one plan."""

    kind: str  # of the device
    features: Features  # of the device
    limits: Limits
    tuning: tuple[int | tuple, ...]  # of the device: the fields of `Tuning` in order
    dtypes: tuple[DType, ...]  # that the device has
    libraries: tuple[tuple[str, str], ...]  # (name, version) of each that may be called
    backend: str  # `Backend.identity`: processor, code generator, compiler options, dialect
    weft: str  # digest of the text of Weft, which holds every rule and tuning constant
    python: str
    numpy: str  # constants are folded with NumPy and ml_dtypes
    ml_dtypes: str
    form: tuple  # the graph: operations, sources, attributes, shapes, dtypes
    outputs: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    overlaps: tuple[tuple[int, int, int], ...]
    precision: str  # of float32 products

    def digest(self) -> str:
        """The name of the plan's file. Raises `Unstorable` for what means nothing in another process."""
        return hashlib.sha256(
            canonical_text([[field.name, getattr(self, field.name)] for field in fields(self)])
        ).hexdigest()


_STARTED = time.time()


@functools.cache
def _weft_text(package: Path = Path(__file__).parents[1]) -> str | None:
    """A digest of the package's text, or None where it is not to be had (bytecode only), or was changed since this
    process loaded it: a plan that older code made would be kept under the name of the new."""
    digest = hashlib.sha256()
    try:
        for path in sorted(package.rglob("*.py")):
            if path.stat().st_mtime > _STARTED:
                return None
            digest.update(path.as_posix().removeprefix(package.as_posix()).encode() + b"\0" + path.read_bytes() + b"\0")
    except OSError:
        return None
    return digest.hexdigest()


def digest_of(program: Program, device: Device) -> str | None:
    """The name under which the plan of `program` is kept, or None where it cannot be."""
    if not ACTIVE or disk.folder() is None:
        return None
    identity, text = device.backend.identity(), _weft_text()
    if identity is None or text is None:
        return None
    try:
        return key_of(program, device, identity, text).digest()
    except Unstorable:  # an attribute that has no meaning in another process, such as a Python function
        return None


def key_of(program: Program, device: Device, identity: str, text: str) -> PlanKey:
    """What the plan of `program` on `device` depends on, with the backend's identity and the digest of Weft's text."""
    _, form, outputs, writes, overlaps, precision = program.key
    return PlanKey(
        kind=device.kind,
        features=device.features,
        limits=device.limits,
        tuning=astuple(device.tuning),
        dtypes=tuple(sorted(device.dtypes, key=lambda dtype: dtype.name)),
        libraries=tuple([(name, library.version) for name, library in device.libraries.items()]),
        backend=identity,
        weft=text,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        numpy=np.__version__,
        ml_dtypes=ml_dtypes.__version__,
        form=form,
        outputs=outputs,
        writes=writes,
        overlaps=overlaps,
        precision=precision,
    )


def load(digest: str | None, program: Program) -> tuple[Plan, Outputs] | None:
    """The plan kept under `digest`."""
    data = disk.read(disk.PLAN, digest) if digest else None
    if data is None:
        return None
    try:
        plan, outputs, sites = unpack(data)
        named = tuple([join_site(number, rest, program) for number, rest in sites])
        return replace(plan, sites=named), list(outputs)
    except (Damaged, ValueError, TypeError, IndexError):
        return None


def store(digest: str | None, program: Program, plan: Plan, outputs: Outputs) -> None:
    """Keep a rendered plan."""
    if digest is None:
        return
    with contextlib.suppress(Unstorable):
        sites = tuple([split_site(text, program) for text in plan.sites])
        disk.write(disk.PLAN, digest, pack((replace(plan, sites=()), tuple(outputs), sites)))


def render_kernels(plan: Plan, backend: Any) -> Plan:
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

    try:
        return replace(plan, steps=visit(plan.steps))
    except DeviceError:
        cause = _explain_size(plan, backend)
        if cause is None:
            raise
        raise cause from None


def _explain_size(plan: Plan, backend: Any) -> Exception | None:
    """The error for a plan with a value that is larger than an allocation of the device may be, else None. A kernel
    that cannot bind such a value is a consequence."""
    (device,) = backend.devices()
    most = device.limits.allocation_bytes
    values: list[Slot | Interval] = [*[slot for slot in plan.slots if slot.kind in ("input", "output")], *plan.arena]
    largest = max(values, key=lambda value: value.nbytes, default=None)
    if not most or largest is None or largest.nbytes <= most:
        return None
    return too_large(largest.label or device.name, plan, {}, device, ())
