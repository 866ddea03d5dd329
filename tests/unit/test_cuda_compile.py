"""Machine code by NVRTC: kept on disk, the same kernel once, and a kernel that does not compile is named and shown."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from weft import disk
from weft.backends import cuda_compile
from weft.compiler.plan import Code
from weft.counting import COUNTERS
from weft.errors import DeviceError

pytest.importorskip("cuda.bindings", reason="NVRTC is not installed: pip install 'weft[cuda-compile]'")

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


def test_another_architecture_is_other_code():
    one, two = (cuda_compile.cubins([code("halved", HALVED)], name)[0] for name in ("sm_80", "sm_90"))
    assert one != two


def test_a_kernel_that_does_not_compile_is_named_and_shown():
    with pytest.raises(DeviceError) as error:
        cuda_compile.cubins([code("halved", HALVED.replace("x[threadIdx.x]", "nonsense"))], "sm_90")
    said = str(error.value)
    assert said.startswith("halved: given a kernel that NVRTC") and "for sm_90" in said
    assert 'identifier "nonsense" is undefined' in said and "   3      nonsense *= 0.5f;" in said
