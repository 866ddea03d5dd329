"""NVRTC: CUDA text to machine code, side by side in threads, kept on disk.

NVRTC needs neither a GPU nor a driver. A cubin is loaded, never PTX: the driver of a machine may be older than NVRTC.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any

from weft import disk
from weft.compiler.plan import Code
from weft.counting import COUNTERS
from weft.digest import digest
from weft.errors import DeviceError, problem

OPTIONS = ("--std=c++17", "--fmad=false")
MOST_THREADS = 16


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
    found = {key: disk.read(disk.OBJECT, key) for key in dict.fromkeys(keys)}
    missing = {key: code for key, code in zip(keys, codes, strict=True) if found[key] is None}
    COUNTERS.kernels_from_disk += len(found) - len(missing)
    COUNTERS.kernels_compiled += len(missing)
    threads = min(len(missing), MOST_THREADS, os.cpu_count() or 1)
    if threads:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            made = pool.map(_kept, missing, missing.values(), itertools.repeat(architecture))
            found |= zip(missing, made, strict=True)
    return [found[key] or b"" for key in keys]


def _kept(key: str, code: Code, architecture: str) -> bytes:
    cubin = compiled(code, architecture)
    disk.write(disk.OBJECT, key, cubin)
    return cubin


def compiled(code: Code, architecture: str) -> bytes:
    """One kernel through NVRTC. A failure names the kernel and shows what NVRTC said and the text."""
    nvrtc = _nvrtc()
    status, program = nvrtc.nvrtcCreateProgram(code.text.encode(), f"{code.symbol}.cu".encode(), 0, [], [])
    _check(status)
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _refused(code, architecture, _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program))
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


def _refused(code: Code, architecture: str, log: bytes) -> Exception:
    lines = [f"{number:4d}  {line}" for number, line in enumerate(code.text.splitlines(), 1)]
    said = log.rstrip(b"\0").decode(errors="replace").strip()
    given = f"a kernel that NVRTC {version()} does not compile for {architecture}:\n{said}\n" + "\n".join(lines) + "\n"
    return problem(DeviceError, code.name, given, mend="this is a fault of Weft: please report it with this text")
