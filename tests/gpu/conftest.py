"""What tests on GPU hardware share: each has the GPU (`--device`) as its default device, and none runs where there is
none.

Plans are made, not read from disk; machine code is kept where `WEFT_CACHE_DIR` is set, so a second run compiles
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft
from tests.chosen_device import chosen_name, find, skip_unless_able
from weft.plan.device import Device


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The GPU, as the default device; the random stream starts anew."""
    device = find(chosen_name(request.config))
    if isinstance(device, str):
        pytest.skip(device)
    skip_unless_able(request.node, device)
    with weft.device(device):
        weft.manual_seed(0)
        yield device
        device.backend.synchronise()
