"""What a trainer knows beyond its metrics, for the report: layers, network, memory and kernel times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import weft
from weft import nn
from weft.base import tree
from weft.base.errors import WeftError
from weft.compiler.memory.report import MemoryReport
from weft.drawing.network import plot
from weft.jit.compiled import Compiled
from weft.nn.summarize import Summary
from weft.profiling.profile import Profile, measure
from weft.report.files import put

SECONDS = 0.3  # of measuring, after the step was traced once more


def describe(run_folder: Any, model: nn.Module, step: Compiled | None = None, inputs: Any = None) -> list[str]:
    """Write `layers.json`, `network.svg`, `memory.json` and `kernels.json` into a run folder. `step` is the compiled
    training step, after its first call; `inputs` are tensors like those that the model is called with. Returns what
    could not be had, and why: a run does not fail because of its report."""
    folder, missing = Path(run_folder), []
    rows = None
    if inputs is not None:
        try:
            rows = layer_rows(nn.summary(model, *inputs))
            put(folder / "network.svg", plot(model, input_shape=list(inputs)))
        except Exception as error:  # whatever the model's own code raises for inputs that it is not called with
            missing.append(f"shapes: {type(error).__name__}: {error}")
    try:
        put(folder / "layers.json", json.dumps(layer_rows(count_parameters(model)) if rows is None else rows, indent=1))
    except OSError as error:
        missing.append(f"layers: {type(error).__name__}: {error}")
    if step is not None and step.last is not None:
        try:
            put(folder / "memory.json", json.dumps(memory_dict(step.plan.memory()), indent=1))
            put(folder / "kernels.json", json.dumps(profile_again(step).to_dict(), indent=1))
        except (WeftError, RuntimeError, OSError) as error:
            missing.append(f"kernels: {type(error).__name__}: {error}")
    return missing


def profile_again(step: Compiled) -> Profile:
    """The profile of a compiled function with zeros like the arguments of its last call. Indices are not checked: what
    a position in the data points at may be the end of it."""
    assert step.last is not None
    structure, forms = step.last.spec
    values: list[Any] = []
    for form in forms:
        if form[0] == "tensor":
            _, shape, dtype, device, requires_grad = form
            values.append(weft.zeros(*shape, dtype=dtype, device=device).requires_grad_(requires_grad))
        else:
            values.append(form[1]() if form[0] == "number" else _is_static(form))
    args, kwargs = tree.unflatten(structure, values)
    return measure(step, args, kwargs, seconds=SECONDS, is_checked=False, has_rates=False)


def _is_static(form: tuple) -> Any:
    return float.fromhex(form[2]) if form[1] is float else form[2]


def count_parameters(model: nn.Module) -> Summary:
    """The table of layers without shapes."""
    from weft.nn.summarize import Row, _count

    modules = dict(model.named_modules())
    rows = [Row(path, "") for path in modules]
    _count(rows, list(modules.values()))
    return Summary(rows)


def layer_rows(summary: Summary) -> list[dict[str, Any]]:
    """A summary as plain data."""
    return [
        {
            "path": row.path,
            "kind": row.kind,
            "shapes": [list(shape) for shape in row.shapes],
            "calls": row.calls,
            "parameters": row.parameters,
            "trainable": row.trainable,
            "bytes": row.nbytes,
        }
        for row in summary.rows
    ]


def memory_dict(report: MemoryReport) -> dict[str, Any]:
    """The memory of a plan as plain data."""
    largest = sorted(report.stays, key=lambda stay: -stay.nbytes)[:24]
    return {
        "peak": report.peak,
        "inputs": report.inputs,
        "outputs": report.outputs,
        "arena_bytes": report.arena_bytes,
        "temporaries": report.temporaries,
        "steps": report.steps,
        "arena": [[one.label, one.offset, one.nbytes, one.first, one.last] for one in report.arena],
        "largest": [[stay.name, stay.kind, stay.nbytes, stay.first, stay.last] for stay in largest],
    }
