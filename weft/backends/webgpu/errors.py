"""Errors of wgpu as Weft's: out of memory, a lost device, and everything else that it reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from weft.base.errors import DeviceError, OutOfMemoryError, WeftError, problem
from weft.plan.device import DeviceLost

OWNERS = ("wgpu", "weft")  # packages from whose code errors of wgpu come


@contextlib.contextmanager
def raise_wgpu_errors(who: str) -> Iterator[None]:
    """Raise what wgpu reports in the block under Weft's names. What a signal handler raises there passes."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:  # wgpu has classes of its own for validation errors, out of memory and internal ones
        if not _is_from_wgpu(error):
            raise
        raise convert_error(who, error) from error


def _is_from_wgpu(error: Exception) -> bool:
    """Whether wgpu raised an exception, rather than a signal handler: by its class, or by the function that raised."""
    trace, names = error.__traceback__, [type(error).__module__]
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        names.append(str(trace.tb_frame.f_globals.get("__name__")))
    return any(name.partition(".")[0] in OWNERS for name in names)


def convert_error(who: str, error: Exception) -> Exception:
    """An exception of wgpu as one of Weft's."""
    kind, text = type(error).__name__, str(error).strip()
    if kind == "GPUOutOfMemoryError" or "not enough memory" in text.lower() or "out of memory" in text.lower():
        return problem(OutOfMemoryError, who, text, "free memory on the GPU")
    if "device is lost" in text.lower() or "device lost" in text.lower():
        return problem(DeviceLost, who, text, "a device that answers")
    return problem(DeviceError, who, f"{kind}: {text}", "success")
