"""Weft beside tinygrad on one OpenCL or WebGPU device: the same training steps on the same numbers, in alternating
rounds, in one process.

    python benchmarks/beside_tinygrad.py --device opencl              every case
    python benchmarks/beside_tinygrad.py --device webgpu --small      sizes for devices that the CPU emulates
    python benchmarks/beside_tinygrad.py --device opencl --json FILE  keep the numbers; written after each case

Both start from the same NumPy arrays, and the whole step is one program in both: `weft.compile` and `TinyJit`. The
losses of the first steps are compared. A time is that of many steps from an idle device to an idle device, divided by
their number; the line of a case gives the median over the rounds and the best one. Where tinygrad, or this device of
it, is not here, Weft is measured alone. The command fails with 1 where Weft fails or where the losses differ.

tinygrad has to be importable (PYTHONPATH). For WebGPU the variable WEBGPU_PATH names dawn's libwebgpu_dawn.so. For
OpenCL it gets the loader that pyopencl brings, unless OPENCL_PATH names another. BEAM=2 makes it search for faster
kernels. It takes the first platform of OpenCL, and the adapter that dawn calls the fastest: the first lines of the
output say which device each framework has.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib.metadata
import importlib.util
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import weft
import weft.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from cases import BY_NAME, Training
from command_line import without
from networks import Inputs, Network, Parameters
from networks_common import dense, losses
from run import machine, readable

sys.path.pop(0)

TINYGRAD_DEVICES = {"opencl": "CL", "webgpu": "WEBGPU"}  # by Weft's name
TOLERANCE = 1e-3  # relative, between the losses of the two
FIRST_STEPS = 12  # whose losses are compared, or as many as a time is given for; everything is compiled after them
ROUNDS, SMALL_ROUNDS = 9, 3
ROUND_SECONDS, SMALL_ROUND_SECONDS = 0.2, 0.05  # that a round should take
MOST_STEPS = 500  # in a round, unless a time is given for more
HEADS = 4

# --- the cases -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A float32 product of two matrices [size, size]; `networks.Network` has the meaning of the fields."""

    size: int
    name: str = "product"
    unit: int = 1

    @property
    def title(self) -> str:
        return f"float32 product {self.size}^3"

    def arrays(self) -> tuple[Parameters, Inputs]:
        rng = np.random.default_rng(7)
        a, b = (rng.standard_normal((self.size, self.size), dtype=np.float32) for _ in range(2))
        return {}, (a, b)


Case = Training | Network | Product


def draw_encoder(
    rng: np.random.Generator, layers: int, width: int, batch: int, length: int
) -> tuple[Parameters, Inputs]:
    """Parameters of pre-norm encoder layers and of a classifier; x [batch, length, width] and classes [batch]."""
    parameters: Parameters = {}

    def add_linear(name: str, outside: int, inside: int) -> None:
        bound = 1.0 / np.sqrt(inside)
        parameters[name] = rng.uniform(-bound, bound, (outside, inside)).astype(np.float32)
        parameters[f"{name}.bias"] = np.zeros(outside, np.float32)

    for layer in range(layers):
        for name, outside, inside in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            add_linear(f"{layer}.{name}", outside * width, inside * width)
        for name in ("norm1", "norm2"):
            parameters[f"{layer}.{name}"] = np.ones(width, np.float32)
            parameters[f"{layer}.{name}.bias"] = np.zeros(width, np.float32)
    add_linear("head", 10, width)
    return parameters, (rng.standard_normal((batch, length, width), dtype=np.float32), rng.integers(0, 10, batch))


