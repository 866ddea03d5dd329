"""Every kernel of whole programs and networks, scheduled for GPUs and printed as CUDA, compiles without a warning.

All go through the front end; those that together have every form of all are made into machine code: for one
architecture as the CUDA backend does it, for others quickly. `test_nvrtc_records` has the kernels of single operations.
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
from weft.base import dtypes
from weft.kernels.gpu import schedule as gpu_schedule
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.nest import copy_nest
from weft.kernels.ir.normalize import normalise
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import CUDA

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
    copies = [normalise(gpu_schedule.schedule(copy_nest(dtype))) for dtype in dtypes.ALL]
    return fake.kernels() | {clike_module.symbol(kernel, CUDA): kernel for kernel in (*plain.kernels, *copies)}


def test_the_programs_make_every_kind_of_kernel(kernels):
    forms = {name.split("_")[0] for name in kernels}
    assert forms >= {"map", "rows", "cols", "split", "scatter", "segment", "product"}
    assert len(kernels) > 60


@pytest.fixture(scope="module")
def chosen(kernels) -> dict[str, Kernel]:
    """Kernels that together have every form."""
    return nvrtc.representatives(kernels, set())


def test_kernels_have_no_errors_or_warnings(kernels):
    found = nvrtc.complaints(kernels, nvrtc.SYNTAX, architectures=("compute_90",))
    assert not found, "\n".join(found[:3])


def test_kernels_compile(chosen):
    assert len(chosen) > 60
    found = nvrtc.complaints(chosen, nvrtc.QUICKLY, architectures=("sm_80", "sm_120"))
    assert not found, "\n".join(found[:3])


def test_kernels_compile_as_the_backend_compiles_them(chosen):
    found = nvrtc.complaints(chosen, architectures=("sm_90",))
    assert not found, "\n".join(found[:3])


def test_complaints_are_seen():
    """An unsigned number below 0 is a warning, and a warning is a complaint."""
    text = 'extern "C" __global__ void half(unsigned* x)\n{\n    if (x[0] < 0u) x[0] /= 2u;\n}\n'
    for architecture, options in (("sm_90", ()), ("compute_90", (nvrtc.SYNTAX,))):
        assert "pointless comparison of unsigned integer with zero" in nvrtc.said(text, architecture, *options)
        assert "identifier" in nvrtc.said(text.replace("x[0] /= 2u", "y[0] /= 2u"), architecture, *options)
        assert nvrtc.said(text.replace("x[0] < 0u", "x[0] < 9u"), architecture, *options) == ""


def test_a_form_is_types_and_operators_without_names_and_values():
    text = "const float t1 = a[i] * 2.5f; int* m0, float* a, int i; unsigned long long n = 3ULL;"
    same = "const float x = b[n] * 0.125f; int* m1, float* b, int n; unsigned long long k = 12ULL;"
    assert nvrtc.forms(text) == nvrtc.forms(same)
    for one, two in (("*", "/"), ("float*", "int*"), ("2.5f", "2.5"), ("3ULL", "3LL"), ("int i", "long long i")):
        assert nvrtc.forms(text.replace(one, two)) != nvrtc.forms(text), one


def test_kernels_that_are_compiled_have_every_form_once(kernels, chosen):
    known: set[tuple[str, ...]] = set()
    nvrtc.representatives(chosen, known)
    assert nvrtc.representatives(kernels, known) == {}
