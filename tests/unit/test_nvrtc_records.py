"""Every kernel that the records make for an NVIDIA GPU compiles to machine code, without a warning.

All cases of all records, gradients included, are compiled for a GPU that is not there and has no libraries; each kernel
goes through NVRTC for three architectures.
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


def lower(case: Case) -> None:
    """Compile a case for the default device; a record's first and last sample also as a compiled function."""
    outputs = results(case)
    if not outputs:
        return
    weft.eval(*outputs)
    outputs[0].device.backend.synchronise()  # memory is given back
    record = case.record
    if case.dtype == record.dtypes[0] and any(
        case.sample is one for one in record.samples[:: max(len(record.samples) - 1, 1)]
    ):
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
    found = nvrtc.complaints(gpu.kernels(), nvrtc.QUICKLY)
    assert not found, "\n".join(found[:3])
