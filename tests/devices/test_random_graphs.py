"""Random graphs on devices that the CPU emulates, against the reference: see tests/backend/random_on_devices.py."""

from __future__ import annotations

import pytest

from tests.backend.random_on_devices import CHECKS, SHAPES, check
from tests.devices.test_large_values import make_device
from tests.unit import webgpu_devices
from weft.plan.device import Device


@pytest.mark.parametrize("thresholds", SHAPES)
@pytest.mark.parametrize("name", CHECKS)
def test_random_graphs(name: str, thresholds: str, emulated: Device):
    check(name, thresholds, emulated)


@pytest.mark.parametrize("name", ["values", "cells written in place"])
def test_with_the_limits_that_webgpu_guarantees(name: str):
    device = webgpu_devices.limited()
    assert device.limits.storage_buffers == 8
    check(name, "low", device)


@pytest.mark.parametrize("name", ["values", "cells written in place"])
def test_with_bindings_of_4_kib(name: str):
    """Of which large values take several, and a grid of few workgroups in each dimension."""
    check(name, "low", make_device(24, 4096, workgroups=7))
