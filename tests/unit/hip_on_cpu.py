"""An AMD GPU whose kernels run on the CPU: the text that hiprtc would get, compiled by clang for this processor.

`hip_on_cpu.h` says what stands for AMD's builtins. The emulator (`lockstep`) runs kernels before they become text; here
the text is what runs, with its exchanges between 64 or 32 lanes and the layouts of the matrix units.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.fake_driver import FakeDriver, normal_form
from tests.unit.fake_hip import SUBGROUP_LANES, FakeHip
from tests.unit.hip_compilers import CLANG
from weft.backends.hip import compile as hip_compile
from weft.kernels.ir.language import Kernel
from weft.plan.plan import Code
from weft.render.clike import module as clike_module

HEADER = Path(__file__).with_name("hip_on_cpu.h")
NATIVE = ("-march=native",) if platform.machine() == "x86_64" else ()  # conversions of float16 and fused multiply-adds
# hiprtc's options but the level of optimisation. Loops too long to be written out are left as they are, and a program
# may compare a value with itself.
OPTIONS = (
    *(option for option in hip_compile.OPTIONS if not option.startswith("-O")), "-O1", "-fPIC", "-shared",
    "-nostdlib++", *NATIVE, "-Wno-pass-failed", "-Wno-tautological-compare",
)  # fmt: skip
LAUNCH = """
extern "C" const char* launch_{0}(
    const unsigned long long* words, unsigned workgroups, unsigned lanes, unsigned char* stacks, size_t stack_bytes)
{{ return launch({0}, words, workgroups, lanes, {{stacks, stack_bytes}}); }}
"""
STACK_BYTES, MAX_LANES = 1 << 18, 1024  # of a lane; of a workgroup
Launch = Callable[[Sequence[np.generic], int, int], None]


class CompiledHip(FakeHip):
    """A GPU of an architecture ('gfx90a'), whose kernels run."""

    def __init__(self, architecture: str):
        super().__init__(architecture, kind=CompilingDriver)
        self.driver.emulator = Processor(self, SUBGROUP_LANES[architecture])


class CompilingDriver(FakeDriver):
    """Compiles the kernels that are loaded together in one text."""

    def load_kernels(self, codes: Sequence[Code]) -> list[Kernel]:
        kernels = super().load_kernels(codes)
        self.emulator.compile({code.symbol: normal_form(kernel) for code, kernel in zip(codes, kernels, strict=True)})
        return kernels


class Processor:
    """Kernels of a GPU as functions of this process."""

    def __init__(self, gpu: FakeHip, subgroup_lanes: int):
        self.gpu, self.subgroup_lanes = gpu, subgroup_lanes
        self.functions: dict[str, Launch] = {}
        self.symbols: dict[Kernel, str] = {}

    def compile(self, kernels: Mapping[str, Kernel]) -> None:
        """Make functions of those kernels that have none yet."""
        self.symbols |= {kernel: symbol for symbol, kernel in kernels.items()}
        missing = [kernel for symbol, kernel in kernels.items() if symbol not in self.functions]
        if missing:
            symbols, text = clike_module.render_with_symbols(missing, self.gpu.dialect)
            self.functions |= load_functions(text, symbols, self.subgroup_lanes)

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        limits, geometry = self.gpu.device.limits, kernel.geometry
        assert geometry is not None
        words: list[Any] = [np.uint64(array.ctypes.data if array.size else 0) for array in arrays]
        words += [param.dtype.numpy.type(value) for param, value in zip(kernel.scalars, scalars, strict=True)]
        words += [np.int64(0), np.int64(extent)]
        workgroups = geometry.workgroups(extent, limits.workgroups, limits.processors)
        self.functions[self.symbols[kernel]](words, workgroups, geometry.lanes)


def load_functions(text: str, symbols: Sequence[str], subgroup_lanes: int) -> dict[str, Launch]:
    """What launches the kernels of a text with their arguments, numbers of NumPy, on workgroups of so many lanes."""
    # Memory that is asked for with a launch is an array of the header.
    source = text.replace("extern __shared__", "extern") + "".join(map(LAUNCH.format, symbols))
    library = compile_library(source, "-include", str(HEADER), f"-DSUBGROUP_LANES={subgroup_lanes}")
    return {symbol: functools.partial(_launch, getattr(library, f"launch_{symbol}"), symbol) for symbol in symbols}


def compile_library(text: str, *options: str) -> ctypes.CDLL:
    """A text for this processor."""
    assert CLANG is not None
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "library.so"))
        command = [CLANG, "-x", "c++", *OPTIONS, *options, "-o", file, "-", "-lm"]
        ended = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert not ended.returncode and not ended.stderr, f"{ended.stderr}\n{text}"
        return ctypes.CDLL(file)


def _launch(function: Any, symbol: str, arguments: Sequence[np.generic], workgroups: int, lanes: int) -> None:
    words = b"".join(argument.tobytes().ljust(8, b"\0") for argument in arguments)
    function.restype, stacks = ctypes.c_char_p, ctypes.c_void_p(_stacks().ctypes.data)
    failure = function(words, workgroups, lanes, stacks, ctypes.c_size_t(STACK_BYTES))
    assert failure is None, f"{symbol}: {failure.decode()}"


@functools.cache
def _stacks() -> np.ndarray:
    return np.empty(STACK_BYTES * MAX_LANES, np.uint8)
