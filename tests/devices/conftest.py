"""What tests on emulated GPUs share: each kind of device, where it is installed."""

from __future__ import annotations

import functools

import pytest

import weft
from weft.backends.registry import EMULATED
from weft.errors import DeviceError
from weft.plan.device import Device


@functools.cache
def found(kind: str) -> Device | str:
    """The first device with this name, or why there is none."""
    try:
        return weft.get_device(kind)
    except DeviceError as error:
        return str(error)


@pytest.fixture(params=EMULATED)
def emulated(request: pytest.FixtureRequest) -> Device:
    """The first device of each kind that may be emulated. The random stream starts anew."""
    device = found(request.param)
    if isinstance(device, str):
        pytest.skip(device)
    weft.manual_seed(0)
    return device
