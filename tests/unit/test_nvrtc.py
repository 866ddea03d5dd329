"""Every kernel of whole programs and networks, scheduled for GPUs and printed as CUDA, compiles without a warning.

For one architecture they are compiled as the CUDA backend does it, for others quickly. `test_nvrtc_records` has the
kernels of single operations.
"""

from __future__ import annotations

import itertools

import pytest

import weft
import weft.nn.functional as F
from tests.unit import nvrtc
from tests.unit.fake_cuda import FakeCuda
from tests.unit.gpu_harness import HostBackend
from tests.unit.networks import NETWORKS, Training
from tests.unit.programs import PROGRAMS, results
from weft import dtypes
from weft.kernels import gpu
from weft.kernels.language import Kernel
from weft.kernels.nest import copy_nest
from weft.kernels.normal import normalise
from weft.render import clike
from weft.render.dialects import CUDA

pytest.importorskip("cuda.bindings", reason="NVRTC is not installed: pip install 'weft[cuda-compile]'")


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    """All kernels by their name in the source text, also those for a GPU without exchanges between threads."""
    fake = FakeCuda()
    for program in PROGRAMS.values():
        for small in (True, False):
            results(program, fake.device, small)
    with weft.device(fake.device):
        for name in NETWORKS:
            for narrow in (None, weft.bfloat16):
                Training(name, narrow=narrow).step()
        for dtype, classes in itertools.product((weft.float32, weft.bfloat16), (50257, 50304, 130001)):
            x = weft.zeros((2, classes), dtype=dtype).requires_grad_()
            F.cross_entropy(x, weft.tensor([3, 7])).backward()
            weft.eval(x.grad, F.layer_norm(x.detach(), (classes,)))
    plain = HostBackend("plain")
    for program in PROGRAMS.values():
        results(program, plain.device)
    copies = [normalise(gpu.schedule(copy_nest(dtype))) for dtype in dtypes.ALL]
    return fake.kernels() | {clike.symbol(kernel, CUDA): kernel for kernel in (*plain.kernels, *copies)}


def test_the_programs_make_every_kind_of_kernel(kernels):
    forms = {name.split("_")[0] for name in kernels}
    assert forms >= {"map", "rows", "cols", "split", "scatter", "segment", "product"}
    assert len(kernels) > 60


def test_kernels_compile(kernels):
    found = nvrtc.complaints(kernels, nvrtc.QUICKLY, architectures=("sm_80", "sm_120"))
    assert not found, "\n".join(found[:3])


def test_kernels_compile_as_the_backend_compiles_them(kernels):
    found = nvrtc.complaints(kernels, architectures=("sm_90",))
    assert not found, "\n".join(found[:3])


def test_complaints_are_seen():
    """An unsigned number below 0 is a warning, and a warning is a complaint."""
    text = 'extern "C" __global__ void half(unsigned* x)\n{\n    if (x[0] < 0u) x[0] /= 2u;\n}\n'
    assert "pointless comparison of unsigned integer with zero" in nvrtc.said(text, "sm_90")
    assert "identifier" in nvrtc.said(text.replace("x[0] /= 2u", "y[0] /= 2u"), "sm_90")
    assert nvrtc.said(text.replace("x[0] < 0u", "x[0] < 9u"), "sm_90") == ""
