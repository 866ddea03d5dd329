"""`torch.utils` by name. `data` is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["data"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"weft.utils.{name}")
    raise AttributeError(f"module 'weft.utils' has no attribute {name!r}")
