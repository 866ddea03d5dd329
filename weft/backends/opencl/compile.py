"""OpenCL text to programs of one device, by the device's own compiler.

Compiled programs are kept on disk where the device hands them out. PoCL is treated differently. It hands programs out
only at a high price (each kernel is compiled again, for workgroups of any size) and has a cache of its own. Most of the
time that it takes is for each program rather than each kernel, so all kernels of a plan are one program. And its
optimizer must not see a kernel before its lanes have become loops: PoCL 3.0 miscompiles barriers in a loop that was
transformed before.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
from collections.abc import Sequence

from weft.backends.opencl import library
from weft.backends.opencl.library import call, create
from weft.base import disk
from weft.base.counters import COUNTERS
from weft.base.digest import digest
from weft.base.errors import DeviceError, OutOfMemoryError, problem
from weft.plan.device import DeviceLost
from weft.plan.plan import Code

STANDARD = "-cl-std=CL1.2"
SUBGROUP_STANDARDS = (((3, 0), "-cl-std=CL3.0"), ((2, 0), "-cl-std=CL2.0"))  # by version; 1.2 declares no shuffles
CORRECTLY_ROUNDED = "-cl-fp32-correctly-rounded-divide-sqrt"
WITHOUT_OPTIMIZER = "-cl-opt-disable"
MAX_COMPILE_THREADS = 16


class Compiler:
    """The compiler of one device; kernels may use subgroups where it says so."""

    def __init__(self, context: int, device: int, subgroups: bool = False):
        self._context, self._device = context, device
        self._is_pocl = library.platform_name(library.query(device, "platform")) == library.POCL
        rounds = bool(library.query(device, "float32") & library.FP_CORRECTLY_ROUNDED)
        optional = [*[CORRECTLY_ROUNDED] * rounds, *[WITHOUT_OPTIMIZER] * self._is_pocl]
        self.options = " ".join([standard(library.version(device), subgroups), *optional])
        about = {name: library.query(device, name) for name in ("name", "vendor", "driver", "version")}
        self.identity = digest(options=self.options, **about)

    def programs(self, codes: Sequence[Code]) -> list[int]:
        """The handle of a program for each kernel, which the caller releases (once for each)."""
        if not codes:
            return []
        if self._is_pocl:
            return self._compile_merged(codes)
        threads = min(len(codes), MAX_COMPILE_THREADS, os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self._load_or_compile, codes))

    def _compile_merged(self, codes: Sequence[Code]) -> list[int]:
        """One program for all kernels. Where it does not compile, the kernel at fault is named."""
        COUNTERS.kernels_compiled += len(codes)
        try:
            program = self._compile(codes[0], merge([code.text for code in codes]))
        except DeviceLost:
            raise
        except DeviceError as error:
            failure = error
        else:
            for _ in codes[1:]:
                call("clRetainProgram", program)
            return [program] * len(codes)
        for code in codes:
            call("clReleaseProgram", self._compile(code, code.text))
        raise failure

    def _load_or_compile(self, code: Code) -> int:
        key = digest(kind=disk.OBJECT, language="opencl", device=self.identity, text=code.text)
        binary = disk.read(disk.OBJECT, key)
        if binary is not None:
            COUNTERS.kernels_from_disk += 1
            return self._load(code, binary)
        COUNTERS.kernels_compiled += 1
        program = self._compile(code, code.text)
        disk.write(disk.OBJECT, key, self._binary(program))
        return program

    def _compile(self, code: Code, text: str) -> int:
        source = text.encode()
        pointer, length = ctypes.c_char_p(source), ctypes.c_size_t(len(source))
        places = ctypes.addressof(pointer), ctypes.addressof(length)
        return self._build(code, text, create("clCreateProgramWithSource", self._context, 1, *places))

    def _load(self, code: Code, binary: bytes) -> int:
        device, status = ctypes.c_void_p(self._device), ctypes.c_int32()
        pointer, length = ctypes.c_char_p(binary), ctypes.c_size_t(len(binary))
        places = [ctypes.addressof(one) for one in (device, length, pointer, status)]
        return self._build(code, code.text, create("clCreateProgramWithBinary", self._context, 1, *places))

    def _build(self, code: Code, text: str, program: int) -> int:
        """Build a program; a failure names the kernel and shows what the compiler said and the text."""
        device = ctypes.c_void_p(self._device)
        try:
            call("clBuildProgram", program, 1, ctypes.addressof(device), self.options.encode(), None, None)
        except (DeviceLost, OutOfMemoryError):
            call("clReleaseProgram", program)
            raise
        except DeviceError as error:
            log = library.read("clGetProgramBuildInfo", program, self._device, library.PROGRAM_BUILD_LOG)
            call("clReleaseProgram", program)
            raise self._make_error(code, text, library.text_of(log)) from error
        return program

    def _binary(self, program: int) -> bytes:
        size = ctypes.c_size_t()
        call("clGetProgramInfo", program, library.PROGRAM_BINARY_SIZES, 8, ctypes.addressof(size), None)
        data = ctypes.create_string_buffer(size.value)
        pointer = ctypes.c_void_p(ctypes.addressof(data))
        call("clGetProgramInfo", program, library.PROGRAM_BINARIES, 8, ctypes.addressof(pointer), None)
        return data.raw

    def _make_error(self, code: Code, text: str, log: str) -> Exception:
        lines = [f"{number:4d}  {line}" for number, line in enumerate(text.splitlines(), 1)]
        name = library.query(self._device, "name")
        given = f"a kernel that the compiler of {name} does not take:\n{log}\n" + "\n".join(lines) + "\n"
        return problem(DeviceError, code.name, given, fix="this is a fault of Weft: please report it with this text")


def standard(version: tuple[int, int], subgroups: bool) -> str:
    """The option for the language that kernels are in, on a device with this version of OpenCL."""
    return next((option for least, option in SUBGROUP_STANDARDS if subgroups and version >= least), STANDARD)


def merge(texts: Sequence[str]) -> str:
    """The texts of several kernels as one: the same header, then each helper function once, then the kernels."""
    header = texts[0].partition("\n\n")[0]
    helpers: dict[str, None] = {}
    kernels: dict[str, None] = {}
    for text in texts:
        first, *middle, kernel = text.rstrip().split("\n\n")
        assert first == header, "texts of one dialect"
        for part in middle:
            helpers.update(dict.fromkeys(_definitions(part)))
        kernels[kernel] = None
    return "\n\n".join([header, "\n".join(helpers), *kernels]) + "\n"


def _definitions(text: str) -> list[str]:
    """The functions of a text, each of which begins with a line that is neither indented nor a brace."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if line[:1] in (" ", "{", "}"):
            found[-1].append(line)
        else:
            found.append([line])
    return ["\n".join(lines) for lines in found]
