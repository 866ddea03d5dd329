"""The GPU that tests run on: pytest's option `--device NAME`, and what a test needs of a device.

Tests in tests/gpu run on that device, and those in tests/backend that run on each device run on it beside the CPU.
Without the option it is the first CUDA device, and where there is none, tests on a GPU are skipped. A device that was
named and is not there ends the run. Nothing here knows what a test computes.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Generator
from types import TracebackType

import pytest

import weft
from weft.base import dtypes
from weft.errors import DeviceError, DTypeError
from weft.plan.device import Device

DEFAULT = "cuda"
# The dtype that a device lacks, where a test asked for it: made, cast or moved a tensor. Others are the engine's fault.
REQUESTED = re.compile(r"^(?:to|tensor|from_numpy): given (\w+) on \S+, which does not have it")
PACKAGE = os.path.dirname(weft.__file__) + os.sep
CONVERSION = os.path.join(PACKAGE, "nn", "module", "conversion.py")  # Module.to and Module.double


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("weft")
    group.addoption(
        "--device", metavar="NAME", help="the GPU of tests on GPUs: cuda (default), hip, opencl, webgpu:1 ..."
    )


def pytest_configure(config: pytest.Config) -> None:
    """A device that was named has to be there."""
    name = config.getoption("--device")
    if name is not None and isinstance(reason := find(name), str):
        raise pytest.UsageError(f"--device {name}: {reason}")


def chosen_name(config: pytest.Config) -> str:
    return config.getoption("--device") or DEFAULT


@functools.cache
def find(name: str) -> Device | str:
    """The GPU with this name, or why there is none. Software devices are GPUs here, because they were named."""
    try:
        device = weft.get_device(name)
    except DeviceError as error:
        return str(error)
    if not device.features.workgroups:
        return f"{device} is not a GPU; expected one of cuda, hip, opencl, webgpu"
    return device


def devices_of(config: pytest.Config) -> list:
    """The CPU, and the chosen GPU where there is one: those tests are marked `gpu` and run by `make test-gpu`."""
    name = chosen_name(config)
    return ["cpu"] if isinstance(find(name), str) else ["cpu", pytest.param(name, marks=pytest.mark.gpu)]


def missing(device: Device, what: str) -> bool:
    """Whether a device lacks what a test needs: a kind of device, a library, a dtype, or 'hardware'."""
    if what == "hardware":
        return device.is_software
    return what not in {device.kind, *device.libraries, *(dtype.name for dtype in device.dtypes)}


def skip_unless_able(item: pytest.Item, device: Device) -> None:
    """Skip a test that looks at what this device does not have: see the markers `cpu_only` and `needs`. A parameter
    that is a dtype is needed, too."""
    if device.kind != "cpu" and item.get_closest_marker("cpu_only"):
        pytest.skip("looks at what only the CPU has")
    needed = [what for marker in item.iter_markers("needs") for what in marker.args]
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        name = value.name if isinstance(value, dtypes.DType) else value
        if isinstance(name, str) and name in NAMES:
            needed.append(name)
    for what in needed:
        if missing(device, what):
            pytest.skip(f"{device} has no {what}")


NAMES = {dtype.name for dtype in dtypes.ALL}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test on a GPU, emulated or real, that asks for a dtype which the device does not have is skipped."""
    try:
        return (yield)
    except DTypeError as error:
        lacks = REQUESTED.match(str(error))
        has_gpu = any(item.get_closest_marker(name) for name in ("gpu", "devices"))
        if lacks is None or not has_gpu or not is_asked_by_test(error.__traceback__):
            raise
        pytest.skip(f"the device has no {lacks[1]}")


def is_asked_by_test(traceback: TracebackType | None) -> bool:
    """Whether no code of Weft is between the test and the function that it called; such code may not ask for a dtype
    that the caller did not name. Tracebacks do not show the engine."""
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if path.startswith(PACKAGE) and path != CONVERSION:
            return False
        traceback = traceback.tb_next
    return True
