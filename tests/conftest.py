"""What all tests share: a test's folder is its mark (unit, backend, gpu)."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest

FOLDERS = ("unit", "backend", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).parent.name
        if folder in FOLDERS:
            item.add_marker(folder)


def pytest_configure() -> None:
    """Tests interrupt themselves and their children, which a run in the background would ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays: collections, and searches for a function by its code, need not look there."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file: what its tests left behind, such as caches, need not be looked at by later collections."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
