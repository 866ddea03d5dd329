"""The exceptions that Weft raises, and `problem`, which builds all their messages in one form.

A message names the function, what it was given, what it expected and, after `Fix:`, what to change. Tracebacks end at
the user's line (`weft.core.boundary`). Users import the classes from `weft.errors`; this module imports nothing of
Weft.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class WeftError(Exception):
    """Base class of every error that Weft raises on purpose."""


class ShapeError(WeftError, ValueError):
    """Shapes, axes or sizes that do not fit."""


class StateDictError(ShapeError, RuntimeError):
    """A state_dict that does not fit a module."""


class NoAxesError(ShapeError, TypeError):
    """A tensor without axes where Python asks for elements: `len(x)`, `for v in x`."""


class RangeError(WeftError, ValueError):
    """A number outside the values that make sense."""


class DTypeError(WeftError, TypeError):
    """A dtype that the operation cannot take."""


class DeviceError(WeftError, RuntimeError):
    """A device that is missing, or tensors on different devices."""


class OutOfMemoryError(WeftError, MemoryError):
    """More memory than a device has."""


class GraphError(WeftError, RuntimeError):
    """A graph that cannot be differentiated, compiled or evaluated as requested."""


class IndexRangeError(WeftError, IndexError):
    """An index outside its axis."""


class StorageError(WeftError, RuntimeError):
    """The memory of a tensor that was deleted, or donated to a compiled function."""


class ConfigError(WeftError, ValueError):
    """A configuration that cannot be read, or that describes no model or run."""


class CopyError(WeftError, ValueError):
    """Memory that was to be shared and would have to be copied."""


class FileFormatError(WeftError, ValueError):
    """A file that is damaged, cut short, of another kind, or of a version that is not known."""


class FileError(WeftError, OSError):
    """A file that could not be written: a full disk, a folder without permission. `errno` says which."""

    def __str__(self) -> str:
        return str(self.args[0])  # OSError would show the number and the path alone


class TraceWarning(UserWarning):
    """Something that a compiled function does only while it is traced, or that makes it be traced often."""


class CheckpointWarning(UserWarning):
    """A checkpoint that is damaged and was left out."""


for _class in [WeftError, *WeftError.__subclasses__(), StateDictError, NoAxesError, TraceWarning, CheckpointWarning]:
    _class.__module__ = "weft.errors"  # where users find them, and what tracebacks show


def problem(kind: type[WeftError], who: str, given: str, expected: str = "", fix: str = "") -> WeftError:
    """Build (not raise) an error: `raise problem(ShapeError, "matmul", "shapes (2, 3) and (4, 5)", "...", "...")`.

    >>> str(problem(ShapeError, "add", "shapes (2,) and (3,)", "shapes that broadcast", "reshape one of them"))
    'add: given shapes (2,) and (3,); expected shapes that broadcast. Fix: reshape one of them.'
    """
    text = f"{who}: given {given}"
    if expected:
        text += f"; expected {expected}"
    text += "."
    if fix:
        text += f" Fix: {fix}."
    return kind(text)


def out_of_memory(who: str, nbytes: int, available: int, total: int) -> WeftError:
    """The error for a request that a device cannot meet.

    >>> str(out_of_memory("cpu", 1 << 40, 3 << 30, 4 << 30)).partition(". ")[0]
    'cpu: given a request for 1.00 TiB; expected at most 3.00 GiB, which are available of 4.00 GiB'
    """
    expected = f"at most {size_text(available)}, which are available of {size_text(total)}"
    return problem(OutOfMemoryError, who, f"a request for {size_text(nbytes)}", expected, "use smaller tensors")


def exceeds_allocation(who: str, nbytes: int, largest: int) -> WeftError:
    """The error for a request that is larger than a single allocation of a device may be.

    >>> str(exceeds_allocation("webgpu:0", 3 << 30, 2 << 30)).partition(". ")[0]
    'webgpu:0: given a request for 3.00 GiB; expected at most 2.00 GiB in one allocation'
    """
    expected = f"at most {size_text(largest)} in one allocation"
    return problem(OutOfMemoryError, who, f"a request for {size_text(nbytes)}", expected, "use smaller tensors")


def size_text(nbytes: int) -> str:
    """Bytes in a readable unit.

    >>> size_text(900), size_text(1536), size_text(3 << 30)
    ('900 B', '1.5 KiB', '3.00 GiB')
    """
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} GiB" if unit == "GiB" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def hide_frames(error: BaseException) -> None:
    """Take Weft's own frames out of the traceback of an error that is on its way to the user; `WEFT_TRACEBACK=full`
    leaves them in. A bare `raise` afterwards adds none."""
    if os.environ.get("WEFT_TRACEBACK", "").lower() == "full":
        return
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, WeftError):
            error.__traceback__ = _frames_outside(error.__traceback__)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]


def is_raised_inside(error: BaseException) -> bool:
    """Whether all frames that an error has passed so far are Weft's."""
    return _frames_outside(error.__traceback__) is None


def _frames_outside(traceback: TracebackType | None) -> TracebackType | None:
    """The entries of a traceback whose frames are not Weft's, nor contextlib's behind one of those."""
    entries, is_inside = [], False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        is_inside = file.startswith(_PACKAGE) or (is_inside and file == contextlib.__file__)
        if not is_inside:
            entries.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for one in reversed(entries):
        kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept
