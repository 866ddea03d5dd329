"""rates: how fast a device copies memory and multiplies matrices, measured once and kept with the compiled kernels.

These are what programs like ours reach at best, not what a data sheet promises: the time of an elementwise kernel over
memory that no cache holds, and of a large square product. A kernel's share of them says how much there is to gain. A
product in a profile that is faster than the benchmark was (the machine may have been busy) raises the rate.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass

import weft
from weft import disk
from weft.backends.base import Device
from weft.compiled import Compiled
from weft.compiler.program import product_precision
from weft.dtypes import DType
from weft.profiling.rehearsal import Rehearsal

COPIED_BYTES = {"cpu": 64 << 20}  # of an operand; other devices: 256 MiB
MULTIPLIED = {"cpu": 768}  # rows and columns of a factor; other devices: 4096
ROUNDS = 20

_known: dict[tuple[str, str], float] = {}


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches: `copy` in bytes read and written a second, `multiply` in operations a second."""

    copy: float
    multiply: float


def rates(device: Device, dtype: DType = weft.float32) -> Rates:
    """The rates of a device; products are of `dtype`."""
    return Rates(_rate(device, "copy", None), _rate(device, _product(device, dtype), dtype))


def _product(device: Device, dtype: DType) -> str:
    """The name of the rate of products: of a dtype, and of the precision that is set for float32."""
    return f"multiply {dtype.name} {product_precision(device)}".rstrip()


def raise_multiply(device: Device, dtype: DType, reached: float) -> None:
    """Note that a product was computed at a rate of `reached` operations a second."""
    what = _product(device, dtype)
    if reached > _rate(device, what, dtype):
        _keep(device, what, reached)


def _rate(device: Device, what: str, dtype: DType | None) -> float:
    known = _known.get((device.name, what))
    if known is not None:
        return known
    key = _key(device, what)
    kept = disk.read(disk.RATE, key) if key else None
    if kept and len(kept) == 8:
        found = _known[device.name, what] = struct.unpack("<d", kept)[0]
        return found
    return _keep(device, what, _measured(device, dtype))


def _keep(device: Device, what: str, rate: float) -> float:
    key = _key(device, what)
    if key:
        disk.write(disk.RATE, key, struct.pack("<d", rate))
    _known[device.name, what] = rate
    return rate


def _key(device: Device, what: str) -> str | None:
    """What the rate depends on, as the name of a file; None where it is not to be kept."""
    identity = device.backend.identity()
    if identity is None:
        return None
    facts = [device.kind, device.description, identity, sorted(device.limits.items()), weft.__version__, what]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _measured(device: Device, dtype: DType | None) -> float:
    with device, weft.no_grad():
        if dtype is None:
            count = COPIED_BYTES.get(device.kind, 256 << 20) // 4
            return 8 * count / _seconds(lambda x: x + 1.0, weft.zeros(count))
        size = MULTIPLIED.get(device.kind, 4096)
        a, b = (weft.full((size, size), value, dtype=dtype) for value in (0.5, 0.25))
        return 2 * size**3 / _seconds(lambda a, b: a @ b, a, b)


def _seconds(function: object, *args: weft.Tensor) -> float:
    """The least time of a run."""
    weft.eval(*args)
    rehearsal = Rehearsal(Compiled(function), args, {}, "rates")  # type: ignore[arg-type]
    rehearsal.run(2)
    return min(rehearsal.time_runs(1) for _ in range(ROUNDS))
