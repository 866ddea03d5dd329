"""torch, the oracle of the records: exactly the version that the project names.

Where there is another or none, its names can be read but not called: so records are read, and computed on every device
of Weft, on machines that have Weft alone.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

VERSION = "2.13.0"


class Absent:
    """Stands for a name of a module that is not there."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ModuleNotFoundError(f"{self._name} was called, but torch {VERSION} is not installed")


def _installed() -> bool:
    try:
        return importlib.metadata.version("torch").split("+")[0] == VERSION
    except importlib.metadata.PackageNotFoundError:
        return False


torch: Any
TF: Any
if _installed():
    import torch
    import torch.nn.functional as TF
else:
    torch, TF = Absent("torch"), Absent("torch.nn.functional")
