"""`weft.profile(step, *args)`, where the time of a step goes, by kernel and by layer.

The path of one call: the function is traced again with `Origins`, which record the module that each node is made for
(`compiler.inspect.origins`); its plan is the one that compiled calls replay. `IsolatedRun` runs the plan on copies of
what it writes, whole and step by step, alternately; of each the least time counts. The plan's own records give bytes
and operations, `rates` what the device reaches: it is measured in the same rounds, so that load which slows one of them
slows the others. A replay runs no code of this module.

Limits: a step that runs alone starts with idle worker threads, or between two events, so the sum of the kernels'
times may be up to `SUM_LIMIT` times the whole and `SECONDS_PER_STEP` more for each step; a profile says how far it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from weft.base import files
from weft.base.errors import GraphError, RangeError, problem
from weft.core.boundary import entry, entry_point

if TYPE_CHECKING:
    from weft.base.dtypes import DType
    from weft.compiler.inspect.origins import Origins
    from weft.compiler.memory.report import MemoryReport
    from weft.plan.device import Device
    from weft.plan.plan import Gemm, Launch, LibraryCall
    from weft.profiling.isolated_run import IsolatedRun
    from weft.profiling.rates import RateMeasurements

ROUNDS = 20  # of a whole run and a run step by step, at most
MIN_ROUNDS = 5
SHORT_RUN_SECONDS = 1e-3  # below which several whole runs are timed together
MAX_RUNS_TOGETHER = 50
SECONDS = 1.0  # after which no further round begins
SUM_LIMIT = 1.5
SECONDS_PER_STEP = 1e-5
OUTSIDE = "outside of modules"
FROM_CACHE = "moves its bytes faster than memory is copied: a cache holds them"
ABOVE_RATE = "computes faster than large products of its dtype"
PHASES = ("forward", "backward", "update")


@dataclass(frozen=True, slots=True)
class LayerShare:
    """A layer's part of a kernel: its path, the phase ('forward', 'backward' or 'update'), the share of the time."""

    layer: str
    phase: str
    share: float


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel or library call of a plan: seconds of all its `times` runs in one step, bytes moved and operations
    done in them, and both as shares of what the device reaches, at most 1. Where one would be more, `limit` says why
    that can be."""

    name: str
    seconds: float
    times: int
    bytes: int
    flops: int
    copy_share: float
    multiply_share: float
    layers: tuple[LayerShare, ...]
    limit: str = ""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The seconds of one layer, without the layers inside it, and how many kernels have a part of it."""

    layer: str
    kind: str
    forward: float
    backward: float
    update: float
    kernels: int

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.update


