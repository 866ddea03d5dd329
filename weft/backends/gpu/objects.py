"""Machine code of kernels: compiled in several threads at a time, kept on disk. The compiler is the caller's."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Sequence

from weft.base import disk
from weft.base.counters import COUNTERS
from weft.base.errors import DeviceError, problem
from weft.plan.plan import Code

MAX_COMPILE_THREADS = 16


def compile_missing(codes: Sequence[Code], keys: Sequence[str], compile_code: Callable[[Code], bytes]) -> list[bytes]:
    """The machine code of each kernel, from disk where it is there under its key; the rest is compiled and kept."""
    found = {key: disk.read(disk.OBJECT, key) for key in dict.fromkeys(keys)}
    missing = {key: code for key, code in zip(keys, codes, strict=True) if found[key] is None}
    COUNTERS.kernels_from_disk += len(found) - len(missing)
    COUNTERS.kernels_compiled += len(missing)

    def compile_and_store(key: str, code: Code) -> bytes:
        made = compile_code(code)
        disk.write(disk.OBJECT, key, made)
        return made

    threads = min(len(missing), MAX_COMPILE_THREADS, os.cpu_count() or 1)
    if threads:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            found |= zip(missing, pool.map(compile_and_store, missing, missing.values()), strict=True)
    return [found[key] or b"" for key in keys]


def compile_failure(code: Code, compiler: str, architecture: str, log: bytes) -> Exception:
    """The error for a kernel that does not compile: its name, what the compiler said, and the text."""
    lines = [f"{number:4d}  {line}" for number, line in enumerate(code.text.splitlines(), 1)]
    said = log.rstrip(b"\0").decode(errors="replace").strip()
    given = f"a kernel that {compiler} does not compile for {architecture}:\n{said}\n" + "\n".join(lines) + "\n"
    return problem(DeviceError, code.name, given, fix="this is a fault of Weft: please report it with this text")
