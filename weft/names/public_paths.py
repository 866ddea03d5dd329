"""The paths under which `repr`, `help()` and pickles name what users hold: `weft.Tensor`, wherever its module is.

Public paths are part of the format of pickles. `weft.names.former_modules` finds what earlier versions named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import device

DEFINED_IN: dict[str, str] = {}  # modules, by the names that what they define has in `weft`


def install(names: Mapping[str, Any]) -> None:
    """Give the classes among these names of the package `weft` their public paths."""
    for name, value in names.items():
        if isinstance(value, type) and value.__module__ not in ("weft", "weft.errors") and not name.startswith("_"):
            DEFINED_IN[name] = value.__module__
            set_path(value, "weft", name)
    set_path(device.Device, "weft", "device")  # what `weft.device` makes, and is the type of
    DEFINED_IN["get_device"] = "weft.core.device"
    device.get.__module__, device.get.__qualname__ = "weft", "get_device"  # which pickles name


def set_path(value: Any, module: str, name: str) -> None:
    """Let a class or function be known as `module.name`; the name of a method starts with its class."""
    value.__module__, value.__name__, value.__qualname__ = module, name.rpartition(".")[2], name
