"""Compiles many kernels for AMD GPUs, without one: with hiprtc, and where it does not know an architecture with clang.

Kernels are printed together, a batch to a program, since a program costs as much as twenty kernels. Each batch is
compiled in a child process: hiprtc ends the process that gives it an architecture that it does not know. For an
architecture that is newer than clang, clang makes LLVM's intermediate form for an older one of the kind, and LLVM of
llvmlite, which is newer, makes machine code of it. Which batches were compiled without a word is kept on disk, as
compiled kernels are: only what changed is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.unit import nvrtc
from weft.backends.hip import backend as hip_backend
from weft.backends.hip import compile as hip_compile
from weft.base import disk
from weft.kernels.ir.language import Kernel
from weft.render.clike import module as clike_module

BATCH = 160  # kernels, about
SECONDS = 900
BUILTINS = Path(__file__).with_name("hip_builtins.h")
# Loops too long to be written out are left as they are, and a program may compare a value with itself.
QUICKLY = ("-O1", "-Wno-pass-failed", "-Wno-tautological-compare")
CLANG = next((path for path in map(shutil.which, ("clang", "clang-17", "clang-15")) if path), None)
FREE = ("--cuda-device-only", "-nogpulib", "-nogpuinc", "-include", str(BUILTINS))  # of ROCm's files
NEWER = {"gfx942": "gfx90a", "gfx950": "gfx90a", "gfx1200": "gfx1030"}  # than clang 15, and what is like them

BY_HIPRTC = """
import sys
from weft.backends.hip import compile as hip_compile
made, log = hip_compile.compile_text(sys.stdin.read(), *sys.argv[1:])
sys.stdout.buffer.write(log)
sys.exit(made is None or not made.startswith(b"\\x7fELF"))
"""
BY_LLVM = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
triple = "amdgcn-amd-amdhsa"
module = llvm.parse_assembly(sys.stdin.read())
machine = llvm.Target.from_triple(triple).create_target_machine(cpu=sys.argv[1], opt=1)
module.triple, module.data_layout = triple, str(machine.target_data)
sys.exit(not machine.emit_object(module).startswith(b"\\x7fELF"))
"""


@functools.cache
def has_hiprtc() -> bool:
    try:
        return bool(hip_compile.version())
    except OSError:
        return False


@functools.cache
def clang_version() -> str:
    """Empty where there is no clang that compiles for AMD GPUs."""
    if CLANG is None:
        return ""
    targets = subprocess.run([CLANG, "-print-targets"], capture_output=True, text=True, check=False).stdout
    return subprocess.check_output([CLANG, "--version"], text=True) if "amdgcn" in targets else ""


def ask(source: str, architecture: str) -> str:
    """What a compiler says about a text for an architecture: errors, warnings, how its process ended, or nothing."""
    if architecture in NEWER:
        return _remember(source, architecture, clang_version(), lambda: _by_llvm(source, architecture))
    if architecture.startswith("gfx11"):
        return _remember(source, architecture, clang_version(), lambda: _run(_clang(architecture, "-S"), source)[0])
    command = [sys.executable, "-c", BY_HIPRTC, architecture, *QUICKLY]
    return _remember(source, architecture, hip_compile.version(), lambda: _run(command, source)[0])


def _clang(architecture: str, *form: str) -> list[str]:
    assert CLANG is not None
    options = (*hip_compile.OPTIONS, *QUICKLY, *form)
    return [CLANG, "-x", "hip", f"--offload-arch={architecture}", *FREE, *options, "-o", "-", "-"]


def _by_llvm(source: str, architecture: str) -> str:
    said, text = _run(_clang(NEWER[architecture], "-S", "-emit-llvm"), source)
    if said:
        return said
    text = re.sub(r'"target-cpu"="\w+"', f'"target-cpu"="{architecture}"', text)
    text = re.sub(r' "target-features"="[^"]*"', "", text)
    return _run([sys.executable, "-c", BY_LLVM, architecture], text)[0]


def _run(command: list[str], source: str) -> tuple[str, str]:
    """(what was said, what was written)."""
    ended = subprocess.run(command, input=source, capture_output=True, text=True, timeout=SECONDS, check=False)
    is_clang = command[0] == CLANG
    said = (ended.stderr if is_clang else ended.stdout + ended.stderr).strip("\0\n ")
    if ended.returncode and not said:
        said = f"the compiler ended with status {ended.returncode}"
    return said, ended.stdout


def _remember(source: str, architecture: str, version: str, compiled) -> str:
    words = (architecture, version, QUICKLY, FREE, BUILTINS.read_text(), hip_compile.OPTIONS)
    key = hashlib.sha256(f"silent|{words}|{source}".encode()).hexdigest()
    if disk.read(disk.OBJECT, key) is not None:
        return ""
    said = compiled()
    if not said:
        disk.write(disk.OBJECT, key, b"")
    return said


def complaints(kernels: Mapping[str, Kernel], architectures: Sequence[str]) -> list[str]:
    """Every kernel that does not compile without a word: its name, the words, its text."""

    def look(batch: Sequence[Kernel], architecture: str) -> list[str]:
        symbols, text = clike_module.render_with_symbols(batch, hip_backend.dialect_of(architecture))
        said = ask(text, architecture)
        if not said or len(batch) == 1:
            return [f"{symbols[0]} for {architecture}: {said}\n{text}"] if said else []
        half = len(batch) // 2
        return look(batch[:half], architecture) + look(batch[half:], architecture)

    jobs = [(batch, name) for batch in nvrtc.batches(kernels, BATCH) for name in architectures]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [text for found in pool.map(look, *zip(*jobs, strict=True)) for text in found]
