"""What tests on GPU hardware share: every test has the GPU as its default device, and none runs where there is none.

Plans are made, not read from disk; machine code is kept where `WEFT_CACHE_DIR` is set, so a second run compiles
nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

import weft
from weft.errors import DeviceError
from weft.plan.device import Device


@functools.cache
def found() -> Device | str:
    """The first GPU, or why there is none."""
    try:
        return weft.get_device("cuda")
    except DeviceError as error:
        return str(error)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Device]:
    """The GPU, as the default device; the random stream starts anew."""
    device = found()
    if isinstance(device, str):
        pytest.skip(device)
    with weft.device(device):
        weft.manual_seed(0)
        yield device
        device.backend.synchronise()
