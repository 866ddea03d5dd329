"""Machine code by NVRTC: kept on disk, the same kernel once, and a kernel that does not compile is named and shown."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from weft.backends.cuda import compile as cuda_compile
from weft.backends.gpu import objects
from weft.base import disk
from weft.base.counters import COUNTERS
from weft.errors import DeviceError
from weft.plan.plan import Code

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed: pip install 'weft[cuda-compile]'")

HALVED = 'extern "C" __global__ void halved(float* x)\n{\n    x[threadIdx.x] *= 0.5f;\n}\n'


def code(name: str, text: str) -> Code:
    return Code(name, name, (), None, zlib.compress(text.encode()))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))


def counted(*codes: Code) -> tuple[int, int, list[bytes]]:
    """(compiled, read from disk, machine code)."""
    before = COUNTERS.snapshot()
    made = cuda_compile.cubins(codes, "sm_90")
    after = COUNTERS.snapshot()
    return (*(int(after[key] - before[key]) for key in ("kernels_compiled", "kernels_from_disk")), made)


def test_machine_code_is_kept_on_disk():
    first = counted(code("halved", HALVED))
    again = counted(code("halved", HALVED))
    assert first[:2] == (1, 0) and again[:2] == (0, 1)
    assert first[2] == again[2] and b"halved" in first[2][0]


def test_equal_kernels_are_compiled_once():
    other = HALVED.replace("0.5f", "0.25f")
    made, read, cubins = counted(code("halved", HALVED), code("halved", other), code("halved", HALVED))
    assert (made, read) == (2, 0)
    assert cubins[0] == cubins[2] != cubins[1]


def test_a_damaged_file_is_compiled_again():
    first = counted(code("halved", HALVED))[2]
    for path in Path(disk.folder()).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-5] + b"wrong")
    assert counted(code("halved", HALVED)) == (1, 0, first)


def test_what_was_compiled_before_a_failure_is_kept():
    good = [code(name, HALVED.replace("halved", name)) for name in ("one", "two", "three")]
    with pytest.raises(DeviceError, match="halved"):
        counted(*good, code("halved", "nonsense"))
    made, read, _ = counted(*good)
    assert made + read == 3 and read >= 1


def test_nothing_is_begun_after_an_interrupt(monkeypatch):
    begun = []

    def interrupted(code, architecture):
        begun.append(code.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(cuda_compile, "compile_code", interrupted)
    monkeypatch.setattr(objects, "MAX_COMPILE_THREADS", 2)
    with pytest.raises(KeyboardInterrupt):
        cuda_compile.cubins([code(f"k{n}", HALVED.replace("0.5f", f"{n}.0f")) for n in range(50)], "sm_90")
    assert len(begun) < 50


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert counted(code("halved", HALVED))[:2] == counted(code("halved", HALVED))[:2] == (1, 0)


def test_processes_may_write_the_same_kernel_at_once():
    program = (
        "import sys, zlib; from weft.backends.cuda import compile as cuda_compile; from weft.plan.plan import Code\n"
        "texts = [sys.argv[1].replace('0.5f', f'{n}.0f') for n in range(12)]\n"
        "codes = [Code('halved', 'halved', (), None, zlib.compress(text.encode())) for text in texts]\n"
        "import hashlib; print(hashlib.sha256(b''.join(cuda_compile.cubins(codes, 'sm_90'))).hexdigest())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    command = [sys.executable, "-c", program, HALVED]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=100)[0] for process in running}
    assert len(said) == 1 and len(said.pop()) == 65
    assert sum(file.kind == disk.OBJECT for file in disk.files()) == 12


def test_reading_one_byte_changes_no_byte_of_others():
    """Python shares short bytes: NVRTC must not write into them, as it would for an empty log."""

    def get(program, data):
        view = (ctypes.c_char * 1).from_buffer(data)
        view[0] = b"\0"
        return (nvrtc.nvrtcResult.NVRTC_SUCCESS,)

    assert cuda_compile._text(lambda program: (nvrtc.nvrtcResult.NVRTC_SUCCESS, 1), get, None) == b"\0"
    assert bytes([32]) == b" "


def test_another_architecture_is_other_code():
    one, two = (cuda_compile.cubins([code("halved", HALVED)], name)[0] for name in ("sm_80", "sm_90"))
    assert one != two


def test_a_kernel_that_does_not_compile_is_named_and_shown():
    with pytest.raises(DeviceError) as error:
        cuda_compile.cubins([code("halved", HALVED.replace("x[threadIdx.x]", "nonsense"))], "sm_90")
    said = str(error.value)
    assert said.startswith("halved: given a kernel that NVRTC") and "for sm_90" in said
    assert 'identifier "nonsense" is undefined' in said and "   3      nonsense *= 0.5f;" in said
