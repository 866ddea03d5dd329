"""Random graphs on the GPU, against the reference: see tests/backend/random_on_devices.py."""

from __future__ import annotations

import pytest

from tests.backend.random_on_devices import CHECKS, SHAPES, check
from weft.plan.device import Device


@pytest.mark.parametrize("thresholds", SHAPES)
@pytest.mark.parametrize("name", CHECKS)
def test_random_graphs(name: str, thresholds: str, gpu: Device):
    check(name, thresholds, gpu)
