"""Every kernel of this version's programs, scheduled for GPUs and printed as CUDA, compiles to machine code.

NVRTC needs no GPU and no driver. Kernels are printed once each and compiled in a few batches.
"""

from __future__ import annotations

import io

import pytest

from tests.unit.gpu_harness import HostBackend
from tests.unit.programs import PROGRAMS, results
from weft import dtypes
from weft.kernels import gpu
from weft.kernels.language import Kernel
from weft.kernels.nest import copy_nest
from weft.kernels.normal import normalise
from weft.render import clike
from weft.render.dialects import CUDA

core = pytest.importorskip("cuda.core", reason="NVRTC is not installed: pip install 'weft[cuda-compile]'")

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    """All kernels by their name in the source text."""
    plain = HostBackend("plain")
    hopper = HostBackend("hopper", ("subgroups",), {"threads": 1024, "shared_bytes": 232448})
    for program in PROGRAMS.values():
        results(program, plain.device)
        for small in (True, False):
            results(program, hopper.device, small)
    copies = [normalise(gpu.schedule(copy_nest(dtype))) for dtype in dtypes.ALL]
    return {clike.symbol(kernel, CUDA): kernel for kernel in (*plain.kernels, *hopper.kernels, *copies)}


def test_the_programs_make_every_kind_of_kernel(kernels):
    forms = {name.split("_")[0] for name in kernels}
    assert forms >= {"map", "rows", "cols", "split", "scatter", "segment", "dot"}
    assert len(kernels) > 60


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiles(kernels, architecture):
    source = clike.render_all(kernels.values(), CUDA)
    options = core.ProgramOptions(arch=architecture, std="c++17", fma=False)
    said = io.StringIO()
    code = core.Program(source, code_type="c++", options=options).compile("cubin", logs=said)
    assert said.getvalue() == ""
    for name in kernels:
        assert name.encode() in code.code
