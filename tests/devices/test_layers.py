"""Every record of every layer on devices that the CPU emulates, beside the CPU: results and gradients of all records in
float32; of each layer's first record a compiled step, which moves nothing, and 16-bit floats.

The kernels of some records are collected first and compiled together (`twin`). The layers that passed on a device are
listed in tests/layers/devices.json, from which the columns of docs/layers.md are made. To write it anew:

    python -m pytest -n 2 tests/devices -k layers --write-layers
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.devices.layer_runs import (
    FIRST,
    RECORDS,
    Compute,
    assert_all_listed,
    call,
    differences_from_cpu,
    in_parts,
    train,
)
from tests.layers import executed_layers
from tests.layers.record import LayerRecord
from weft.plan.device import Device

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture
def compare_with_cpu(emulated: Device, record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Compute some records on the device and on the CPU; what passes is reported to `--write-layers`."""

    def compare_records(compute: Compute, part: list[LayerRecord]) -> None:
        failures = differences_from_cpu(compute, part, emulated)
        failed = {record.name for record in part if record.id in failures}
        record_property(executed_layers.PROPERTY, {
            "backend": emulated.kind, "device": emulated.description, "executed": True,
            "layers": sorted({record.name for record in part} - failed), "failed": sorted(failed),
        })  # fmt: skip
        assert not failures, f"{len(failures)} of {len(part)} records\n" + "\n".join(failures.values())

    return compare_records


@in_parts(RECORDS)
def test_results_and_gradients(part: list[LayerRecord], compare_with_cpu: Callable[..., None]):
    compare_with_cpu(call, part)


@in_parts(FIRST)
def test_compiled_steps_are_resident(part: list[LayerRecord], compare_with_cpu: Callable[..., None]):
    compare_with_cpu(train, part)


@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16], ids=lambda dtype: dtype.name)
@in_parts([record for record in FIRST if not isinstance(record.bf16, str)])
def test_16_bit_floats(part: list[LayerRecord], dtype: Any, compare_with_cpu: Callable[..., None]):
    compare_with_cpu(functools.partial(call, dtype=dtype), part)


def test_all_layers_are_listed(emulated: Device, request: pytest.FixtureRequest):
    assert_all_listed(emulated.kind, request.config)
