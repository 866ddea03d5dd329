"""Every kernel that the records make for an NVIDIA GPU compiles to machine code, without a warning.

Cases of all records, gradients included, are compiled for a GPU that is not there and has no libraries; each kernel
goes through NVRTC for three architectures: to machine code for one, and for the other two to PTX, since four fifths of
the time are the assembler's. test_nvrtc makes machine code for all three of the templates and of chosen programs.
"""

from __future__ import annotations

import pytest

import weft
from tests.records import GROUPS
from tests.records.cases import Case, cases, compiled, results
from tests.unit import nvrtc
from tests.unit.fake_cuda import FakeCuda
from weft.errors import GraphError

pytest.importorskip("cuda.bindings", reason="NVRTC is not installed: pip install 'weft[cuda-compile]'")


ARCHITECTURES = ("sm_90", "compute_80", "compute_120")


def is_end(case: Case) -> bool:
    """Whether a case has the first or the last sample of its record."""
    samples = case.record.samples
    return case.sample is samples[0] or case.sample is samples[-1]


def lower(case: Case) -> None:
    """Compile a case for the default device: all samples in the record's first dtype, its first and last one in the
    others of its dtypes, and these two in the first dtype also as compiled functions."""
    is_first_dtype = case.dtype == case.record.dtypes[0]
    if case.dtype in case.record.dtypes[1:] and not is_end(case):
        return
    outputs = results(case)
    if not outputs:
        return
    weft.eval(*outputs)
    outputs[0].device.backend.synchronise()  # memory is given back
    if is_first_dtype and is_end(case):
        try:
            compiled(case)()
        except GraphError as error:
            if "inside weft.compile" not in str(error):  # shapes that depend on data
                raise


@pytest.mark.parametrize("name", GROUPS)
def test_kernels_compile(name):
    gpu = FakeCuda()
    with weft.device(gpu.device):
        for record in GROUPS[name]:
            for case in cases(record):
                lower(case)
    assert len(gpu.kernels()) > 20
    found = nvrtc.complaints(gpu.kernels(), nvrtc.QUICKLY, architectures=ARCHITECTURES)
    assert not found, "\n".join(found[:3])
