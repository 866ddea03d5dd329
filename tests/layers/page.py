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
from tests.layers.instances import make_layer
from tests.layers.record import LayerRecord
from tests.layers.records import records
from weft.nn.registry import LEARNS, Layer

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "weft" / "nn" / "catalogue.json"
PAGE = ROOT / "docs" / "layers.md"
BACKENDS = ("cpu", "cuda")  # that exist; every record runs on each of them
DEVICES = Path(__file__).parent / "devices.json"  # what `make test-gpu` found: by backend, the layers that passed

HEAD = """# Layers

All layers of `weft.nn`: {count} of them; {specified} entries of the specification (L001 to L106, X01 to X09) are among
them. This page is generated: `make layers` writes it, and a test fails when it is stale. `weft layers` prints it in a
terminal, `weft layers NAME` one layer with its shapes and an example.

Every layer has a record in tests/layers/records and passes the layer harness (tests/layers/checks.py) on the CPU by
`make test`; `make test-gpu` runs it on an NVIDIA GPU: values against the oracle named here, gradients against central
differences in float64, SGD and Adam compiled and not, 1000 steps without a transfer or more memory, state_dict, copies
and dtypes, bfloat16, wrong inputs, and the edge cases of its kind.

Columns per backend: forward, backward, update, resident weights (a training step moves nothing between host and
device). A dash: the layer has none (no gradient, no parameters that learn by one). A question mark: not yet shown on
that backend (tests/layers/devices.json has what was shown, when and where). HIP has been
compiled, never executed; the columns of OpenCL and WebGPU are not here yet.
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
    """Forward, backward, update, resident: 'yes', '-' or the reason against it."""
    if backend != "cpu" and record.name not in _shown(backend):
        return ["not shown yet"] * 4
    device = weft.get_device("cpu") if backend == "cpu" else _Kind(backend)
    reasons = [instance.prevents(device, training) for training in (False, True)]
    if reasons[0]:
        return [reasons[0]] * 4
    backward = "yes" if record.differentiable and not reasons[1] else (reasons[1] or "-")
    update = backward if learned else "-"
    return ["yes", backward, update, "yes"]


def _shown(backend: str) -> list[str]:
    """The layers that passed on a backend which not every machine has."""
    found = json.loads(DEVICES.read_text()) if DEVICES.exists() else {}
    return found.get(backend, {}).get("layers", [])


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
    lines = [HEAD.format(count=len(found), specified=len(specified))]
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


def _names(entry: dict[str, Any]) -> str:
    names = [f"`{name}`" for name in entry["parameters"]]
    text = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    buffers = ", ".join(f"`{name}`" for name in entry["buffers"][:6])
    return text + (f"{'; ' if text else ''}buffers {buffers}" if buffers else "")


def _short(cells: list[str]) -> str:
    marks = {"yes": "✓", "-": "-", "not shown yet": "?"}
    return " ".join(marks.get(cell, "✗") for cell in cells)


def files() -> dict[Path, str]:
    """What `make layers` writes."""
    found = catalogue()
    return {CATALOGUE: json.dumps(found, indent=1, ensure_ascii=False) + "\n", PAGE: page(found)}
