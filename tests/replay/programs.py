"""The programs that are replayed, by name: records of operations, programs and networks of the tests and of the
benchmarks, random graphs. Calling one on a device makes the compiler assemble all its plans."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import weft
from tests.backend.random_checks import writer
from tests.backend.random_devices import LARGE_SHAPES, Gpu, draw_gpu
from tests.backend.random_graphs import Graph, draw_graph, transplant
from tests.records import RECORDS, Record
from tests.records.cases import cases, compiled, results
from tests.replay.devices import DEVICES, Renderer
from tests.replay.drawing import drawing
from tests.unit.gpu_harness import gpu_features
from tests.unit.networks import NETWORKS, Training
from tests.unit.programs import PROGRAMS, Make
from weft.base.capabilities import Limits
from weft.base.dtypes import float64
from weft.core.tensor import Tensor
from weft.errors import GraphError
from weft.grad.engine import gradients
from weft.graph import build
from weft.plan.device import Device

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import cases as benchmarks
import gpu_cases
import gpu_weft
import in_weft
from gpt import TINY_GPT
from gpt_weft import GptRunner

sys.path.pop(0)

Program = Callable[[Device], object]

RANDOM = {"forward": 200, "gradient": 50, "written": 50}  # graphs of each kind, for the CPU and for a GPU of its own


def record(what: Record, device: Device) -> None:
    """All cases of a record; those of its first sample and dtype as compiled functions, too."""
    for case in cases(what):
        outputs = results(case)
        if not outputs:
            continue
        weft.eval(*outputs)
        if case.dtype == what.dtypes[0] and case.sample is what.samples[0]:
            try:
                compiled(case)()
            except GraphError as error:
                if "inside weft.compile" not in str(error):  # shapes that depend on data
                    raise


def program(name: str, small: bool, device: Device) -> None:
    weft.eval(*PROGRAMS[name](Make(device, small)))


def network(name: str, narrow: weft.base.dtypes.DType | None, device: Device) -> None:
    """Two steps: the second one finds the states of the optimizer."""
    training = Training(name, narrow=narrow)
    for _ in range(2):
        training.step()


def benchmark(name: str, device: Device) -> None:
    runner = in_weft.make(benchmarks.BY_NAME[name])
    runner.reset()
    runner.run(1)


def gpu_benchmark(name: str, device: Device) -> None:
    """Rows have their full length, but there are fewer of them; all else is small."""
    case = gpu_cases.CASES[name]
    runner = gpu_weft.make(replace(case, rows=64) if isinstance(case, gpu_cases.Rows) else gpu_cases.shrink(case))
    runner.reset()
    runner.run(1)


def gpt(device: Device) -> None:
    """Wide and long enough that attention and products take the forms of large models."""
    case = replace(TINY_GPT, layers=2, width=256, heads=4, vocabulary=1152, words=1000, length=160, batch=8)
    runner = GptRunner(case)
    runner.step(*runner.inputs)


def random_graph(kind: str, seed: int, own_gpu: bool, device: Device) -> None:
    """A graph, on the device or on a GPU that is drawn with it.

    What is computed with it depends on who holds its nodes: draws that were refused leave cycles of garbage that do, so
    these are collected here, and not whenever the collector of this process gets there.
    """
    gc.disable()
    try:
        _draw_and_render(kind, seed, own_gpu, device)
    finally:
        gc.enable()


def _draw_and_render(kind: str, seed: int, own_gpu: bool, device: Device) -> None:
    with drawing(seed) as stream:
        settings = {"most": 12, "floats": float64, "smooth": True} if kind == "gradient" else {}
        settings |= {"most": 10, "writes": True} if kind == "written" else {}
        settings |= {"large": LARGE_SHAPES} if own_gpu else {}
        graph = draw_graph(stream.draw, **settings)
        gpu: Gpu | None = draw_gpu(stream.draw) if own_gpu else None
        if gpu is not None:
            device = Renderer("gpu", gpu_features(*gpu.features), Limits(**dict(gpu.limits)), tuning=gpu.tuning).device
        gc.collect(0)
        with gpu.thresholds() if gpu is not None else nullcontext(), weft.device(device):
            DRAWN[kind](graph, device)


def forward(graph: Graph, device: Device) -> None:
    weft.eval(*[Tensor(node) for node in graph.on(device)])


def gradient(graph: Graph, device: Device) -> None:
    leaves = {node: weft.tensor(array, device=device).node for node, array in graph.leaves.items()}
    roots = transplant(graph.outputs, leaves)
    floats = [leaf for leaf in leaves.values() if leaf.dtype.kind == "f"]
    found = gradients(roots, [build.like(root, 1.0) for root in roots], floats)
    weft.eval(*[Tensor(node) for node in found if node is not None])


def written(graph: Graph, device: Device) -> None:
    """A compiled function that writes leaves in place."""
    cells = {leaf: weft.tensor(array, device=device) for leaf, array in graph.leaves.items()}
    writer(graph, cells)()


DRAWN = {"forward": forward, "gradient": gradient, "written": written}


def programs() -> Iterator[tuple[str, str, Program]]:
    """(name, device, program) of all there are."""
    for what in RECORDS:
        for device in ("cpu", "gpu"):
            yield f"record/{what.name}", device, partial(record, what)
    for device in DEVICES:
        for name in PROGRAMS:
            yield f"program/{name}", device, partial(program, name, False)
            if device == "gpu":  # forms of small extents
                yield f"program/{name}/small", device, partial(program, name, True)
        for name in NETWORKS:
            yield f"network/{name}", device, partial(network, name, None)
            yield f"network/{name}/bfloat16", device, partial(network, name, weft.bfloat16)
        for name in benchmarks.BY_NAME:
            yield f"benchmark/{name}", device, partial(benchmark, name)
        for name, case in gpu_cases.CASES.items():
            if name in benchmarks.BY_NAME or name in SAME or (name in LONG and device != "gpu+libraries"):
                continue
            if not isinstance(case, gpu_cases.Rows) or device != "gpu+libraries":  # libraries compute no rows
                yield f"benchmark/small/{name}", device, partial(gpu_benchmark, name)
        yield "benchmark/gpt", device, gpt
    for kind, count in RANDOM.items():
        for seed in range(count):
            for device in ("cpu", "gpu"):
                yield f"random/{kind}/{seed:03}", device, partial(random_graph, kind, seed, device == "gpu")


SAME = ("gpt",)  # is here in another size
LONG = ("resnet50",)  # takes seconds to compile
