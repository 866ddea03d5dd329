"""PoCL on an x86 processor that is newer than its LLVM, such as Zen 5 for PoCL 3.0, the one on PyPI.

LLVM then calls the processor 'generic', a name that PoCL gives to clang, which knows no such x86 processor: no program
compiles (pocl/pocl issue 1049). PoCL has no setting for the name, so it is replaced in PoCL's own description of the
device by that of an older processor with the same vector instructions. Nothing else of a driver is touched anywhere.
"""

from __future__ import annotations

import ctypes
import io
import platform

from llvmlite import binding

from weft.backends.opencl import library
from weft.base.errors import DeviceError, problem

UNKNOWN, TARGET = b"generic\0", b"x86_64-"  # names of the processor, and of what programs are compiled for
DESCRIPTION_BYTES = 1024  # of a device, in which the pointer to the name is looked for: 640 bytes from its start
USER_ADDRESSES = range(1 << 12, 1 << 47)
# Names by the instructions that they stand for, as PoCL chooses its own library of functions by them.
NAMES = (("avx512vl", "skylake-avx512"), ("avx2", "haswell"), ("sse2", "x86-64"))
_names: dict[int, ctypes.Array] = {}  # by device: PoCL keeps a pointer to it


def name_unknown_processor(device: int) -> None:
    """Give a device of PoCL whose processor LLVM does not know the name of one that it knows; others are left alone."""
    if library.platform_name(library.query(device, "platform")) != library.POCL or device in _names:
        return
    if platform.machine() not in ("x86_64", "AMD64") or not library.query(device, "version").endswith("-generic"):
        return
    places = _places_of_name(device)
    if len(places) != 1:
        fix = "use a newer PoCL, or another OpenCL driver"
        raise problem(DeviceError, "OpenCL", f"{library.query(device, 'version')}, which does not know this processor",
                      "a PoCL whose LLVM is as new as the processor", fix)  # fmt: skip
    has = binding.get_host_cpu_features()
    name = next(name for feature, name in NAMES if has.get(feature) or feature == "sse2")
    _names[device] = ctypes.create_string_buffer(name.encode())
    ctypes.c_uint64.from_address(places[0]).value = ctypes.addressof(_names[device])


def _places_of_name(device: int) -> list[int]:
    """Where in PoCL's description of a device the pointer to an unknown processor's name lies: after the pointer to the
    name of the target. Memory is read as a file: words that are no pointers fail."""
    found = []
    try:
        with io.FileIO("/proc/self/mem") as memory:
            for place in range(device, device + DESCRIPTION_BYTES, 8):
                target, name = (int.from_bytes(_read(memory, at, 8), "little") for at in (place, place + 8))
                if _read(memory, target, len(TARGET)) == TARGET and _read(memory, name, len(UNKNOWN)) == UNKNOWN:
                    found.append(place + 8)
    except OSError:  # another system, or a sandbox
        return []
    return found


def _read(memory: io.FileIO, address: int, nbytes: int) -> bytes:
    """Bytes of this process; none where there is no memory."""
    if address not in USER_ADDRESSES:
        return b""
    try:
        memory.seek(address)
        return memory.read(nbytes) or b""
    except OSError:
        return b""
