"""What the CPU backend needs of a system: the native runtime and kernels compile for Windows, macOS and ARM64 and call
only what these have, and networks train with the same numbers where functions of Linux are missing. Nothing here
runs on those systems; `make lint` checks types for Windows and macOS."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import weft
from tests.replay.devices import Renderer, cpu
from tests.unit.programs import PROGRAMS, Make
from weft.backends.cpu import code_memory, runtime, runtime_gemm, runtime_threads
from weft.kernels.ir.language import Kernel
from weft.render.llvm import memory_access
from weft.render.llvm import module as llvm_module

LINUX, WINDOWS, MACOS = "Linux", "Windows", "Darwin"
# System, processor, and the processor's triple as LLVM has it there.
TARGETS = [
    (LINUX, "x86_64", "x86_64-unknown-linux-gnu"),
    (LINUX, "aarch64", "aarch64-unknown-linux-gnu"),
    (WINDOWS, "AMD64", "x86_64-pc-windows-msvc"),
    (WINDOWS, "ARM64", "aarch64-pc-windows-msvc"),
    (MACOS, "arm64", "arm64-apple-darwin22"),
]
POSIX = {
    "clock_gettime", "sched_yield", "pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock",
    "pthread_cond_init", "pthread_cond_wait", "pthread_cond_broadcast", "pthread_create", "pthread_join",
}  # fmt: skip


@functools.cache
def prepare() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def compile_for(triple: str, text: str) -> tuple[bytes, set[str]]:
    """An object file as the backend makes it, and the functions that it does not define."""
    prepare()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    missing = {one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")}
    return machine.emit_object(module), missing


def undefined_symbols(data: bytes) -> set[str]:
    """The symbols that an ELF file for x86-64 wants from outside, those that LLVM itself added included."""
    sections = code_memory._sections(data)
    symbols, names = code_memory._symbols(data, sections)
    starts = [names.offset + one.name for one in symbols if one.section == 0 and one.name]
    return {data[start : data.index(b"\0", start)].decode() for start in starts}


@pytest.mark.parametrize(("system", "machine", "triple"), TARGETS)
def test_the_runtime_calls_what_the_system_has(system, machine, triple):
    text = runtime.runtime_ir(system, machine) + runtime_gemm.module_part()
    _, missing = compile_for(triple + runtime_threads.object_format(system, machine), text)
    there = set(runtime_threads.LIBRARIES["kernel32"]) if system == WINDOWS else POSIX
    assert missing == there


def test_windows_gives_every_symbol_that_llvm_adds():
    """`__chkstk` in functions with large frames, `fma` where a processor has no instruction for it."""
    text = runtime.runtime_ir(WINDOWS, "AMD64") + runtime_gemm.module_part()
    payload, _ = compile_for("x86_64-pc-windows-msvc" + runtime_threads.object_format(WINDOWS, "AMD64"), text)
    assert payload.startswith(b"\x7fELF")
    large = "define void @f(ptr %to) {\n  %a = alloca [9000 x i8]\n  store ptr %a, ptr %to\n  ret void\n}\n"
    frame, _ = compile_for("x86_64-pc-windows-msvc-elf", large)
    there = {name for names in runtime_threads.LIBRARIES.values() for name in names}
    assert undefined_symbols(frame) == {"__chkstk"}
    assert undefined_symbols(frame) | undefined_symbols(payload) <= there


@functools.cache
def kernels() -> tuple[Kernel, ...]:
    """Those of programs that between them make every kind of kernel, for a CPU with registers of 32 bytes."""
    device = cpu()
    for program in PROGRAMS.values():
        weft.eval(*program(Make(device)))
    assert isinstance(device.backend, Renderer)
    return tuple(device.backend.kernels.values())


@pytest.mark.slow
@pytest.mark.parametrize(("system", "machine", "triple"), TARGETS[1:])
def test_kernels_compile_for_other_processors(system, machine, triple, monkeypatch):
    """They have nothing of x86's own where the processor is another, and call no function of a library."""
    is_x86 = machine in ("x86_64", "AMD64")
    monkeypatch.setattr(memory_access, "CAN_STREAM_STORES", is_x86)
    assert len(kernels()) > 80
    for kernel in kernels():
        text = llvm_module.render(kernel)
        assert is_x86 or "llvm.x86" not in text, kernel.name
        _, missing = compile_for(triple + runtime_threads.object_format(system, machine), text)
        assert not missing, kernel.name


