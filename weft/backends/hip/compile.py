"""HIP text to machine code ("code objects"), kept on disk.

hiprtc needs neither a GPU nor a driver. Given an architecture that it does not know it ends the process (seen with
HIP 5.2), so whether it knows one is asked in a child process, once: the answer is kept on disk. It is called through
ctypes: it is a library of its own with ROCm 6, and a part of the runtime's in older releases.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Sequence

from weft.backends.gpu.objects import compile_failure, compile_missing
from weft.base import disk
from weft.base.digest import digest
from weft.base.errors import DeviceError, problem
from weft.plan.plan import Code

# Contraction would change results; vectors are accessed through pointers to other types.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-strict-aliasing")
LIBRARIES = ("libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so", "libamdhip64.so.5")
PROBE = 'extern "C" __global__ void probe(float* x) { x[threadIdx.x] = sqrtf(x[threadIdx.x]); }'
PROBE_SECONDS = 60


@functools.cache
def _hiprtc() -> ctypes.CDLL:
    """The library; OSError where there is none."""
    places: list[str] = list(LIBRARIES)
    with contextlib.suppress(ImportError):  # hip-python knows where ROCm may be installed
        from rocm.bindings.util.paths import get_library_path

        places.insert(0, os.fsdecode(get_library_path("hiprtc")))
    for place in places:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(place)
            if hasattr(library, "hiprtcCompileProgram"):
                return library
    raise OSError("no library has hiprtcCompileProgram")


class _Origin(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    ]


@functools.cache
def version() -> str:
    """hiprtc's version and the name of its file, which has the exact one; raises where it cannot be loaded."""
    major, minor, library = ctypes.c_int(), ctypes.c_int(), _hiprtc()
    _check(library.hiprtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    origin, file = _Origin(), b""
    with contextlib.suppress(AttributeError, OSError):  # of systems without dladdr
        if ctypes.CDLL(None).dladdr(library.hiprtcVersion, ctypes.byref(origin)):
            file = origin.file
    return f"{major.value}.{minor.value} {os.path.basename(os.path.realpath(os.fsdecode(file)))}".strip()


def knows(architecture: str) -> bool:
    """Whether hiprtc compiles for `architecture` ('gfx90a'), found out in a child process."""
    key = digest(kind="hip architecture", architecture=architecture, compiler=version(), options=OPTIONS)
    kept = disk.read(disk.OBJECT, key)
    if kept is None:
        command = [sys.executable, "-m", __name__, architecture]
        with contextlib.suppress(subprocess.TimeoutExpired):
            found_as_here = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            ended = subprocess.run(command, env=found_as_here, capture_output=True, timeout=PROBE_SECONDS, check=False)
            kept = b"known" if ended.returncode == 0 else b"unknown"
            disk.write(disk.OBJECT, key, kept)
    return kept == b"known"


def key_of(text: str, architecture: str, compiler: str, options: tuple[str, ...]) -> str:
    """The name under which the machine code of a HIP text is kept: all that hiprtc is given, and which one it is."""
    return digest(
        kind=disk.OBJECT, language="hip", architecture=architecture, hiprtc=compiler, options=options, text=text
    )


def code_objects(codes: Sequence[Code], architecture: str) -> list[bytes]:
    """The machine code of each kernel for `architecture`, which hiprtc knows, from disk where it is there."""
    keys = [key_of(code.text, architecture, version(), OPTIONS) for code in codes]
    return compile_missing(codes, keys, lambda code: compile_code(code, architecture))


def compile_code(code: Code, architecture: str) -> bytes:
    """One kernel through hiprtc. A failure names the kernel and shows what hiprtc said and the text."""
    made, log = compile_text(code.text, architecture)
    if made is None:
        raise compile_failure(code, f"hiprtc {version()}", architecture, log)
    return made


def compile_text(text: str, architecture: str, *options: str) -> tuple[bytes | None, bytes]:
    """(machine code or None, what hiprtc said)."""
    library, program = _hiprtc(), ctypes.c_void_p()
    _check(library.hiprtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.hip", 0, None, None))
    try:
        given = [option.encode() for option in (f"--offload-arch={architecture}", *OPTIONS, *options)]
        status = library.hiprtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        log = _bytes(library.hiprtcGetProgramLogSize, library.hiprtcGetProgramLog, program)
        if status:
            return None, log or f"status {status}".encode()
        return _bytes(library.hiprtcGetCodeSize, library.hiprtcGetCode, program), log
    finally:
        library.hiprtcDestroyProgram(ctypes.byref(program))


def _bytes(size_of: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(max(size.value, 1))
    _check(get(program, data))
    return data.raw[: size.value]


def _check(status: int) -> None:
    if status:
        raise problem(DeviceError, "hiprtc", f"status {status}", "a working compiler", "reinstall ROCm's hiprtc")


if __name__ == "__main__":  # the child process of `knows`
    sys.exit(compile_text(PROBE, sys.argv[1])[0] is None)
