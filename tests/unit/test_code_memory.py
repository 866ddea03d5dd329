"""Machine code of kernels in memory: right code, few mappings for many kernels, what LLVM's loader takes instead."""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.backends.cpu.code_memory import CodeMemory
from weft.backends.cpu.jit import Jit, jit
from weft.errors import DeviceError
from weft.plan.plan import Code

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(
        sys.platform != "linux" or "x86_64" not in jit().target.triple, reason="other systems use LLVM's loader"
    ),
]


def polynomial(symbol: str, *factors: float) -> str:
    """The IR of a function of a double, with constants that lie beside the code."""
    lines = [f"define double @{symbol}(double %x) nounwind {{", "  %s0 = fadd double 0.0, 0.0"]
    for n, factor in enumerate(factors):
        lines.append(f"  %m{n} = fmul double %s{n}, %x")
        lines.append(f"  %s{n + 1} = fadd double %m{n}, 0x{np.float64(factor).view(np.uint64):016X}")
    return "\n".join([*lines, f"  ret double %s{len(factors)}", "}\n"])


def code(symbol: str, text: str) -> Code:
    return Code("test", symbol, (), None, zlib.compress(text.encode(), 1))


def call(address: int, x: float) -> float:
    return ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(x)


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_kernels_take_no_mapping_of_their_own():
    compiler = Jit()
    made = [code(f"many{n}", polynomial(f"many{n}", n + 0.5, n)) for n in range(300)]
    first = compiler.kernels(made[:1])  # the first piece of memory
    before = mappings()
    addresses = [*first, *compiler.kernels(made[1:])]
    assert mappings() - before < 20  # LLVM's loader needs 900
    assert compiler.foreign == 0
    assert [call(address, 2.0) for address in addresses] == [(n + 0.5) * 2 + n for n in range(300)]


def test_nothing_can_be_written_and_executed():
    compiler = Jit()
    (address,) = compiler.kernels([code("guarded", polynomial("guarded", 1.0))])
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [(*(int(end, 16) for end in line[0].split("-")), line[1]) for line in lines]
    (mode,) = [mode for start, end, mode in ranges if start <= address < end]
    assert mode == "r-xs"


@pytest.mark.parametrize("factors", [(1.0,), (0.1, 0.2), tuple(np.linspace(-3, 3, 40))])
def test_the_same_numbers_as_with_the_loader_of_llvm(factors, monkeypatch):
    ours, theirs = Jit(), Jit()
    monkeypatch.setattr(theirs.memory, "available", False)
    made = [code("same", polynomial("same", *factors))]
    (one,), (other,) = ours.kernels(made), theirs.kernels(made)
    assert (ours.foreign, theirs.foreign) == (0, 1)
    for x in (0.0, 1.0, -0.7, 1e30):
        assert call(one, x) == call(other, x)


def test_symbols_from_outside_are_left_to_llvm():
    text = "declare double @exp(double)\ndefine double @outside(double %x) nounwind {\n"
    text += "  %y = call double @exp(double %x)\n  ret double %y\n}\n"
    assert CodeMemory().load(jit()._compile(text)) is None
    assert CodeMemory().load(jit()._compile(text.replace("call double @exp(double %x)", "fadd double %x, %x")))


def test_memory_that_is_written_is_left_to_llvm():
    compiler = Jit()
    text = "@count = global i64 1\ndefine double @counts(double %x) nounwind {\n  %n = load i64, ptr @count\n"
    text += "  %m = add i64 %n, 1\n  store i64 %m, ptr @count\n  %f = uitofp i64 %m to double\n  ret double %f\n}\n"
    (address,) = compiler.kernels([code("counts", text)])
    assert compiler.foreign == 1
    assert [call(address, 0.0), call(address, 0.0)] == [2.0, 3.0]


@pytest.mark.parametrize("data", [b"\x7fELF\x01" + bytes(64), b"\xcf\xfa\xed\xfe" + bytes(64), bytes(64)])
def test_other_formats_are_not_read(data):
    assert CodeMemory().load(data) is None


def test_a_function_larger_than_a_piece(monkeypatch):
    monkeypatch.setattr("weft.backends.cpu.code_memory.PIECE_BYTES", 4096)
    compiler = Jit()
    factors = tuple(float(n % 7) for n in range(2000))
    made = [code("small", polynomial("small", 1.0, 2.0)), code("large", polynomial("large", *factors))]
    small, large = compiler.kernels(made)
    assert len(compiler.memory.pieces) == 2
    assert call(small, 3.0) == 5.0
    assert call(large, 1.0) == sum(factors)


def test_a_system_without_such_memory(monkeypatch):
    def refuse(*arguments):
        raise PermissionError("memfd_create")

    monkeypatch.setattr(os, "memfd_create", refuse)
    compiler = Jit()
    (address,) = compiler.kernels([code("refused", polynomial("refused", 1.0, 2.0))])
    assert compiler.foreign == 1 and not compiler.memory.available
    assert call(address, 3.0) == 5.0


def test_too_many_kernels_for_the_loader_of_llvm_are_an_error(monkeypatch):
    compiler = Jit()
    compiler.memory.available, compiler.most_foreign = False, 2
    for n in range(2):
        compiler.kernels([code(f"few{n}", polynomial(f"few{n}", 1.0 + n))])
    with pytest.raises(DeviceError, match=r"2 kernels in this process[\s\S]*start a new process"):
        compiler.kernels([code("one_more", polynomial("one_more", 5.0))])
    assert 1000 < jit().most_foreign < 10**9


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_parent_and_child_write_to_memory_of_their_own():
    """Both compile after a fork, and the memory of the parent's kernels is shared."""
    x = weft.arange(6.0)
    (x * 1.25).numpy()
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            right = [(x[: n + 1] * 3.5 + n).sum().item() == sum(k * 3.5 + n for k in range(n + 1)) for n in range(6)]
            os.write(ready[1], b"x")
            os.read(done[0], 1)  # the parent has compiled its own
            right += [(x[: n + 1] * 3.5 + n).sum().item() == sum(k * 3.5 + n for k in range(n + 1)) for n in range(6)]
            status = 0 if all(right) else 2
        finally:
            os._exit(status)
    assert os.read(ready[0], 1) == b"x"
    for n in range(6):
        assert (x[: n + 1] * 4.5 - n).max().item() == n * 4.5 - n
    os.write(done[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
