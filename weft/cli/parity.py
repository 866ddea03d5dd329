"""`weft parity [CONFIG|samples]`: the same network on the CPU and on other devices: outputs, gradients and training
steps, their largest difference, and both times. Without a GPU the CPU is compared with the NumPy interpreter. A network
that differs, or with --kernels each of them, is run kernel by kernel against that interpreter, which names the first
kernel that is wrong."""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import weft
from weft import config, nn
from weft.cli.arguments import amount, parse_positive
from weft.cli.devices import named_devices
from weft.cli.runs import is_graph, is_run, network
from weft.config.inputs import inputs_for
from weft.config.reading import read
from weft.core.tensor import Tensor
from weft.plan.device import Device

RATE = 0.01  # of plain gradient descent, which amplifies no rounding errors
MEASURED_SECONDS = 0.5  # at most, for the time of a step
DRAWS = 3  # of weights and batches, before a difference counts


@dataclass(frozen=True)
class Case:
    """A network with a batch: `target` is what `loss` compares the result with."""

    name: str
    model: nn.Module
    inputs: list[Tensor]
    target: Tensor
    loss: Callable[..., Tensor]


@dataclass(frozen=True)
class Trained:
    """What came out on one device, on the host."""

    outputs: list[np.ndarray]
    gradients: list[np.ndarray]
    losses: list[float]
    parameters: list[np.ndarray]
    seconds: float  # of one compiled training step; 0 where nothing is compiled