@dataclass(frozen=True, slots=True)
class Profile:
    """What `weft.profile` returns; `print` shows tables. `seconds` is the whole step, measured by itself."""

    name: str
    device: str
    description: str
    seconds: float
    rounds: int
    copy_rate: float
    multiply_rate: float
    kernels: tuple[KernelTime, ...]
    layers: tuple[LayerTime, ...]
    memory: MemoryReport

    @property
    def kernel_seconds(self) -> float:
        """The sum over all kernels, each timed alone."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        return sum(kernel.bytes for kernel in self.kernels)

    @property
    def flops(self) -> int:
        return sum(kernel.flops for kernel in self.kernels)

    @property
    def is_consistent(self) -> bool:
        """Whether the kernels' times add up to the whole, within the limits of the measurement."""
        spare = SECONDS_PER_STEP * sum(kernel.times for kernel in self.kernels)
        return self.seconds / SUM_LIMIT - spare <= self.kernel_seconds <= self.seconds * SUM_LIMIT + spare

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, seconds and bytes as numbers."""
        found = {
            field: getattr(self, field)
            for field in ("name", "device", "description", "seconds", "kernel_seconds", "rounds", "bytes", "flops")
        }
        found |= {"copy_rate": self.copy_rate, "multiply_rate": self.multiply_rate, "peak_bytes": self.memory.peak}
        found["kernels"] = [asdict(kernel) for kernel in self.kernels]
        found["layers"] = [asdict(layer) | {"seconds": layer.seconds} for layer in self.layers]
        return found

    def chrome_trace(self) -> dict[str, Any]:
        """The step as a trace in Chrome's format, for chrome://tracing or ui.perfetto.dev."""
        from weft.profiling.chrome_trace import trace_of

        return trace_of(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Chrome trace, as JSON."""
        if not str(path).endswith(".json"):
            raise problem(RangeError, "save", f"the path {str(path)!r}", "a name that ends in .json")
        files.write("save", path, json.dumps(self.chrome_trace()))

    def table(self, most: int = 20) -> str:
        """Both tables as text, the `most` slowest kernels in the first."""
        from weft.profiling.tables import text

        return text(self, most)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from weft.profiling.tables import parts

        yield from parts(self, 20, options.max_width)

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__


@entry_point
@entry
def profile(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Profile:
    """Where the time of `step(*args)`, compiled, goes: by kernel and by layer.

    Nothing that the step writes changes, as it runs on copies; random numbers are those of its next call. A kernel that
    computes for several layers counts for each of them by its share of the elements that the kernel computes.

    >>> layer = weft.nn.Linear(64, 32)
    >>> found = weft.profile(lambda x: layer(x).relu().sum(), weft.ones(16, 64))
    >>> [one.layer for one in found.layers]
    ['Linear', 'outside of modules']
    >>> found.seconds > 0 and found.kernels[0].flops >= 2 * 16 * 32 * 64
    True
    """
    return measure(step, args, kwargs)


@entry_point
def measure(
    step: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    seconds: float = SECONDS,
    is_checked: bool = True,
    has_rates: bool = True,
) -> Profile:
    """The same, with a limit on the time for measuring; `is_checked` raises for indices out of range. Without
    `has_rates` the rates of the device are those that are known."""
    from weft.compiler.inspect.origins import Origins
    from weft.compiler.inspect.report import PlanReport
    from weft.compiler.pipeline import assemble
    from weft.jit.compiled import Compiled
    from weft.plan.plan import iterate_steps
    from weft.profiling.isolated_run import IsolatedRun
    from weft.profiling.rates import RateMeasurements

    if not callable(step):
        raise problem(GraphError, "weft.profile", f"a {type(step).__name__}", "a function of tensors")
    function = step if isinstance(step, Compiled) else Compiled(step)
    origins = Origins()
    isolated = IsolatedRun(function, args, kwargs, "weft.profile", origins)
    plan, _ = assemble(isolated.program, isolated.device, origins=origins)
    names = [one.name for one, _ in iterate_steps(plan.steps)]
    assert names == [one.name for one, _ in iterate_steps(isolated.plan.steps)], "a program has two plans"
    rates_measured = RateMeasurements(isolated.device, _multiplied_dtypes(isolated)) if has_rates else None
    whole, steps, rounds = _rounds(isolated, seconds, is_checked, rates_measured)
    layer_names = LayerNames(list(origins.roots.values()))
    kernels = _kernels(isolated, steps, _shares_by_step(isolated, origins), layer_names)
    copy_rate, multiply_rate = _device_rates(isolated.device, _main_dtype(isolated))
    memory = PlanReport(isolated.plan, isolated.device, isolated.names).memory()
    return Profile(
        function.name, isolated.device.name, isolated.device.description, whole, rounds, copy_rate, multiply_rate,
        kernels, _layers(kernels, layer_names), memory,
    )  # fmt: skip


def _rounds(
    isolated: IsolatedRun, seconds: float, is_checked: bool, rates_measured: RateMeasurements | None
) -> tuple[float, list[float], int]:
    """The least time of a run, that of each step, and the number of rounds; rates are measured in the same ones."""
    import time

    isolated.run(2, is_checked)
    count = min(max(int(SHORT_RUN_SECONDS / max(isolated.time_runs(1), 1e-9)), 1), MAX_RUNS_TOGETHER)
    started = time.perf_counter()
    whole: list[float] = []
    spent: list[list[float]] = []
    measuring: list[list[float]] = []
    while len(whole) < MIN_ROUNDS or (len(whole) < ROUNDS and time.perf_counter() - started < seconds):
        whole.append(isolated.time_runs(count))
        for times, found in zip((spent, measuring), isolated.time_steps(), strict=True):
            times.append(found)
        if rates_measured is not None:
            rates_measured.run()
    if rates_measured is not None:
        rates_measured.keep()
    return min(whole), _least_differences(spent, measuring), len(whole)


def _least_differences(spent: list[list[float]], measuring: list[list[float]]) -> list[float]:
    """The least time of each step over all rounds, without the least that measuring it took. (The least of differences
    would be 0 for a short step as soon as something disturbs the measuring in one round.) 0 is too short for the
    clock."""
    least, cost = [[min(times) for times in zip(*rounds, strict=True)] for rounds in (spent, measuring)]
    return [max(time - part, 0.0) for time, part in zip(least, cost, strict=True)]


def _device_rates(device: Device, dtype: DType) -> tuple[float, float]:
    from weft.profiling.rates import rates

    found = rates(device, dtype)
    return found.copy, found.multiply


# --- kernels ---------------------------------------------------------------------------------------------------------


def _dtype_of(step: Launch | Gemm | LibraryCall) -> DType | None:
    """The dtype that a step multiplies in, where it says so."""
    from weft.base.dtypes import DType
    from weft.plan.plan import Gemm, LibraryCall

    if isinstance(step, Gemm):
        return step.dtype
    if isinstance(step, LibraryCall):
        return next((one for one in step.config if isinstance(one, DType)), None)
    return None


def _main_dtype(isolated: IsolatedRun) -> DType:
    """The dtype in which most operations are done."""
    from weft.base.dtypes import float32
    from weft.plan.plan import iterate_steps

    found = [
        (step.flops * times, dtype) for step, times in iterate_steps(isolated.plan.steps) if (dtype := _dtype_of(step))
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else float32


def _multiplied_dtypes(isolated: IsolatedRun) -> set[DType]:
    """The dtypes whose rates are needed: those of products, and float32 for other operations."""
    from weft.base.dtypes import float32
    from weft.plan.plan import iterate_steps

    return {_dtype_of(step) or float32 for step, _ in iterate_steps(isolated.plan.steps) if step.flops}


def _shares_by_step(isolated: IsolatedRun, origins: Origins) -> list[dict[Any, float]]:
    """The shares of each step of `iterate_steps`: those inside a loop have the loop's."""
    from weft.plan.plan import iterate_steps

    return [
        shares for step, shares in zip(isolated.plan.steps, origins.steps, strict=True) for _ in iterate_steps((step,))
    ]


def _kernels(
    isolated: IsolatedRun, seconds: Sequence[float], shares: Sequence[dict[Any, float]], names: LayerNames
) -> tuple[KernelTime, ...]:
    from weft.base.dtypes import float32
    from weft.plan.plan import iterate_steps
    from weft.profiling.rates import raise_rate

    found = []
    for (step, times), time in zip(iterate_steps(isolated.plan.steps), seconds, strict=True):
        dtype = _dtype_of(step)
        if dtype is not None and step.flops * times > 1 << 24 and time:  # less says little about a rate
            raise_rate(isolated.device, dtype, step.flops * times / time)
    for (step, times), time, parts in zip(iterate_steps(isolated.plan.steps), seconds, shares, strict=True):
        copy_rate, multiply_rate = _device_rates(isolated.device, _dtype_of(step) or float32)
        nbytes, flops = step.bytes * times, step.flops * times
        of_copy, of_multiply = (nbytes / time / copy_rate, flops / time / multiply_rate) if time else (0.0, 0.0)
        limit = FROM_CACHE if of_copy > 1 else ABOVE_RATE if of_multiply > 1 else ""
        of_copy, of_multiply = min(of_copy, 1.0), min(of_multiply, 1.0)
        layers = tuple([LayerShare(names.of(origin.module), origin.phase, part) for origin, part in parts.items()])
        found.append(KernelTime(step.name, time, times, nbytes, flops, of_copy, of_multiply, layers, limit))
    return tuple(found)


# --- layers ----------------------------------------------------------------------------------------------------------


class LayerNames:
    """What modules are called: by their path in the outermost module that was called, which has the name of its class,
    as optimizers have. Where several outermost modules have modules inside, paths begin with these names."""

    def __init__(self, roots: Sequence[Any]):
        from weft.nn.graph_model import display_paths

        taken: dict[str, int] = {}
        several = sum(any(True for _ in root.children()) for root in roots) > 1
        self._paths: dict[int, str] = {}
        self.kinds: dict[str, str] = {}
        for root in roots:
            own = self._make_unique(type(root).__name__, taken)
            shown = display_paths(root)
            for path, module in root.named_modules():
                path = shown.get(path, path)
                name = own if not path else f"{own}.{path}" if several else path
                self._paths.setdefault(id(module), name)
                self.kinds.setdefault(name, type(module).__name__)
        self._taken = taken

    @staticmethod
    def _make_unique(name: str, taken: dict[str, int]) -> str:
        taken[name] = taken.get(name, 0) + 1
        return name if taken[name] == 1 else f"{name} {taken[name]}"

    def of(self, module: Any) -> str:
        """The name of a module or an optimizer; `OUTSIDE` for None."""
        if module is None:
            return OUTSIDE
        if id(module) not in self._paths:
            self._paths[id(module)] = self._make_unique(type(module).__name__, self._taken)
            self.kinds[self._paths[id(module)]] = type(module).__name__
        return self._paths[id(module)]


def _layers(kernels: Sequence[KernelTime], names: LayerNames) -> tuple[LayerTime, ...]:
    """The time of each layer that has any kernel, in the order of the modules."""
    order = {name: number for number, name in enumerate(names.kinds)}
    times: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for kernel in kernels:
        for part in kernel.layers:
            phases = times.setdefault(part.layer, dict.fromkeys(PHASES, 0.0))
            phases[part.phase] += kernel.seconds * part.share
        for layer in {part.layer for part in kernel.layers}:
            counts[layer] = counts.get(layer, 0) + 1
    ordered = sorted(times, key=lambda name: order.get(name, len(order)))
    return tuple([LayerTime(name, names.kinds.get(name, ""), **times[name], kernels=counts[name]) for name in ordered])
