"""Every record on devices that the CPU emulates, forward and gradient, against the reference backend."""

from __future__ import annotations

from tests.devices.record_runs import assert_agrees_with_reference, by_part
from weft.plan.device import Device


@by_part
def test_agrees_with_the_reference(group: str, first: int, emulated: Device):
    assert_agrees_with_reference(group, first, emulated)
