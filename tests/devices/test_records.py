"""Every record on devices that the CPU emulates, forward and gradient, against the reference backend.

The kernels of a group of records are collected first and compiled together (`twin`). The first and the last sample of a
record are computed in its first dtype, the first one in the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft
from tests.devices.twin import Twin
from tests.records import GROUPS
from tests.records.cases import Case, cases, flushes_subnormals, has_subnormals, results
from tests.records.comparison import compare, computed
from weft.plan.device import Device

PART = 16  # records whose kernels are compiled together
PARTS = [(name, first) for name, records in GROUPS.items() for first in range(0, len(records), PART)]


def chosen(group: str, first: int, device: Device) -> Iterator[Case]:
    """The cases of some records, in the dtypes that the device has and with numbers that it has."""
    names, flushes = {dtype.name for dtype in device.dtypes}, flushes_subnormals(device)
    for record in GROUPS[group][first : first + PART]:
        for case in cases(record):
            ends = (0, -1) if case.dtype == record.dtypes[0] else (0,)
            is_chosen = case.dtype in names and any(case.sample is record.samples[end] for end in ends)
            if is_chosen and not (flushes and has_subnormals(case)):
                yield case


@pytest.mark.parametrize(("group", "first"), PARTS, ids=[f"{name}-{first}" for name, first in PARTS])
def test_agrees_with_the_reference(group: str, first: int, emulated: Device):
    wanted = list(chosen(group, first, emulated))
    twin = Twin(emulated)
    with weft.device(twin.device):
        for case in wanted:
            outputs = results(case)
            weft.eval(*outputs)
            twin.synchronise()
    twin.compile_collected()
    failures = []
    for case in wanted:
        try:
            found, expected = computed(case, emulated), computed(case, "reference")
            for position, (a, b) in enumerate(zip(found, expected, strict=True)):
                compare(a, b, expected, case, position)
        except (AssertionError, weft.WeftError) as error:
            failures.append(f"{case}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} of {len(wanted)} cases\n" + "\n".join(failures)
