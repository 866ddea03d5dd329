"""The GPU schedule on an emulator: right results, the same bits for any number of blocks, no races, no atomics."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.emulator import Emulator
from tests.unit.gpu_harness import gpu_schedules
from tests.unit.programs import PROGRAMS, assert_equal_results, expected_results, results


def emulated(name: str, **options) -> list[np.ndarray]:
    with gpu_schedules():
        return results(PROGRAMS[name], Emulator(**options).device, small=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_the_reference(name):
    assert_equal_results(emulated(name), expected_results(name, small=True))


@pytest.mark.parametrize("name", ["softmax_long", "layer_norm", "embedding", "sums", "adam"])
def test_order_of_threads_and_number_of_blocks_change_nothing(name):
    first = emulated(name)
    for other in (emulated(name, blocks=1), emulated(name, blocks=3, downwards=True)):
        for a, b in zip(first, other, strict=True):
            assert a.tobytes() == b.tobytes()
