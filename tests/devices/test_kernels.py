"""Kernels of docs/kernels.md that have no record: updates of optimizers, dropout, fused kernels, by the tests that the
page names, on devices that the CPU emulates."""

from __future__ import annotations

import pytest

from tests.devices.named_tests import NAMED, run
from weft.plan.device import Device


@pytest.mark.parametrize("test", NAMED)
def test_named_test_passes(test: str, emulated: Device):
    run(test, emulated)
