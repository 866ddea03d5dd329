"""What tests on emulated GPUs share: each kind of device, where it is installed. With `--write-layers`, what the tests
of layers report is written to tests/layers/devices.json."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import weft
from tests.layers import executed_layers
from weft.backends.registry import EMULATED
from weft.errors import DeviceError
from weft.plan.device import Device


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-layers", action="store_true", help="list the layers that pass: tests/layers/devices.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_layers", False) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reports())


class _Reports:
    """What tests said about layers, from all workers."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.reports += [value for name, value in report.user_properties if name == executed_layers.PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in executed_layers.write(self.reports):
            terminalreporter.write_line(line)


@functools.cache
def found(kind: str) -> Device | str:
    """The first device with this name, or why there is none."""
    try:
        return weft.get_device(kind)
    except DeviceError as error:
        return str(error)


@pytest.fixture(params=EMULATED)
def emulated(request: pytest.FixtureRequest) -> Device:
    """The first device of each kind that may be emulated. The random stream starts anew."""
    device = found(request.param)
    if isinstance(device, str):
        pytest.skip(device)
    weft.manual_seed(0)
    return device