WITHOUT_LINUX = """
import mmap, multiprocessing, os, platform, signal, subprocess, sys, sysconfig, tempfile
sysconfig.get_config_vars()  # as much of Python itself as Weft uses is loaded before Linux is hidden
import numpy, llvmlite.binding, ml_dtypes
for name in ("memfd_create", "MFD_CLOEXEC", "sched_getaffinity"):
    delattr(os, name)
if SYSTEM == "win32":
    for name in ("O_NONBLOCK", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "geteuid", "getuid", "fchmod", "fork",
                 "register_at_fork", "sysconf"):
        delattr(os, name)
    for name in ("pthread_sigmask", "SIGHUP", "SIGKILL"):
        delattr(signal, name)
    for name in ("MAP_SHARED", "PROT_READ", "PROT_WRITE", "PROT_EXEC"):
        delattr(mmap, name)
    os.supports_dir_fd, os.supports_fd = set(), set()
sys.platform = SYSTEM
open_file, open_path, utime, replace = open, os.open, os.utime, os.replace

def open_nothing_of_linux(path, *rest, **more):
    if str(path).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(path)
    return open_file(path, *rest, **more)

def open_no_folder(path, *rest, dir_fd=None):
    assert dir_fd is None
    if os.path.isdir(path):
        raise PermissionError(path)
    return open_path(path, *rest)

def utime_of_a_path(path, *rest, dir_fd=None):
    assert dir_fd is None and not isinstance(path, int)
    utime(path, *rest)

def replace_what_is_not_mapped(source, target, **folders):
    with open_file("/proc/self/maps") as maps:
        if str(target) in maps.read():
            raise PermissionError(target)
    replace(source, target, **folders)

import builtins
builtins.open = open_nothing_of_linux
if SYSTEM == "win32":
    os.open, os.utime, os.replace = open_no_folder, utime_of_a_path, replace_what_is_not_mapped
"""

TRAINING = """
import weft
from weft import nn
from weft.backends.cpu import runtime_threads
runtime_threads.system_symbols = dict  # Windows' own libraries are not here
weft.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 3))
optimizer = weft.optim.AdamW(model.parameters(), lr=0.01)
x, y = weft.randn(16, 1, 8, 8), weft.randint(0, 3, (16,))

@weft.compile
def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

losses = [step(x, y).item() for _ in range(5)]
weft.save(model.state_dict(), PATH)
weft.save(model.state_dict(), PATH)  # over the file that is there
assert all((weft.load(PATH)[name] == value).all().item() for name, value in model.state_dict().items())
weft.save({"large": weft.zeros(600, 600)}, PATH)
loaded = weft.load(PATH)
weft.save({"large": loaded["large"] + 1}, PATH)  # while tensors of the file are in use
print(losses, weft.counters()["kernels_compiled"] == 0)
"""


def train(before: str, folder: Path) -> str:
    code = before + TRAINING.replace("PATH", repr(str(folder / "model.safetensors")))
    environment = {**os.environ, "WEFT_CACHE_DIR": str(folder / "kernels"), "PYTHONWARNINGS": "error"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_training_without_what_only_linux_has(system, tmp_path):
    """Same losses, and the second process finds the kernels of the first on disk."""
    (tmp_path / "linux").mkdir()
    losses, was_cached = train("", tmp_path / "linux").rsplit(None, 1)
    assert was_cached == "False"
    before = WITHOUT_LINUX.replace("SYSTEM", repr(system))
    for cached in ("False", "True"):
        assert train(before, tmp_path).rsplit(None, 1) == [losses, cached]
    left = [path.name for path in tmp_path.rglob("*.tmp")]
    assert not left
