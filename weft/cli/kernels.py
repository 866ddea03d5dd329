"""`weft kernels CONFIG`: the kernels of a training step with their sources, and the map of its memory. Nothing runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.base import files
from weft.base.errors import size_text
from weft.cli import steps
from weft.cli.arguments import check_output_file, check_output_folder
from weft.compiler.inspect.report import KernelReport, PlanReport
from weft.jit.compiled import Compiled
from weft.profiling.tables import count_text, fit_table

ENDINGS = {"cpu": "ll", "cuda": "cu", "hip": "hip", "opencl": "cl", "webgpu": "wgsl"}  # of files of sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    steps.add_arguments(parser)
    parser.add_argument("--show", metavar="NAME", help="print the source of the kernels whose name has this in it")
    parser.add_argument("--sources", metavar="FOLDER", help="write the source of each kernel into this folder")
    parser.add_argument("--map", metavar="FILE", help="draw the memory that temporaries share (.svg)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the table and the memory, or one source; 1 where no kernel has the name."""
    check_output_folder("--sources", options.sources)
    check_output_file("--map", options.map, ".svg")
    case = steps.load(options)
    function = case.step if isinstance(case.step, Compiled) else Compiled(case.step)
    memory = function.memory(*case.args)
    variant = function.variants[-1]
    report = PlanReport(variant.entry.plan, variant.device, variant.names())
    kernels = report.kernels()
    if options.show:
        return _show(options.show, kernels, console)
    console.print(_table(kernels, str(variant.device), console.width))
    console.print()
    console.print(str(memory), markup=False, soft_wrap=True)
    if options.sources is not None:
        folder = Path(options.sources)
        folder.mkdir(parents=True, exist_ok=True)
        ending = ENDINGS.get(variant.device.kind, "txt")
        for number, kernel in enumerate(kernels):
            if kernel.source:
                files.write("--sources", folder / f"{number:03}-{kernel.name[:80]}.{ending}", kernel.source)
        console.print(f"sources: {folder}", markup=False, soft_wrap=True)
    if options.map is not None:
        memory.plot(options.map)
        console.print(f"memory map: {options.map}", markup=False, soft_wrap=True)
    return 0


def _show(name: str, kernels: list[KernelReport], console: Console) -> int:
    found = {kernel.source: kernel.name for kernel in kernels if name in kernel.name and kernel.source}
    for source, full in found.items():
        console.print(Text(f"; {full}", style="bold"))
        console.print(source, markup=False, soft_wrap=True)
    if not found:
        console.print(f"weft kernels: no kernel with a source has {name!r} in its name.", markup=False)
    return 0 if found else 1


def _table(kernels: list[KernelReport], device: str, width: int) -> Table:
    rows = []
    for number, kernel in enumerate(kernels):
        moved, flops = size_text(kernel.bytes * kernel.times), count_text(kernel.flops * kernel.times)
        rows.append(
            [kernel.name, str(number), str(kernel.times), moved, flops, "kernel" if kernel.source else "library"]
        )
    titles = ("kernel", "step", "runs", "moved", "flop", "by")
    table = fit_table(titles, rows, width, least=("by", "runs", "step", "flop"), left=("kernel", "by"))
    table.title, table.title_justify = f"{len(kernels)} kernels on {device}", "left"
    return table
