"""tests/layers/devices.json: by backend the layers that passed, on which device and when. For a backend that was never
executed (`executed` is false), the layers whose kernels were compiled."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

DEVICES = Path(__file__).parent / "devices.json"
PROPERTY = "layers"  # what a test reports: backend, device, executed, the layers that passed and those that failed


def entry(backend: str) -> dict[str, Any]:
    """What is known of a backend; nothing of most."""
    return _read().get(backend, {})


def layers(backend: str) -> list[str]:
    """The layers that were executed on a backend."""
    return entry(backend).get("layers", [])


def write(reports: list[dict[str, Any]]) -> list[str]:
    """Replace the entries of the backends that tests reported, in lines that say what was written. A layer that failed
    once is not listed."""
    found = _read()
    said = []
    for backend in sorted({report["backend"] for report in reports}):
        own = [report for report in reports if report["backend"] == backend]
        failed = {name for report in own for name in report["failed"]}
        passed = sorted({name for report in own for name in report["layers"]} - failed)
        found[backend] = {
            "device": own[0]["device"], "date": datetime.date.today().isoformat(),
            "executed": own[0]["executed"], "layers": passed,
        }  # fmt: skip
        said.append(f"{backend}: {len(passed)} layers, {len(failed)} failed")
    DEVICES.write_text(json.dumps(found, indent=1) + "\n")
    return said


def _read() -> dict[str, Any]:
    return json.loads(DEVICES.read_text()) if DEVICES.exists() else {}
