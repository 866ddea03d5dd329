"""LLVM IR text to machine code in this process, compiled once: in memory by the code's hash, then on disk.

llvmlite is imported when the first kernel is compiled, not before. A cache file holds one object file behind a header
with its length and checksum; a file that does not check is ignored and written again. The folder is `WEFT_CACHE_DIR`,
else `$XDG_CACHE_HOME/weft`, else `~/.cache/weft`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import struct
import tempfile
import threading
import time
from typing import Any

from weft.backends import native, native_gemm
from weft.counting import COUNTERS
from weft.render import llvm as render

CACHE_VERSION = 1
_MAGIC = b"weft object\n"
_HEADER = struct.Struct("<12sQ32s")


def cache_folder() -> str:
    """Where compiled kernels are kept between processes."""
    chosen = os.environ.get("WEFT_CACHE_DIR")
    if chosen:
        return chosen
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "weft")


def read_object(path: str) -> bytes | None:
    """The object in a cache file, or None where there is none or it is damaged."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        magic, length, digest = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    payload = data[_HEADER.size :]
    if magic != _MAGIC or length != len(payload) or hashlib.sha256(payload).digest() != digest:
        return None
    return payload


def write_object(path: str, payload: bytes) -> None:
    """Write a cache file so that a reader sees all of it or nothing. A folder that cannot be written is no error."""
    header = _HEADER.pack(_MAGIC, len(payload), hashlib.sha256(payload).digest())
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
        with os.fdopen(handle, "wb") as file:
            file.write(header + payload)
        os.replace(temporary, path)


class Jit:
    """Compiles and loads. One per process; use `jit()`."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm: Any = llvm
        self.cpu = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        self.identity = f"{CACHE_VERSION}|{self.cpu}|{self.features}|{llvm.llvm_version_info}"
        self.machine = self._target_machine()
        # use_lmm places code and constants of an object side by side, as the small code model needs.
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target_machine(), use_lmm=True)
        # Never freed: a daemon thread may still run its code while Python shuts down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.engine))
        self.addresses: dict[str, int] = {}
        self.lock = threading.Lock()

    def _target_machine(self) -> Any:
        target = self.llvm.Target.from_default_triple()
        return target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, reloc="pic", codemodel="small")

    def kernels(self, texts: list[str]) -> list[int]:
        """The addresses of the functions that `render` printed in `texts`."""
        started = time.perf_counter()
        symbols = [render.symbol_of(text) for text in texts]
        with self.lock:
            missing = {
                symbol: text for symbol, text in zip(symbols, texts, strict=True) if symbol not in self.addresses
            }
            COUNTERS.kernels_reused += len(texts) - len(missing)
            for symbol, text in missing.items():
                self._load(symbol, text)
            if missing:
                self.engine.finalize_object()
                for symbol in missing:
                    self.addresses[symbol] = self.engine.get_function_address(symbol)
        COUNTERS.compile_seconds += time.perf_counter() - started
        return [self.addresses[symbol] for symbol in symbols]

    @functools.cached_property
    def runtime_addresses(self) -> dict[str, int]:
        """The addresses of the native runtime's functions."""
        text = native.runtime_ir() + native_gemm.module_part()
        with self.lock:
            self._load("runtime" + hashlib.sha256(text.encode()).hexdigest(), text, counted=False)
            self.engine.finalize_object()
            names = ("weft_run", "weft_stop", "weft_reset", "weft_sgemm", "weft_dgemm")
            return {name: self.engine.get_function_address(name) for name in names}

    def _load(self, key: str, text: str, counted: bool = True) -> None:
        """Add the code of one module to the engine, from disk where it is there."""
        name = hashlib.sha256(f"{self.identity}|{key}".encode()).hexdigest()
        path = os.path.join(cache_folder(), name[:2], name[2:] + ".o")
        payload = read_object(path)
        if payload is None:
            payload = self._compile(text)
            write_object(path, payload)
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


_lock = threading.Lock()
_create_jit = functools.cache(Jit)


def jit() -> Jit:
    """The one compiler of this process."""
    with _lock:
        return _create_jit()
