"""`weft bench`: a small fixed benchmark on each device: copying, products, training steps of three small networks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import weft
import weft.nn.functional as F
from weft import nn
from weft.cli.arguments import amount
from weft.cli.devices import NOT_COMPUTING, named_devices
from weft.plan.device import Device
from weft.profiling.rates import rates
from weft.profiling.tables import rate_text, seconds_text

SECONDS = 0.5  # of measuring each network
WARM = 3  # steps before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--device", action="append", help="only this device; may be given more than once")
    parser.add_argument(
        "--seconds", type=amount, default=SECONDS, help=f"of measuring each network (default {SECONDS})"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Print a row for each device."""
    if options.device:
        chosen = named_devices(options.device)
    else:
        chosen = [device for device in weft.devices() if device.kind not in NOT_COMPUTING and not device.is_software]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("device", no_wrap=True)
    for title in ("copy", "multiply", *NETWORKS):
        table.add_column(title, justify="right", no_wrap=True)
    for device in chosen:
        cells = []
        with console.status("") as status:  # a device that is emulated takes minutes
            status.update(Text(f"rates of {device.name}"))
            found = rates(device)
            for name, make in NETWORKS.items():
                status.update(Text(f"{name} on {device.name}"))
                cells.append(seconds_text(training_time(make, device, options.seconds)))
        table.add_row(Text(device.name), rate_text(found.copy, "B"), rate_text(found.multiply, "flop"), *cells)
    console.print(table)
    console.print("Networks: least time of a compiled training step (forward, backward, AdamW), float32.", style="dim")
    return 0


Case = tuple[nn.Module, tuple[weft.Tensor, ...]]


def _perceptron() -> Case:
    """A perceptron on 28 x 28 pictures."""
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, (weft.randn(128, 784), weft.randint(0, 10, (128,)))


def _convolutions() -> Case:
    """Three convolutions on 32 x 32 pictures."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))
    return model, (weft.randn(32, 3, 32, 32), weft.randint(0, 10, (32,)))


def _transformer() -> Case:
    """Two transformer layers on 64 positions."""
    encoder = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(encoder, 2), nn.Linear(128, 10))
    return model, (weft.randn(8, 64, 128), weft.randint(0, 10, (8, 64)))


NETWORKS: dict[str, Callable[[], Case]] = {
    "perceptron": _perceptron,
    "convolutions": _convolutions,
    "transformer": _transformer,
}


def training_time(make: Callable[[], Case], device: Device, seconds: float) -> float:
    """The least time of a compiled training step, the wait for the device included."""
    with device:
        weft.manual_seed(0)
        model, (inputs, target) = make()
        optimizer = weft.optim.AdamW(model.parameters(), lr=1e-3)

        @weft.compile
        def step(inputs: weft.Tensor, target: weft.Tensor) -> Any:
            prediction = model(inputs)
            loss = F.cross_entropy(prediction.reshape(-1, prediction.shape[-1]), target.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        weft.eval(inputs, target)
        for _ in range(WARM):
            step(inputs, target)
        return _least_time(lambda: step(inputs, target), device, seconds)


def _least_time(work: Callable[[], Any], device: Device, seconds: float) -> float:
    device.backend.synchronise()
    least, end = float("inf"), time.perf_counter() + seconds
    while least == float("inf") or time.perf_counter() < end:
        started = time.perf_counter()
        work()
        device.backend.synchronise()
        least = min(least, time.perf_counter() - started)
    return least