@dataclass(frozen=True)
class Comparison:
    """Largest differences, each relative to the largest value of the tensor; and seconds of a training step."""

    name: str
    outputs: float
    gradients: float
    steps: float
    cpu_seconds: float
    seconds: float

    @property
    def worst(self) -> float:
        """The largest of them; infinite where one is not a number."""
        values = (self.outputs, self.gradients, self.steps)
        return float("inf") if np.isnan(values).any() else max(values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "config", nargs="?", default="samples", help="a network or run, or `samples`: the eight that ship"
    )
    parser.add_argument(
        "--device", action="append", help="compare with this device (default: every other one but software)"
    )
    parser.add_argument("--batch", type=parse_positive, help="rows of the batch (default: what the configuration says)")
    parser.add_argument("--input", action="append", default=[], help="shape of an input without the batch, as 3,32,32")
    parser.add_argument("--steps", type=parse_positive, default=10, help="training steps (default: 10)")
    parser.add_argument("--kernels", action="store_true", help="compare every kernel with the NumPy interpreter, too")
    parser.add_argument("--tolerance", type=amount, default=1e-4, help="larger differences count (default: 1e-4)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print a table for each device; 1 if a network differs by more than the tolerance."""
    devices = _devices(options.device)
    names = config.samples() if options.config == "samples" else [options.config]
    if options.config != "samples":
        _case(options.config, options, is_small=True)  # what is wrong with a file is said before anything is printed
    if devices == [weft.get_device("reference")] and not options.device:
        console.print("No device but the CPU is here: it is compared with the NumPy interpreter,\non batches of 4.\n")
    bad: list[str] = []
    for device in devices:
        is_small = device.kind == "reference"
        table, reports = _table(device, options.steps), []
        with console.status("") as status:
            for name in names:
                status.update(Text(f"{name} on {device.name}"))
                found = _compare_repeatedly(name, options, is_small, device)
                table.add_row(*_row(found, options.tolerance))
                differs = not found.worst <= options.tolerance
                if differs:
                    bad.append(f"{found.name} on {device.name}")
                if differs or options.kernels:
                    status.update(Text(f"{name} on {device.name}, kernel by kernel"))
                    wrong, text = check_kernels(_case(name, options, is_small), device)
                    reports.append(f"{found.name}: {text}")
                    if wrong and not differs:
                        bad.append(f"a kernel of {found.name} on {device.name}")
        console.print(table)
        console.print("\n".join(["", *reports]), markup=False, highlight=False)
    if bad:
        console.print(f"Differs by more than {options.tolerance:g}: {', '.join(bad)}.", markup=False)
        return 1
    console.print(f"All agree within {options.tolerance:g}; errors are relative to the largest value of a tensor.")
    return 0


def _compare_repeatedly(name: str, options: argparse.Namespace, is_small: bool, device: Device) -> Comparison:
    """The comparison of a network. A difference above the tolerance must be there for other weights and batches, too:
    where one input of a ReLU is so close to zero that its sign is a matter of rounding, gradients differ by as much as
    that element counts, and both devices are right."""
    found = compare(_case(name, options, is_small), device, options.steps)
    for draw in range(1, DRAWS):
        if found.worst <= options.tolerance:
            break
        again = compare(_case(name, options, is_small, draw), device, options.steps)
        found = again if not found.worst <= again.worst else found
    return found


def _devices(names: list[str] | None) -> list[Device]:
    if names:
        return named_devices(names, refused=("null",))
    found = [one for one in weft.devices() if one.kind not in ("cpu", "reference") and not one.is_software]
    return found or [weft.get_device("reference")]


def _table(device: Device, steps: int) -> Table:
    title = f"CPU against {device.name} ({device.description})" if getattr(device, "description", "") else ""
    table = Table(title=title or f"CPU against {device.name}", title_justify="left", title_style="bold", box=None)
    table.add_column("network", no_wrap=True, overflow="ellipsis", max_width=18)
    times = ["CPU ms"] if device.kind == "reference" else ["CPU ms", f"{device.kind} ms", "speed-up"]
    for name in ("outputs", "gradients", f"{steps} steps", *times):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _row(found: Comparison, tolerance: float) -> list[str | Text]:
    def error(value: float) -> str:
        text = f"{value:.1e}"
        return text if value <= tolerance else f"[red]{text}[/red]"

    times = [f"{found.cpu_seconds * 1e3:.3f}"]
    if found.seconds:
        times += [f"{found.seconds * 1e3:.3f}", f"{found.cpu_seconds / found.seconds:.1f}x"]
    return [Text(found.name), error(found.outputs), error(found.gradients), error(found.steps), *times]


def _case(name: str, options: argparse.Namespace, is_small: bool, draw: int = 0) -> Case:
    """The network and a batch, always the same ones for a number `draw`."""
    weft.manual_seed(draw)
    sample = name in config.samples() and options.config == "samples"
    source = config.sample(name) if sample else Path(name)
    tree, _ = read(source)
    if is_run(tree) and not options.input and "data" in tree:
        return _run_case(name, options, draw)
    with weft.device("cpu"):
        model = network(source)
    batch = options.batch or (4 if is_small else getattr(model, "batch_size", 32))
    inputs = inputs_for(tree if sample else source, model, options.input, batch)
    with weft.no_grad():
        result = _first(model(*inputs))
    target = weft.rand(*result.shape, device="cpu")
    return Case(getattr(model, "id", None) or _short_name(name), model, inputs, target, nn.MSELoss())


def _run_case(name: str, options: argparse.Namespace, draw: int) -> Case:
    """A run brings its data and its loss; of its data the batch number `draw`, or the first where there are fewer."""
    found = config.load_run(Path(name))
    if options.batch and not is_graph(found):
        found = config.load_run(Path(name), [f"data.batch_size={options.batch}"])
    model = found.model()
    loader = found.train_loader("cpu")
    batch = next(itertools.islice(loader, draw, None), None) or next(iter(loader))
    *inputs, target = [weft.as_tensor(one) for one in batch]
    return Case(_short_name(name), model, inputs, target, found.loss())


def _short_name(name: str) -> str:
    return name.rpartition("/")[2]


def _first(result: Any) -> Any:
    """The first tensor of a result: that of an RNN is (outputs, states)."""
    return _first(result[0]) if isinstance(result, (tuple, list)) else result


def compare(case: Case, device: Device, steps: int) -> Comparison:
    """The same network, batch and random stream on the CPU and on another device."""
    with weft.no_grad():
        case.model(*case.inputs)  # sizes of lazy layers
    here = _train(copy.deepcopy(case.model), case, weft.get_device("cpu"), steps)
    there = _train(copy.deepcopy(case.model), case, device, steps)
    return Comparison(
        case.name,
        _largest(here.outputs, there.outputs),
        _largest(here.gradients, there.gradients),
        max(_largest([np.array(here.losses)], [np.array(there.losses)]), _largest(here.parameters, there.parameters)),
        here.seconds,
        there.seconds,
    )


def _largest(here: list[np.ndarray], there: list[np.ndarray]) -> float:
    """The largest difference of two lists of arrays, each relative to its largest value."""
    worst = 0.0
    for one, other in zip(here, there, strict=True):
        finite = np.isfinite(one) & np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return float("inf")
        if finite.any():
            scale = max(float(np.abs(one[finite]).max()), float(np.finfo(np.float32).tiny))
            worst = max(worst, float(np.abs(one[finite].astype(np.float64) - other[finite]).max()) / scale)
    return worst


def _train(model: nn.Module, case: Case, device: Device, steps: int) -> Trained:
    weft.manual_seed(1)
    model = model.to(device)
    inputs, target = [one.to(device) for one in case.inputs], case.target.to(device)
    result = _first(model(*inputs))
    case.loss(result, target).backward()
    parameters = list(model.parameters())
    gradients = [param.grad.numpy() for param in parameters if param.grad is not None]
    outputs = [result.detach().numpy()]
    optimizer = weft.optim.SGD(parameters, lr=RATE)

    step = _training_step(model, case, optimizer)
    compiled = device.kind != "reference"
    once = weft.compile(step) if compiled else step
    losses = [float(once(*inputs, target)) for _ in range(steps)]
    values = [param.detach().numpy().copy() for param in parameters]
    seconds = _measure(lambda: once(*inputs, target), device) if compiled else 0.0
    return Trained(outputs, gradients, losses, values, seconds)


def _training_step(model: nn.Module, case: Case, optimizer: Any) -> Callable[..., Tensor]:
    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = case.loss(_first(model(*batch[:-1])), batch[-1])
        loss.backward()
        optimizer.step()
        return loss

    return step


def check_kernels(case: Case, device: Device) -> tuple[bool, str]:
    """A training step kernel by kernel against the NumPy interpreter, on `device` (the CPU where that is the
    interpreter itself): whether a kernel is wrong, and what was found."""
    with weft.no_grad():
        case.model(*case.inputs)  # sizes of lazy layers
    target = weft.get_device("cpu") if device.kind == "reference" else device
    model = copy.deepcopy(case.model)
    step = _training_step(model, case, weft.optim.SGD(list(model.parameters()), lr=RATE))
    try:
        checked = weft.testing.verify(step, *case.inputs, case.target, device=target)
    except AssertionError as error:
        return True, str(error)
    worst = max(checked, key=lambda one: one.error)
    text = f"{len(checked)} kernels on {target.name} agree with the reference"
    return False, f"{text}; the largest error is {worst.error:.1%} of what is allowed, in {worst.name}."


def _measure(step: Callable[[], Any], device: Device) -> float:
    """Seconds of a step, of enough of them one after the other."""
    step()
    weft.synchronize(device)
    count, started = 0, time.perf_counter()
    while count < 100 and (elapsed := time.perf_counter() - started) < MEASURED_SECONDS:
        for _ in range(5):
            step()
        weft.synchronize(device)
        count += 5
    elapsed = time.perf_counter() - started
    return elapsed / count
