"""Errors of wgpu as Weft's: out of memory, a lost device, and everything else that it reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from weft.base.errors import DeviceError, OutOfMemoryError, WeftError, problem
from weft.plan.device import DeviceLost


@contextlib.contextmanager
def raise_wgpu_errors(who: str) -> Iterator[None]:
    """Raise what wgpu reports in the block under Weft's names."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:  # wgpu has classes of its own for validation errors, out of memory and internal ones
        raise convert_error(who, error) from error


def convert_error(who: str, error: Exception) -> Exception:
    """An exception of wgpu as one of Weft's."""
    kind, text = type(error).__name__, str(error).strip()
    if kind == "GPUOutOfMemoryError" or "not enough memory" in text.lower() or "out of memory" in text.lower():
        return problem(OutOfMemoryError, who, text, "free memory on the GPU")
    if "device is lost" in text.lower() or "device lost" in text.lower():
        return problem(DeviceLost, who, text, "a device that answers")
    return problem(DeviceError, who, f"{kind}: {text}", "success")
