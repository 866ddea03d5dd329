"""LLVM IR text to machine code in this process, compiled once: in memory by the code's hash, then on disk.

llvmlite is imported when the first kernel is compiled, not before. Object files are kept by `weft.disk`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from weft import disk
from weft.backends import native, native_gemm
from weft.compiler.plan import Code
from weft.counting import COUNTERS
from weft.locks import new_lock

OBJECT_VERSION = 2


class Jit:
    """Compiles and loads. One per process; use `jit()`."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm: Any = llvm
        self.cpu = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        self.identity = f"{OBJECT_VERSION}|{self.cpu}|{self.features}|{llvm.llvm_version_info}"
        self.machine = self._target_machine()
        # use_lmm places code and constants of an object side by side, as the small code model needs.
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target_machine(), use_lmm=True)
        # Never freed: a daemon thread may still run its code while Python shuts down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.engine))
        self.addresses: dict[str, int] = {}
        self.lock = new_lock()

    def _target_machine(self) -> Any:
        target = self.llvm.Target.from_default_triple()
        return target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, reloc="pic", codemodel="small")

    def kernels(self, codes: Sequence[Code]) -> list[int]:
        """The addresses of the functions in `codes`."""
        with self.lock:
            missing = {code.symbol: code for code in codes if code.symbol not in self.addresses}
            COUNTERS.kernels_reused += len(codes) - len(missing)
            for symbol, code in missing.items():
                self._load(symbol, lambda code=code: code.text)  # type: ignore[misc]
            if missing:
                self.engine.finalize_object()
                for symbol in missing:
                    self.addresses[symbol] = self.engine.get_function_address(symbol)
        return [self.addresses[code.symbol] for code in codes]

    @functools.cached_property
    def runtime_addresses(self) -> dict[str, int]:
        """The addresses of the native runtime's functions."""
        text = native.runtime_ir() + native_gemm.module_part()
        with self.lock:
            self._load("runtime" + hashlib.sha256(text.encode()).hexdigest(), lambda: text, counted=False)
            self.engine.finalize_object()
            names = ("weft_run", "weft_stop", "weft_reset", "weft_sgemm", "weft_dgemm")
            return {name: self.engine.get_function_address(name) for name in names}

    def _load(self, symbol: str, text: Callable[[], str], counted: bool = True) -> None:
        """Add the code of one module to the engine, from disk where it is there."""
        key = hashlib.sha256(f"{self.identity}|{symbol}".encode()).hexdigest()
        payload = disk.read(disk.OBJECT, key)
        if payload is None:
            payload = self._compile(text())
            disk.write(disk.OBJECT, key, payload)
            COUNTERS.kernels_compiled += counted
        else:
            COUNTERS.kernels_from_disk += counted
        self.engine.add_object_file(self.llvm.ObjectFileRef.from_data(payload))

    def _compile(self, text: str) -> bytes:
        """IR to object code. The IR is vector code already: stack slots become registers, then code is generated."""
        llvm = self.llvm
        module = llvm.parse_assembly(text, llvm.create_context())
        builder = llvm.create_pass_builder(self.machine, llvm.PipelineTuningOptions(speed_level=0))
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.run(module, builder)
        payload: bytes = self.machine.emit_object(module)
        return payload


_lock = new_lock()
_create_jit = functools.cache(Jit)


def jit() -> Jit:
    """The one compiler of this process."""
    with _lock:
        return _create_jit()
