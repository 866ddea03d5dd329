"""The catalogue of layers: `weft/nn/catalogue.json`, which `weft layers` prints, and docs/layers.md.

Written by `make layers` from the registry, the docstrings and the records; a test fails when one of them is stale.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import weft
import weft.nn as nn
from tests.layers import executed_layers
from tests.layers.instances import make_layer
from tests.layers.record import LayerRecord
from tests.layers.records import records
from weft.nn.registry import LEARNS, Layer

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "weft" / "nn" / "catalogue.json"
PAGE = ROOT / "docs" / "layers.md"
BACKENDS = ("cpu", "cuda", "opencl", "webgpu", "hip")
COMPILED = "compiled, never executed"
NOT_SHOWN = "not shown yet"

HEAD = """# Layers

All layers of `weft.nn`: {count} of them; {specified} entries of the specification (L001 to L106, X01 to X09) are among
them. This page is generated: `make layers` writes it, and a test fails when it is stale. `weft layers` prints it in a
terminal, `weft layers NAME` one layer with its shapes and an example.

Every layer has a record in tests/layers/records and passes the layer harness (tests/layers/checks.py) on the CPU by
`make test`; `make test-gpu` runs it on an NVIDIA GPU: values against the oracle named here, gradients against central
differences in float64, SGD and Adam compiled and not, 1000 steps without a transfer or more memory, state_dict, copies
and dtypes, bfloat16, wrong inputs, and the edge cases of its kind.

`make test-devices` runs every record on OpenCL (PoCL) and WebGPU (lavapipe), which emulate a GPU on the CPU
(tests/devices/test_layers.py): results and gradients in float32, for each layer bfloat16, float16 and a compiled step,
beside the CPU's. It also compiles the kernels of all records for AMD's gfx90a (tests/devices/test_hip_kernels.py).

Columns per backend: forward, backward, update, resident weights (a training step moves nothing between host and
device). ✓: shown by these tests. A dash: the layer has none (no gradient, no parameters that learn by one). c: its
kernels were compiled, never executed. A question mark: not yet shown on that backend.
{devices}
"""


def equation(cls: type) -> str:
    """The first paragraph of a docstring, in one line."""
    text = (inspect.getdoc(cls) or "").split("\n\n")[0]
    return " ".join(text.split())


def describe(layer: Layer, record: LayerRecord) -> dict[str, Any]:
    """What the catalogue says of a layer."""
    instance = make_layer(record)
    state = [name for name, _ in instance.named_buffers()]
    learned = any(param.requires_grad for param in instance.parameters())
    return {
        "number": layer.number,
        "family": layer.family,
        "aliases": list(layer.aliases),
        "equation": equation(layer.cls),
        "parameters": [name for name, _ in instance.named_parameters()],
        "buffers": state,
        "learns": LEARNS[layer.learns],
        "oracle": layer.oracle,
        "backends": {name: _cells(instance, name, record, learned) for name in BACKENDS},
    }


def _cells(instance: Any, backend: str, record: LayerRecord, learned: bool) -> list[str]:
    """Forward, backward, update, resident: 'yes', '-', how far it was shown, or the reason against it."""
    if backend != "cpu" and record.name not in executed_layers.layers(backend):
        return [NOT_SHOWN] * 4
    executed = backend == "cpu" or executed_layers.entry(backend)["executed"]
    done, resident = ("yes", "yes") if executed else (COMPILED, NOT_SHOWN)
    device = weft.get_device("cpu") if backend == "cpu" else _Kind(backend)
    reasons = [instance.prevents(device, training) for training in (False, True)]
    if reasons[0]:
        return [reasons[0]] * 4
    backward = done if record.differentiable and not reasons[1] else (reasons[1] or "-")
    update = backward if learned else "-"
    return [done, backward, update, resident]


class _Kind:
    """A device that this machine may not have."""

    def __init__(self, kind: str):
        self.kind = kind


def catalogue() -> dict[str, dict[str, Any]]:
    """All layers by name."""
    by_name: dict[str, LayerRecord] = {}
    for record in records():
        by_name.setdefault(record.name, record)
    return {name: describe(layer, by_name[name]) for name, layer in nn.layers().items()}


def page(found: dict[str, dict[str, Any]]) -> str:
    """docs/layers.md."""
    specified = {number for entry in found.values() for number in entry["number"].split()}
    lines = [HEAD.format(count=len(found), specified=len(specified), devices=_devices())]
    family = ""
    for name, entry in found.items():
        if entry["family"] != family:
            family = entry["family"]
            columns = " | ".join(BACKENDS)
            lines.append(f"\n## {family.replace('_', ' ')}\n")
            lines.append(
                f"| layer | also called | what it computes | parameters | learns by | checked against | {columns} |"
            )
            lines.append("|---" * (6 + len(BACKENDS)) + "|")
        number = f" ({entry['number']})" if entry["number"] else ""
        cells = [
            f"`{name}`{number}", ", ".join(entry["aliases"]), entry["equation"], _names(entry), entry["learns"],
            entry["oracle"], *[_short(entry["backends"][backend]) for backend in BACKENDS],
        ]  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _devices() -> str:
    """Where and when layers were shown, a line for each backend."""
    lines = []
    for backend in BACKENDS[1:]:
        if found := executed_layers.entry(backend):
            lines.append(f"\n- {backend}: {len(found['layers'])} layers on {found['device']}, {found['date']}")
    return "".join(lines)


def _names(entry: dict[str, Any]) -> str:
    names = [f"`{name}`" for name in entry["parameters"]]
    text = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    buffers = ", ".join(f"`{name}`" for name in entry["buffers"][:6])
    return text + (f"{'; ' if text else ''}buffers {buffers}" if buffers else "")


def _short(cells: list[str]) -> str:
    marks = {"yes": "✓", "-": "-", COMPILED: "c", NOT_SHOWN: "?"}
    return " ".join(marks.get(cell, "✗") for cell in cells)


def files() -> dict[Path, str]:
    """What `make layers` writes."""
    found = catalogue()
    return {CATALOGUE: json.dumps(found, indent=1, ensure_ascii=False) + "\n", PAGE: page(found)}