def encoder(F: Any) -> Callable[..., Any]:
    """The loss of encoder layers and a classifier of the mean over the places, written with the functions `F`."""

    def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
        batch, length, width = x.shape

        def norm(name: str, x: Any) -> Any:
            return F.layer_norm(x, (width,), p[name], p[f"{name}.bias"])

        def linear(name: str, x: Any) -> Any:
            return F.linear(x, p[name], p[f"{name}.bias"])

        for layer in range(sum(name.endswith(".qkv") for name in p)):
            qkv = linear(f"{layer}.qkv", norm(f"{layer}.norm1", x)).reshape(batch, length, 3, HEADS, width // HEADS)
            q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
            seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
            x = x + linear(f"{layer}.out", seen)
            hidden = F.gelu(linear(f"{layer}.up", norm(f"{layer}.norm2", x)), approximate="tanh")
            x = x + linear(f"{layer}.down", hidden)
        return F.cross_entropy(linear("head", x.mean(1)), y)

    return loss


def make_encoder(layers: int, width: int, batch: int, length: int) -> Network:
    title = f"transformer encoder, layers: {layers}, {width} wide, {batch} x {length} tokens, Adam: one step"
    build = partial(draw_encoder, layers=layers, width=width, batch=batch, length=length)
    return Network("encoder", title, "-", build)


def make_cases(small: bool) -> list[Case]:
    encoder_case = make_encoder(1, 32, 2, 16) if small else make_encoder(2, 256, 8, 128)
    shared: list[Any] = [BY_NAME[name] for name in ("xor", "mlp", "cnn")]
    return [*shared, encoder_case, Product(256 if small else 4096)]


def loss_of(case: Training | Network, F: Any) -> Callable[..., Any]:
    """The loss of a case as a function of parameters and inputs, written with the functions `F`."""
    if isinstance(case, Training):
        return dense(case, F)
    return encoder(F) if case.name == "encoder" else losses(F)[case.name]


# --- the frameworks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Framework:
    """`make` gives the step of a case as a function without arguments, `launches` the kernels started so far."""

    name: str
    version: str
    device: str
    make: Callable[[Case], Callable[[], Any]]
    wait: Callable[[], None]
    launches: Callable[[], int]


def make_weft_step(case: Case) -> Callable[[], Any]:
    arrays, given = case.arrays()
    inputs = [weft.tensor(array) for array in given]
    if isinstance(case, Product):
        return partial(weft.compile(lambda a, b: a @ b), *inputs)
    loss_function = loss_of(case, F)
    parameters = {name: weft.tensor(array, requires_grad=True) for name, array in arrays.items()}
    optimizer = weft.optim.Adam(list(parameters.values()), lr=case.learning_rate)

    @weft.compile
    def step(*inputs: weft.Tensor) -> weft.Tensor:
        loss = loss_function(parameters, *inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return partial(step, *inputs)


def open_weft(device: Any) -> Framework:
    return Framework(
        "weft", weft.__version__, f"{device}, {device.description}{', emulated by the CPU' * device.is_software}",
        make_weft_step, device.backend.synchronise, lambda: int(weft.counters()["launches"]),
    )  # fmt: skip


def functions_of_tinygrad() -> SimpleNamespace:
    """Those of `weft.nn.functional` that the cases call."""
    return SimpleNamespace(
        linear=lambda x, weight, bias: x.linear(weight.T, bias),
        conv2d=lambda x, weight, bias, padding: x.conv2d(weight, bias, padding=padding),
        max_pool2d=lambda x, size: x.max_pool2d((size, size)),
        layer_norm=lambda x, shape, weight, bias: x.layernorm() * weight + bias,
        scaled_dot_product_attention=lambda q, k, v: q.scaled_dot_product_attention(k, v),
        relu=lambda x: x.relu(),
        tanh=lambda x: x.tanh(),
        gelu=lambda x, approximate: x.gelu(approximate),
        cross_entropy=lambda x, y: x.sparse_categorical_crossentropy(y),
        mse_loss=lambda x, y: ((x - y) ** 2).mean(),
    )


def make_tinygrad_step(case: Case) -> Callable[[], Any]:
    from tinygrad import Context, Tensor, TinyJit
    from tinygrad.nn.optim import Adam

    def tensor(array: np.ndarray) -> Any:  # WebGPU has no 64-bit integers
        return Tensor(array.astype(np.int32) if array.dtype == np.int64 else array).realize()

    arrays, given = case.arrays()
    inputs = [tensor(array) for array in given]
    if isinstance(case, Product):
        return partial(TinyJit(lambda a, b: (a @ b).realize()), *inputs)
    loss_function = loss_of(case, functions_of_tinygrad())
    parameters = {name: tensor(array) for name, array in arrays.items()}
    optimizer = Adam(list(parameters.values()), lr=case.learning_rate)

    @TinyJit
    def step(*inputs: Any) -> Any:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = loss_function(parameters, *inputs).backward()
            return loss.realize(*optimizer.schedule_step())

    return partial(step, *inputs)


def find_opencl_loader() -> Path | None:
    """The loader that pyopencl brings, which Weft uses, too."""
    found = importlib.util.find_spec("pyopencl")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    paths = [path for place in (folder / ".libs", folder.parent / "pyopencl.libs") for path in place.glob("libOpenCL*")]
    return next(iter(sorted(paths)), None)


def describe_dawn(device: Any) -> str:
    """The adapter that tinygrad's WebGPU device is on."""
    from tinygrad.runtime.autogen import webgpu

    info = webgpu.WGPUAdapterInfo()
    webgpu.wgpuDeviceGetAdapterInfo(device.device_res, ctypes.byref(info))
    texts = [ctypes.string_at(text.data, text.length).decode() for text in (info.device, info.description)]
    return ", ".join(filter(None, texts)) + " (dawn)"


def open_tinygrad(kind: str) -> Framework:
    """tinygrad on its device of this kind; an exception where either is not here."""
    loader = find_opencl_loader()
    if kind == "opencl" and loader is not None:
        os.environ.setdefault("OPENCL_PATH", str(loader))
    os.environ["DEV"] = TINYGRAD_DEVICES[kind]
    from tinygrad import Device, GlobalCounters, Tensor

    device = Device[TINYGRAD_DEVICES[kind]]
    assert (Tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]
    name = describe_dawn(device) if kind == "webgpu" else f"{device.device_name}, {device.driver_version}"
    return Framework(
        "tinygrad", importlib.metadata.version("tinygrad"), name, make_tinygrad_step, device.synchronize,
        lambda: GlobalCounters.kernel_count,
    )  # fmt: skip


# --- measurement -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Of one case in one framework. `rounds` are seconds of the steps that the case gives a time for."""

    values: list[float] = field(default_factory=list)  # means of the absolute results of the first steps: their losses
    prepare_seconds: float = 0.0
    kernels: float = 0.0  # launched for a step
    steps: int = 0  # in a round
    rounds: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds)


def measure_steps(framework: Framework, step: Callable[[], Any], steps: int) -> float:
    """Seconds of one step, from an idle device to an idle device."""
    framework.wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    framework.wait()
    return (time.perf_counter() - start) / steps


@contextlib.contextmanager
def noting_errors(outcome: Outcome) -> Iterator[None]:
    """One framework's failure leaves the other's numbers, and the cases that follow."""
    try:
        yield
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"


def prepare(framework: Framework, case: Case, outcome: Outcome, round_seconds: float) -> Callable[[], Any]:
    """The step of a case, with everything compiled and the results of the first steps noted."""
    start = time.perf_counter()
    step = framework.make(case)
    for _ in range(max(FIRST_STEPS, case.unit)):
        outcome.values.append(float(np.abs(step().numpy()).mean(dtype=np.float64)))
    outcome.prepare_seconds = time.perf_counter() - start
    before = framework.launches()
    seconds = measure_steps(framework, step, 3)
    outcome.kernels = (framework.launches() - before) / 3
    outcome.steps = max(case.unit, min(int(round_seconds / seconds) + 1, MOST_STEPS))
    return step


def run_case(case: Case, frameworks: Sequence[Framework], small: bool) -> dict[str, Outcome]:
    """All rounds of one case, by framework: each in turn, and in the other order in the next round."""
    rounds, round_seconds = (SMALL_ROUNDS, SMALL_ROUND_SECONDS) if small else (ROUNDS, ROUND_SECONDS)
    outcomes = {framework.name: Outcome() for framework in frameworks}
    steps: dict[str, Callable[[], Any]] = {}
    for framework in frameworks:
        with noting_errors(outcomes[framework.name]):
            steps[framework.name] = prepare(framework, case, outcomes[framework.name], round_seconds)
    for number in range(rounds):
        for framework in frameworks[:: -1 if number % 2 else 1]:
            outcome = outcomes[framework.name]
            if not outcome.error:
                with noting_errors(outcome):
                    seconds = measure_steps(framework, steps[framework.name], outcome.steps)
                    outcome.rounds.append(seconds * case.unit)
    steps.clear()
    gc.collect()
    return outcomes


def difference(outcomes: dict[str, Outcome]) -> float:
    """The largest relative distance between two frameworks' numbers; infinite where one is not finite."""
    lists = [outcome.values for outcome in outcomes.values() if not outcome.error]
    if len(lists) < 2:
        return 0.0
    first, second = (np.array(values) for values in lists)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("inf")
    return float((np.abs(first - second) / np.maximum(np.maximum(first, second), 1e-30)).max())


def ratio(outcomes: dict[str, Outcome]) -> float | None:
    """tinygrad's time over Weft's."""
    if len(outcomes) < 2 or any(outcome.error for outcome in outcomes.values()):
        return None
    return outcomes["tinygrad"].seconds / outcomes["weft"].seconds


def line(case: Case, outcomes: dict[str, Outcome]) -> str:
    """What was found, for a reader."""
    parts = []
    for name, outcome in outcomes.items():
        if outcome.error:
            parts.append(f"{name} failed ({outcome.error.splitlines()[0][:200]})")
            continue
        times = f"{readable(outcome.seconds)} (best {readable(min(outcome.rounds))}"
        parts.append(f"{name} {times}, {outcome.kernels:.0f} kernels a step, ready in {outcome.prepare_seconds:.1f} s)")
    times_as_fast = ratio(outcomes)
    if times_as_fast is not None:
        parts += [f"tinygrad / weft {times_as_fast:.2f}", f"results differ by {difference(outcomes):.1e}"]
    return f"{case.title}: {', '.join(parts)}"


def record(case: Case, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """What was found, for the JSON file."""
    results = {
        name: {"error": outcome.error} if outcome.error else vars(outcome) | {"seconds": outcome.seconds}
        for name, outcome in outcomes.items()
    }
    found = {"difference": difference(outcomes), "tinygrad / weft": ratio(outcomes)}
    return {"title": case.title, "results": results, **found}


def is_good(outcomes: dict[str, Outcome]) -> bool:
    return not outcomes["weft"].error and difference(outcomes) <= TOLERANCE


# --- the command -----------------------------------------------------------------------------------------------------


def parse(words: Sequence[str]) -> argparse.Namespace:
    names = [case.name for case in make_cases(False)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(TINYGRAD_DEVICES), default="opencl")
    parser.add_argument("--small", action="store_true", help="sizes for devices that the CPU emulates")
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=480.0, help="after these, no case is begun (default 480)")
    parser.add_argument("--json", metavar="FILE", help="write every number, the machine and the devices")
    return parser.parse_args(words)


def find_frameworks(device: Any) -> list[Framework]:
    """Weft, and tinygrad where it is here. Weft comes first: it makes PoCL know the processor."""
    frameworks = [open_weft(device)]
    try:
        frameworks.append(open_tinygrad(device.kind))
    except Exception as error:
        print(f"tinygrad is not measured: {type(error).__name__}: {error}", flush=True)
    for framework in frameworks:
        print(f"{framework.name} {framework.version}: {framework.device}", flush=True)
    return frameworks


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(words)
    start, bad = time.perf_counter(), []
    device = weft.get_device(options.device)
    with weft.device(device):
        weft.ones(3).sum().item()
        frameworks = find_frameworks(device)
        report: dict[str, Any] = {
            "date": str(date.today()),
            "command": shlex.join(["python", "benchmarks/beside_tinygrad.py", *without(words, "--json")]),
            "machine": machine(),
            "frameworks": {one.name: {"version": one.version, "device": one.device} for one in frameworks},
            "beam": os.environ.get("BEAM", "0"),
            "cases": {},
        }
        for case in [case for case in make_cases(options.small) if case.name in options.cases]:
            if time.perf_counter() - start > options.seconds:
                print(f"{case.title}: left out, the time is over", flush=True)
                continue
            outcomes = run_case(case, frameworks, options.small)
            print(line(case, outcomes), flush=True)
            bad += [] if is_good(outcomes) else [case.name]
            report["cases"][case.name] = record(case, outcomes)
            if options.json:
                Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if bad:
        print(f"Weft failed, or losses differ by more than {TOLERANCE}: {', '.join(bad)}", file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
