"""`weft tune`: search the fastest tile sizes and schedules of a device, and keep them for all later processes."""

from __future__ import annotations

import argparse
import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import weft
from weft.base.errors import ConfigError, problem
from weft.cli.arguments import amount
from weft.cli.devices import named_devices
from weft.plan import kept_tuning
from weft.plan.device import Device
from weft.plan.kept_tuning import KeptTuning, changes_of, class_tuning
from weft.profiling.tables import rate_text
from weft.profiling.tune import IMPOSSIBLE, INTERRUPTED, KEPT, NO_EFFECT, WRONG, Found, Search, Trial
from weft.profiling.tune_probes import DeviceProbe, probes_of, searched_fields

SECONDS = 120.0
STYLES = {KEPT: "green", WRONG: "red", NO_EFFECT: "dim", IMPOSSIBLE: "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--device", action="append", help="only this device; may be given more than once (default: every real GPU)"
    )
    parser.add_argument(
        "--seconds", type=amount, default=SECONDS, help=f"of searching on each device (default {SECONDS:g})"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--show", action="store_true", help="print what is kept, search nothing")
    instead.add_argument("--reset", action="store_true", help="remove what is kept: the defaults are used again")


def run(options: argparse.Namespace, console: Console) -> int:
    """Search, show or reset; 1 where a candidate changed results."""
    code = 0
    for device in _find_devices(options.device):
        if options.show:
            show(device, console)
        elif options.reset:
            is_gone = kept_tuning.remove(device)
            text = "removed what was kept: the next process uses the defaults" if is_gone else "nothing was kept"
            console.print(Text(f"{device.name}: {text}"))
        else:
            code = max(code, tune(device, options.seconds, console))
    return code


def _find_devices(names: list[str] | None) -> list[Device]:
    """The devices that are named, or all real GPUs."""
    if names:
        return named_devices(names)
    found = [device for device in weft.devices() if device.features.workgroups and not device.is_software]
    if not found:
        fix = "name a device, such as --device cpu"
        raise problem(ConfigError, "weft tune", "a machine without a real GPU", "a device to search on", fix)
    return found


def show(device: Device, console: Console) -> None:
    """What is kept for a device."""
    kept = kept_tuning.read(device)
    console.print(Text(f"{device.name}: {device.description}"))
    if kept is None:
        console.print(Text("Not tuned: the defaults of its class are used."))
        return
    console.print(_changes_table(kept.changes, device))
    for name, gain in kept.gains.items():
        console.print(Text(f"{name}: {gain:.2f} times as fast as with the defaults, on {kept.made}"))
    console.print(Text(kept_tuning.file_of(device) or "", overflow="fold"))


def tune(device: Device, seconds: float, console: Console) -> int:
    """Search on one device, print what was tried and keep what was found."""
    kept_tuning.check_writable(device)  # before minutes are spent
    console.print(Text(f"{device.name}: {device.description}"))
    usual, probes = class_tuning(device), probes_of(device)
    kept = kept_tuning.read(device)
    search = Search(
        probes, usual, searched_fields(device), seconds, None if kept is None else kept.applied_to(usual),
        report=lambda one: _print_trial(one, console),
    )  # fmt: skip
    found = search.run()
    if found.left_out:
        console.print(Text(f"{found.left_out} candidates were not tried: the {seconds:g} seconds were over."))
    console.print(_rates_table(probes, found))
    changes = changes_of(found.tuning, usual)
    if changes:
        console.print(_changes_table(changes, device))
        gains = {name: before / after for name, (before, after) in found.times.items() if before != after}
        path = kept_tuning.write(device, KeptTuning(changes, gains, datetime.date.today().isoformat()))
        console.print(Text(f"Kept, and used by every process that opens the device from now on: {path}"))
    elif not found.is_interrupted:
        kept_tuning.remove(device)
        console.print(Text("Nothing was found that is clearly faster than the defaults of its class: nothing is kept."))
    for trial in found.faults:
        console.print(
            Text(f"{trial.candidate} changes the results {trial.reason}. It is not used. Please report this.", "red")
        )
    if found.is_interrupted:
        raise KeyboardInterrupt  # of other devices nothing is searched
    return 1 if found.faults else 0


def _print_trial(trial: Trial, console: Console) -> None:
    gain = f"{trial.gain:5.2f} x" if trial.outcome not in (NO_EFFECT, IMPOSSIBLE, WRONG, INTERRUPTED) else " " * 7
    reason = trial.reason.partition("\n")[0]
    console.print(Text(f"{gain}  {trial.candidate}: {trial.outcome} {reason}".rstrip(), STYLES.get(trial.outcome, "")))


def _rates_table(probes: list[DeviceProbe], found: Found) -> Table:
    table = _new_table("probe", "default", "found", "gain")
    for probe in probes:
        before, after = found.times[probe.name]
        rates = [rate_text(probe.work / seconds, probe.unit) for seconds in (before, after)]
        table.add_row(Text(probe.name), *rates, f"{before / after:.2f} x")
    return table


def _changes_table(changes: Any, device: Device) -> Table:
    table, usual = _new_table("field", "default", "found"), class_tuning(device)
    for name, value in changes.items():
        if name == "product_speeds":
            for tile, speed in sorted(value, key=lambda pair: -pair[1]):
                table.add_row(Text(f"tile {tile}"), "", f"speed {speed / 1000:.2f}")
        else:
            table.add_row(Text(name), str(getattr(usual, name)), str(value))
    return table


def _new_table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table
