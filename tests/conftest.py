"""What all tests share: a test's folder is its mark (unit, backend, gpu)."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDERS = ("unit", "backend", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).parent.name
        if folder in FOLDERS:
            item.add_marker(folder)
