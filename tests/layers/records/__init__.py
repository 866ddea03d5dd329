"""The records of all layers, one file per family: each has a list RECORDS."""

from __future__ import annotations

import importlib
import pkgutil

from tests.layers.record import LayerRecord

FAMILIES = sorted(module.name for module in pkgutil.iter_modules(__path__))


def records() -> list[LayerRecord]:
    """All records, family by family."""
    return [
        record for family in FAMILIES for record in importlib.import_module(f"tests.layers.records.{family}").RECORDS
    ]
