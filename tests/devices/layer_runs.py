"""What records of layers compute on a device, as arrays. Layers are made on the CPU and moved, as programs do it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.devices.twin import compile_programs
from tests.layers import executed_layers
from tests.layers.checks import repeat_step
from tests.layers.instances import make_layer
from tests.layers.parity import compile_call, learns, make_step, results_and_gradients
from tests.layers.record import LayerRecord
from tests.layers.records import records
from tests.records.comparison import compare
from weft.plan.device import Device

STEPS = 3
PART = 24  # records whose kernels are compiled together
RECORDS = records()
FIRST = list({record.name: record for record in reversed(RECORDS)}.values())[::-1]  # the first record of each layer
WRITE = "python -m pytest -n 2 tests/devices -k layers --write-layers, then make layers"
Compute = Callable[[LayerRecord, Device], list[np.ndarray]]


def in_parts(chosen: list[LayerRecord]) -> pytest.MarkDecorator:
    found = [chosen[first : first + PART] for first in range(0, len(chosen), PART)]
    return pytest.mark.parametrize("part", found, ids=[f"{one[0].id}-{one[-1].id}" for one in found])


def differences_from_cpu(compute: Compute, part: list[LayerRecord], device: Device) -> dict[str, str]:
    """What differs between a device and the CPU, by record."""
    compile_programs(device, [functools.partial(compute, record) for record in part])
    failures: dict[str, str] = {}
    for record in part:
        try:
            found, expected = compute(record, device), compute(record, weft.get_device("cpu"))
            for position, (a, b) in enumerate(zip(found, expected, strict=True)):
                compare(a, b, expected, record.id, position)
        except (AssertionError, ValueError, weft.WeftError) as error:
            failures[record.id] = f"{record.id}: {type(error).__name__}: {error}"
    return failures


def assert_all_listed(backend: str, config: pytest.Config) -> None:
    """The columns of the catalogue say what the tests show of a backend: all layers."""
    if config.getoption("write_layers", False):
        pytest.skip("the list is being written")
    listed, wanted = executed_layers.layers(backend), sorted(record.name for record in FIRST)
    assert listed == wanted, f"tests/layers/devices.json lacks {set(wanted) - set(listed)} for {backend}. Fix: {WRITE}"


def call(record: LayerRecord, device: Device, dtype: Any = weft.float32) -> list[np.ndarray]:
    """Results, and gradients in inputs and parameters."""
    layer = _move(record, device, dtype)
    with weft.device(device):
        return _arrays_of(results_and_gradients(record, layer, dtype))


def train(record: LayerRecord, device: Device) -> list[np.ndarray]:
    """Loss and state after some compiled steps with SGD; of a layer that does not learn by gradients, what a compiled
    call gives, and the state. Later steps move nothing between host and device."""
    layer = _move(record, device, weft.float32)
    with weft.device(device):
        if learns(record, layer):
            optimizer = weft.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9)
            step: Any = make_step(record, layer, optimizer, compiled=True)
        else:
            step = compile_call(record, layer)
        weft.manual_seed(17)
        for _ in range(STEPS):
            last = step()
        found = _arrays_of([*(last if isinstance(last, list) else [last]), *layer.state_dict().values()])
        step()
        repeat_step(step, STEPS, record.id)
        return found


def _move(record: LayerRecord, device: Device, dtype: Any) -> Any:
    with weft.device("cpu"):
        layer = make_layer(record)
    return layer.to(device) if dtype is weft.float32 else layer.to(device, dtype)


def _arrays_of(values: list[Any]) -> list[np.ndarray]:
    weft.eval(*values)
    return [value.detach().numpy() for value in values]
