"""Which Python interpreters Weft runs on. Imported before anything else; a base module.

CPython 3.11 to 3.14 with its global interpreter lock. The lists and dictionaries that Weft's threads share rely on that
lock, and each supported version runs the test suite's checks in `.ci/run`; elsewhere the import is refused, as wrong
numbers are worse.
"""

from __future__ import annotations

import sys

OLDEST, NEWEST = (3, 11), (3, 14)
_RANGE = f"CPython {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def reason_to_refuse(implementation: str, version: tuple, has_gil: bool) -> str:
    """Why Weft does not run on such an interpreter; empty where it does.

    >>> reason_to_refuse("cpython", (3, 14, 0), True)
    ''
    >>> reason_to_refuse("cpython", (3, 10, 4), True)
    'weft: given CPython 3.10; expected CPython 3.11 to 3.14. Fix: use one of these versions'
    """
    name = "CPython" if implementation == "cpython" else implementation
    given = f"{name} {version[0]}.{version[1]}"
    if implementation != "cpython":
        return f"weft: given {given}; expected {_RANGE}. Fix: use CPython"
    if not OLDEST <= version[:2] <= NEWEST:
        return f"weft: given {given}; expected {_RANGE}. Fix: use one of these versions"
    if not has_gil:
        fix = "start Python with -X gil=1 or PYTHON_GIL=1, or use the build with the lock"
        return f"weft: given {given} without its global interpreter lock; expected {_RANGE} with it. Fix: {fix}"
    return ""


def require_support() -> None:
    """Raise ImportError on an interpreter that Weft does not run on."""
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    reason = reason_to_refuse(sys.implementation.name, tuple(sys.version_info), has_gil)
    if reason:
        raise ImportError(reason)


require_support()
