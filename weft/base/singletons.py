"""Classes and tables that a process has once, also when the module that defines them is loaded again.

A base module. `importlib.reload` runs a module's text in the namespace that it already has: whatever is kept here is
found again, so objects made before a reload stay instances of their class and `is` keeps its meaning.
"""

from __future__ import annotations

from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

_KEPT: dict[str, Any] = globals().get("_KEPT", {})


def singleton(kind: Class) -> Class:
    """Class decorator: the class of this name that the process made first."""
    return _KEPT.setdefault(f"{kind.__module__}.{kind.__qualname__}", kind)


def table(name: str) -> dict[Any, Any]:
    """The one dictionary of this name."""
    return _KEPT.setdefault(name, {})
