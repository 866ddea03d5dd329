"""Machine code by hiprtc: kept on disk, the same kernel once; unknown architectures never reach it in this process."""

from __future__ import annotations

import subprocess
import sys
import zlib

import pytest

from tests.unit import hip_compilers
from weft.backends.hip import compile as hip_compile
from weft.base.counters import COUNTERS
from weft.errors import DeviceError
from weft.plan.plan import Code

pytestmark = pytest.mark.unit
needs_hiprtc = pytest.mark.skipif(
    not hip_compilers.has_hiprtc(), reason="hiprtc is not installed: apt-get install hipcc"
)
HALVED = 'extern "C" __global__ void halved(float* x)\n{\n    x[threadIdx.x] *= 0.5f;\n}\n'


def code(name: str, text: str) -> Code:
    return Code(name, name, (), None, zlib.compress(text.encode()))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))


@needs_hiprtc
def test_machine_code_is_kept_on_disk_and_equal_kernels_are_compiled_once():
    def counted(*codes: Code) -> tuple[int, int, list[bytes]]:
        before = COUNTERS.snapshot()
        made = hip_compile.code_objects(codes, "gfx90a")
        after = COUNTERS.snapshot()
        return (*(int(after[key] - before[key]) for key in ("kernels_compiled", "kernels_from_disk")), made)

    other = code("halved", HALVED.replace("0.5f", "0.25f"))
    made, read, first = counted(code("halved", HALVED), other, code("halved", HALVED))
    assert (made, read) == (2, 0) and first[0] == first[2] != first[1]
    assert all(one.startswith(b"\x7fELF") and b"halved" in one for one in first)
    made, read, again = counted(other, code("halved", HALVED))
    assert (made, read) == (0, 2) and again == first[1::-1]


@needs_hiprtc
def test_a_kernel_that_does_not_compile_is_named_and_shown():
    with pytest.raises(DeviceError) as caught:
        hip_compile.code_objects([code("halved", HALVED.replace("x[threadIdx.x]", "nonsense"))], "gfx1030")
    said = str(caught.value)
    assert "halved: given a kernel that hiprtc" in said and "does not compile for gfx1030" in said
    assert "undeclared identifier 'nonsense'" in said and "   3      nonsense *= 0.5f;" in said


@needs_hiprtc
def test_architectures_are_tried_in_a_child_process_once(monkeypatch):
    commands = []
    run = subprocess.run

    def noted(command, **options):
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    for _ in range(2):
        assert hip_compile.knows("gfx90a") and not hip_compile.knows("gfx9999")
    assert [command[-1] for command in commands] == ["gfx90a", "gfx9999"]
    assert all(command[0] == sys.executable for command in commands)


def test_a_machine_without_the_compiler(monkeypatch):
    monkeypatch.setattr(hip_compile, "_hiprtc", lambda: (_ for _ in ()).throw(OSError("there is none")))
    hip_compile.version.cache_clear()
    with pytest.raises(OSError, match="there is none"):
        hip_compile.version()


def test_an_answer_that_does_not_come_is_not_kept(monkeypatch):
    """A child that hangs leaves the architecture unused, until the next process asks again."""
    asked = []

    def hangs(command, **options):
        asked.append(command)
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(hip_compile, "version", lambda: "7.1")
    monkeypatch.setattr(subprocess, "run", hangs)
    assert not hip_compile.knows("gfx90a") and not hip_compile.knows("gfx90a")
    assert len(asked) == 2


def test_everything_that_a_compiler_is_given_is_in_the_key():
    given = {"text": "text", "architecture": "gfx90a", "compiler": "7.1 libhiprtc.so.7.1.0", "options": ("-O3",)}
    keys = {hip_compile.key_of(**given)}
    keys |= {hip_compile.key_of(**{**given, name: value + value}) for name, value in given.items()}
    assert len(keys) == 5
