"""The tests that docs/kernels.md names for kernels without a record (tests/kernels/names.py), called on any device."""

from __future__ import annotations

import importlib
from typing import Any

import weft
from tests.kernels.names import KERNELS
from weft.plan.device import Device

NAMED = sorted({test for kernel in KERNELS if not kernel.records and not kernel.layers for test in kernel.tests})
CHOSEN = {"compiled": True}  # of other parameters the first value


def run(test: str, device: Device) -> None:
    """Call a test, 'file::function[value]', with a device as the default one."""
    path, _, name = test.partition("::")
    name, _, value = name.rstrip("]").partition("[")
    function = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    arguments: dict[str, Any] = {}
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            parameter, values = mark.args
            arguments[parameter] = value if value in values else CHOSEN.get(parameter, next(iter(values)))
    if "on_each_device" in function.__code__.co_varnames[: function.__code__.co_argcount]:
        arguments["on_each_device"] = device.kind
    with weft.device(device):
        weft.manual_seed(0)
        function(**arguments)
        device.backend.synchronise()
