"""Records of operations on a device beside the reference backend, a few at a time: their kernels are collected first
and compiled together (`twin`). The first and the last sample of a record are computed in its first dtype, the first one
in the others."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

import weft
from tests.devices.twin import compile_programs
from tests.records import GROUPS
from tests.records.cases import Case, cases, flushes_subnormals, has_subnormals
from tests.records.comparison import compare, computed
from weft.plan.device import Device

PART = 16  # records whose kernels are compiled together
PARTS = [(name, first) for name, records in GROUPS.items() for first in range(0, len(records), PART)]
by_part = pytest.mark.parametrize(("group", "first"), PARTS, ids=[f"{name}-{first}" for name, first in PARTS])


def chosen(group: str, first: int, device: Device) -> Iterator[Case]:
    """The cases of some records, in the dtypes that the device has and with numbers that it has."""
    names, flushes = {dtype.name for dtype in device.dtypes}, flushes_subnormals(device)
    for record in GROUPS[group][first : first + PART]:
        for case in cases(record):
            ends = (0, -1) if case.dtype == record.dtypes[0] else (0,)
            is_chosen = case.dtype in names and any(case.sample is record.samples[end] for end in ends)
            if is_chosen and not (flushes and has_subnormals(case)):
                yield case


def assert_agrees_with_reference(group: str, first: int, device: Device) -> None:
    """Results and gradients of `PART` records of a group."""
    wanted = list(chosen(group, first, device))
    compile_programs(device, [functools.partial(computed, case) for case in wanted])
    failures = []
    for case in wanted:
        try:
            found, expected = computed(case, device), computed(case, "reference")
            for position, (a, b) in enumerate(zip(found, expected, strict=True)):
                compare(a, b, expected, case, position)
        except (AssertionError, weft.WeftError) as error:
            failures.append(f"{case}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} of {len(wanted)} cases\n" + "\n".join(failures)
