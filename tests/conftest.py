"""What all tests share: a test's folder is its mark (unit, backend, gpu)."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

FOLDERS = ("unit", "backend", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).parent.name
        if folder in FOLDERS:
            item.add_marker(folder)


def pytest_collection_finish() -> None:
    """What was imported stays: collections, and searches for a function by its code, need not look there."""
    gc.collect()
    gc.freeze()
