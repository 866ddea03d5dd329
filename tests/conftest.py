"""What all tests share: a test's folder is its mark (unit, backend, gpu)."""

from __future__ import annotations

import gc
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import weft

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


@pytest.fixture(autouse=True)
def seeded_generators() -> None:
    """What a test draws without a seed of its own depends neither on the tests before it nor on their order."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the generator that code of others draws from
    weft.manual_seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
