"""What all tests share: a test's folder is its mark (unit, backend, gpu, devices)."""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.quick_code import quick_code
from weft.compiler import pipeline

FOLDERS = ("unit", "backend", "gpu", "devices")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).parent.name
        if folder in FOLDERS:
            item.add_marker(folder)


def pytest_configure() -> None:
    """The compiler checks what every pass gives. Tests interrupt themselves and their children, which a run in the
    background would ignore."""
    pipeline.CHECK = True
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
        torch = sys.modules["torch"]
        torch.default_generator.manual_seed(0)  # torch.manual_seed keeps three stacks for devices that are not in use
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="module", name="quick_code")
def quick_code_of_file() -> Iterator[None]:
    """For files that try many layers and functions, each with kernels of its own. What LLVM makes of the IR for users
    is run by all other files, test_ops and the random graphs above all."""
    with quick_code():
        yield
