"""How fast a device copies memory and multiplies matrices, kept with the compiled kernels.

These are what programs like ours reach at best, not what a data sheet promises: the time of an elementwise kernel over
memory that no cache holds, and of a large square product. A kernel's share of them says how much there is to gain.

The best that was ever measured counts. A machine may be busy while a rate is measured, so `weft.profile` measures once
more (`RateMeasurements`), in rounds that alternate with those of the kernels: load that hides the rate of the device
hides the kernels' as well. A large product in a profile that is faster than the benchmark raises the rate, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import weft
from weft.base import disk
from weft.base.dtypes import DType
from weft.base.errors import OutOfMemoryError
from weft.compiler.program import product_precision
from weft.jit.compiled import Compiled
from weft.plan.device import Device
from weft.plan.kept_tuning import lasting_limits
from weft.profiling.isolated_run import IsolatedRun

COPIED_BYTES = {"cpu": 64 << 20}  # of an operand; other devices: 256 MiB
SOFTWARE_BYTES = 4 << 20  # of an operand on a device that is emulated
SOFTWARE_ROWS = 128  # of the factors of a product there
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


def raise_rate(device: Device, dtype: DType | None, reached: float) -> None:
    """Note that a device has multiplied in `dtype`, or copied (None), at a rate of `reached`."""
    what = "copy" if dtype is None else _product(device, dtype)
    known = _known_rate(device, what)
    if known is None or reached > known:
        _keep(device, what, reached)


def _rate(device: Device, what: str, dtype: DType | None) -> float:
    known = _known_rate(device, what)
    return _keep(device, what, _measure(device, dtype)) if known is None else known


def _known_rate(device: Device, what: str) -> float | None:
    """The rate of this process, or that of earlier ones."""
    known = _known.get((device.name, what))
    if known is not None:
        return known
    key = _key(device, what)
    kept = disk.read(disk.RATE, key) if key else None
    if not kept or len(kept) != 8:
        return None
    found: float = struct.unpack("<d", kept)[0]
    _known[device.name, what] = found
    return found


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
    facts = [device.kind, device.description, identity, repr(lasting_limits(device)), weft.__version__, what]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class Benchmark:
    """What a rate is measured by: a copy (dtype None) or a product, of `work` bytes or operations."""

    def __init__(self, device: Device, dtype: DType | None):
        with device, weft.no_grad():
            if dtype is None:
                nbytes = SOFTWARE_BYTES if device.is_software else COPIED_BYTES.get(device.kind, 256 << 20)
                count = min(nbytes, device.limits.binding_bytes or nbytes) // 4
                self.work = 8 * count
                self._isolated = _prepare(lambda x: x + 1.0, weft.zeros(count))
            else:
                size = SOFTWARE_ROWS if device.is_software else MULTIPLIED.get(device.kind, 4096)
                self.work = 2 * size**3
                factors = [weft.full((size, size), value, dtype=dtype) for value in (0.5, 0.25)]
                self._isolated = _prepare(lambda a, b: a @ b, *factors)

    def seconds(self) -> float:
        """The time of one run."""
        return self._isolated.time_runs(1)


def _prepare(function: object, *args: weft.Tensor) -> IsolatedRun:
    weft.eval(*args)
    isolated = IsolatedRun(Compiled(function), args, {}, "rates")  # type: ignore[arg-type]
    isolated.run(2)
    return isolated


def _measure(device: Device, dtype: DType | None) -> float:
    benchmark = Benchmark(device, dtype)
    return benchmark.work / min(benchmark.seconds() for _ in range(ROUNDS))


class RateMeasurements:
    """The rates of a device, measured in rounds beside something else. A benchmark for which there is no memory is
    left out: what is known from before counts."""

    def __init__(self, device: Device, dtypes: Iterable[DType]):
        self.device = device
        self._benchmarks: dict[DType | None, Benchmark] = {}
        self._least: dict[DType | None, float] = {}
        for dtype in (None, *dtypes):
            with contextlib.suppress(OutOfMemoryError):
                self._benchmarks[dtype] = Benchmark(device, dtype)

    def run(self) -> None:
        """One round."""
        for dtype, benchmark in self._benchmarks.items():
            self._least[dtype] = min(self._least.get(dtype, math.inf), benchmark.seconds())

    def keep(self) -> None:
        """Raise the rates of the device to the best of all rounds."""
        for dtype, least in self._least.items():
            raise_rate(self.device, dtype, self._benchmarks[dtype].work / max(least, 1e-12))
