"""The errors Weft raises, all built by one helper so that they read alike.

A message says who complains, what was given, what was expected and how to mend it. This is a base room: it imports
nothing of Weft.
"""

from __future__ import annotations


class WeftError(Exception):
    """Base class of every error that Weft raises on purpose."""


class ShapeError(WeftError, ValueError):
    """Shapes, axes or sizes that do not fit."""


class RangeError(WeftError, ValueError):
    """A number outside the values that make sense."""


class DTypeError(WeftError, TypeError):
    """A dtype that the operation cannot take."""


class DeviceError(WeftError, RuntimeError):
    """A device that is missing, or tensors on different devices."""


class OutOfMemoryError(WeftError, MemoryError):
    """More memory than a device has."""


class GraphError(WeftError, RuntimeError):
    """A graph that cannot be differentiated, compiled or evaluated as asked."""


class IndexRangeError(WeftError, IndexError):
    """An index outside its axis."""


class BufferError_(WeftError, RuntimeError):
    """A buffer that was deleted or donated."""


class CopyError(WeftError, ValueError):
    """Memory that was to be shared and would have to be copied."""


class TraceWarning(UserWarning):
    """Something that a compiled function does only while it is traced, or that makes it be traced often."""


def problem(kind: type[WeftError], who: str, given: str, expected: str = "", mend: str = "") -> WeftError:
    """Build (not raise) an error: `raise problem(ShapeError, "matmul", "shapes (2, 3) and (4, 5)", "...", "...")`.

    >>> str(problem(ShapeError, "add", "shapes (2,) and (3,)", "shapes that broadcast", "reshape one of them"))
    'add: given shapes (2,) and (3,); expected shapes that broadcast. To mend it: reshape one of them.'
    """
    text = f"{who}: given {given}"
    if expected:
        text += f"; expected {expected}"
    text += "."
    if mend:
        text += f" To mend it: {mend}."
    return kind(text)
