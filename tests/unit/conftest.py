"""Fixtures of the GPU runtime's tests: a GPU whose driver works in the host's memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft
from tests.unit.fake_driver import FakeGpu


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    backend = FakeGpu()
    with weft.device(backend.device):
        yield backend


@pytest.fixture
def separate_kernels(monkeypatch) -> None:
    """Small kernels are not merged, so that a small plan is a graph of several."""
    monkeypatch.setattr("weft.compiler.lowering.batch_launches.join_launches", lambda steps, *_: list(steps))
