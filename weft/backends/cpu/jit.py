"""LLVM IR text to machine code in this process, compiled once: in memory by the code's hash, then on disk.

llvmlite is imported when the first kernel is compiled, not before. Kernels are loaded into memory by `CodeMemory`, the
runtime and what that does not know by LLVM's loader. Object files are kept by `weft.base.disk`, under a key
of the text that was compiled and of all else that decides the machine code (`Target`).
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.backends.cpu import runtime as cpu_runtime
from weft.backends.cpu import runtime_gemm
from weft.backends.cpu.code_memory import CodeMemory
from weft.backends.cpu.runtime_threads import object_format, system_symbols
from weft.base import disk
from weft.base.counters import COUNTERS
from weft.base.digest import digest
from weft.base.errors import DeviceError, GraphError, problem
from weft.base.locks import new_lock
from weft.plan.plan import Code

OBJECT_VERSION = 3
OPTIMIZE, RELOCATION, CODE_MODEL = 2, "pic", "small"
MAPPINGS_PER_OBJECT = 3  # of memory, for each object file that LLVM's loader takes: code, constants, data
PASSES = ("sroa",)  # the IR is vector code already: stack slots become registers, then code is generated


@dataclass(frozen=True, slots=True)
class Target:
    """What machine code depends on beside the text that it is compiled from."""

    version: int  # of how object files are made here
    triple: str
    cpu: str
    features: str
    llvm: tuple[int, ...]
    llvmlite: str
    optimize: int
    relocation: str
    code_model: str
    passes: tuple[str, ...]

    def key(self, text: str) -> str:
        """The name under which the object file of an IR text is kept. Its comments, such as the first line with the
        name of a kernel, decide nothing."""
        lines = [line for line in text.splitlines() if not line.startswith(";")]
        return digest(kind=disk.OBJECT, target=self, text="\n".join(lines))


class Jit:
    """Compiles and loads. One per process; use `jit()`."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm: Any = llvm
        triple = llvm.get_default_triple() + object_format(platform.system(), platform.machine())
        self.target = Target(
            OBJECT_VERSION, triple, llvm.get_host_cpu_name(),
            llvm.get_host_cpu_features().flatten(), tuple(llvm.llvm_version_info), llvmlite.__version__,
            OPTIMIZE, RELOCATION, CODE_MODEL, PASSES,
        )  # fmt: skip
        for name, address in system_symbols().items():
            llvm.add_symbol(name, address)
        self.features = self.target.features
        self.identity = digest(target=self.target)
        self.machine = self._target_machine()
        # use_lmm places code and constants of an object next to each other, as the small code model needs.
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target_machine(), use_lmm=True)
        # Never freed: a daemon thread may still run its code while Python shuts down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.engine))
        self.memory = CodeMemory()
        self.foreign = 0  # object files that LLVM's loader took
        self.addresses: dict[str, int] = {}
        self.lock = new_lock()

    def _target_machine(self) -> Any:
        about = self.target
        return self.llvm.Target.from_triple(about.triple).create_target_machine(
            cpu=about.cpu, features=about.features, opt=about.optimize, reloc=about.relocation,
            codemodel=about.code_model,
        )  # fmt: skip

    def kernels(self, codes: Sequence[Code]) -> list[int]:
        """The addresses of the functions in `codes`."""
        with self.lock:
            self._load(codes)
        return [self.addresses[code.symbol] for code in codes]

    def _load(self, codes: Sequence[Code]) -> None:
        """Compile, or load from disk, those that are not there."""
        missing = {code.symbol: code for code in codes if code.symbol not in self.addresses}
        COUNTERS.kernels_reused += len(codes) - len(missing)
        left = []
        for code in missing.values():
            if code.symbol in self.addresses:  # by a finalizer or signal handler meanwhile
                continue
            payload = self._object_file(code.text)
            loaded = self.memory.load(payload)
            if loaded is not None and code.symbol in loaded:
                self.addresses[code.symbol] = loaded[code.symbol]
            else:
                self._add(payload, code.name)
                left.append(code)
        if left:
            self.engine.finalize_object()
            self.addresses |= {code.symbol: self._address(code.symbol, code.name) for code in left}

    @functools.cached_property
    def runtime_addresses(self) -> dict[str, int]:
        """The addresses of the native runtime's functions."""
        text = cpu_runtime.runtime_ir() + runtime_gemm.module_part()
        return self.load_functions(text, ("weft_run", "weft_stop", "weft_reset", "weft_sgemm", "weft_dgemm"), "runtime")

    def load_functions(self, text: str, symbols: Sequence[str], name: str) -> dict[str, int]:
        """The addresses of functions that are no kernels, by symbol."""
        with self.lock:  # loops in here may miss the end of the block when interrupted: see weft/base/locks.py
            self._load_functions(text, symbols, name)
        return {symbol: self.addresses[symbol] for symbol in symbols}

    def _load_functions(self, text: str, symbols: Sequence[str], name: str) -> None:
        if self.addresses.keys() >= set(symbols):
            return
        self._add(self._object_file(text, counted=False), name)
        self.engine.finalize_object()
        self.addresses |= {symbol: self._address(symbol, name) for symbol in symbols}

    def _address(self, symbol: str, name: str) -> int:
        """Where a function that was loaded lies; there is no calling one that is not there."""
        found: int = self.engine.get_function_address(symbol)
        if not found:
            raise problem(GraphError, name, f"machine code without {symbol}", "the function that was compiled")
        return found

    def _object_file(self, text: str, counted: bool = True) -> bytes:
        """The code of one module, from disk where it is there."""
        key = self.target.key(text)
        payload = disk.read(disk.OBJECT, key)
        if payload is None:
            payload = self._compile(text)
            disk.write(disk.OBJECT, key, payload)
            COUNTERS.kernels_compiled += counted
        else:
            COUNTERS.kernels_from_disk += counted
        return payload

    def _add(self, payload: bytes, name: str) -> None:
        """Pass an object file to LLVM's loader, which maps each apart: a process has only so many mappings, and LLVM
        crashes where there are no more."""
        if self.foreign >= self.most_foreign:
            raise problem(
                DeviceError, name, f"{self.foreign:,} kernels in this process", f"at most {self.most_foreign:,}",
                "start a new process, or raise vm.max_map_count with sysctl",
            )  # fmt: skip
        self.foreign += 1
        self.engine.add_object_file(self.llvm.ObjectFileRef.from_data(payload))

    @functools.cached_property
    def most_foreign(self) -> int:
        """How many object files LLVM's loader can take before this process has no mappings left."""
        try:
            with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
                return int(file.read()) * 9 // 10 // MAPPINGS_PER_OBJECT
        except (OSError, ValueError):  # other systems have no such limit
            return sys.maxsize

    def _compile(self, text: str) -> bytes:
        """IR to object code."""
        llvm = self.llvm
        module = llvm.parse_assembly(text, llvm.create_context())
        builder = llvm.create_pass_builder(self.machine, llvm.PipelineTuningOptions(speed_level=0))
        passes = llvm.create_new_module_pass_manager()
        for name in self.target.passes:
            getattr(passes, f"add_{name}_pass")()
        passes.run(module, builder)
        payload: bytes = self.machine.emit_object(module)
        return payload


_lock = new_lock()
_jits: list[Jit] = []  # one at most


def jit() -> Jit:
    """The one compiler of this process."""
    with _lock:
        if not _jits:
            made = Jit()
            if not _jits:  # else a finalizer or signal handler was faster
                _jits.append(made)
        return _jits[0]
