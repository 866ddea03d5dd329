"""NVRTC: CUDA text to machine code, in several threads at a time, kept on disk.

NVRTC needs neither a GPU nor a driver. A cubin is loaded, never PTX: the driver of a machine may be older than NVRTC.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from weft.backends.gpu.objects import compile_failure, compile_missing
from weft.base import disk
from weft.base.digest import digest
from weft.base.errors import DeviceError, problem
from weft.plan.plan import Code

OPTIONS = ("--std=c++17", "--fmad=false")


@functools.cache
def _nvrtc() -> Any:
    from cuda.bindings import nvrtc

    return nvrtc


@functools.cache
def version() -> str:
    """NVRTC's version; raises where it cannot be loaded."""
    status, major, minor = _nvrtc().nvrtcVersion()
    _check(status)
    return f"{major}.{minor}"


def knows(architecture: str) -> bool:
    """Whether NVRTC compiles for `architecture` ('sm_90')."""
    status, known = _nvrtc().nvrtcGetSupportedArchs()
    _check(status)
    return int(architecture.removeprefix("sm_")) in known


def key_of(text: str, architecture: str, compiler: str, options: tuple[str, ...]) -> str:
    """The name under which the machine code of a CUDA text is kept: all that NVRTC is given, and which one it is."""
    return digest(
        kind=disk.OBJECT, language="cuda", architecture=architecture, nvrtc=compiler, options=options, text=text
    )


def cubins(codes: Sequence[Code], architecture: str) -> list[bytes]:
    """The machine code of each kernel for `architecture` ('sm_90'), from disk where it is there."""
    keys = [key_of(code.text, architecture, version(), OPTIONS) for code in codes]
    return compile_missing(codes, keys, lambda code: compile_code(code, architecture))


def compile_code(code: Code, architecture: str) -> bytes:
    """One kernel through NVRTC. A failure names the kernel and shows what NVRTC said and the text."""
    nvrtc = _nvrtc()
    status, program = nvrtc.nvrtcCreateProgram(code.text.encode(), f"{code.symbol}.cu".encode(), 0, [], [])
    _check(status)
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise compile_failure(code, f"NVRTC {version()}", architecture, log)
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size_of: Any, get: Any, program: Any) -> bytes:
    status, size = size_of(program)
    _check(status)
    data = bytearray(size)  # it is written to, which bytes would not bear: short ones are shared
    (status,) = get(program, data)
    _check(status)
    return bytes(data)


def _check(status: Any) -> None:
    if status != _nvrtc().nvrtcResult.NVRTC_SUCCESS:
        raise problem(DeviceError, "NVRTC", str(status), "a working compiler", "reinstall nvidia-cuda-nvrtc")
