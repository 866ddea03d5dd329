"""Every kernel that the records make for an NVIDIA GPU compiles to machine code, without a warning.

All cases of all records, gradients included, are compiled for a GPU that is not there; each kernel goes through NVRTC
for three architectures.
"""

from __future__ import annotations

import pytest

import weft
from tests.records import (
    RECORDS,
    algebra,
    attention,
    conv,
    elementwise,
    graphs,
    indexing,
    movement,
    network,
    norms,
    order,
    reduce,
    windows,
)
from tests.records.cases import Case, cases, compiled, results
from tests.records.record import Record
from tests.unit import nvrtc
from tests.unit.fake_cuda import FakeCuda
from weft.errors import GraphError

pytest.importorskip("cuda.bindings", reason="NVRTC is not installed: pip install 'weft[cuda-compile]'")

GROUPS = {
    module.__name__.rpartition(".")[2]: module.RECORDS
    for module in (
        algebra, attention, conv, elementwise, graphs, indexing, movement, network, norms, order, reduce, windows
    )
}  # fmt: skip

# Records with cases that cannot be compiled for a GPU without libraries yet. This set is to become empty.
NOT_YET = {
    *("matmul", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "scaled_dot_product_attention"),
    *("adaptive_avg_pool3d", "interpolate_nearest_3d", "interpolate_nearest-exact_3d"),
    *(f"interpolate_area_{rank}d" for rank in (1, 2, 3)),
    *(
        f"interpolate_{kind}{aligned}"
        for kind in ("linear_1d", "bilinear_2d", "bicubic_2d", "trilinear_3d")
        for aligned in ("", "_aligned")
    ),
}


def test_every_record_is_in_a_group():
    assert {record.name for group in GROUPS.values() for record in group} == {record.name for record in RECORDS}


def lower(case: Case) -> None:
    """Compile a case for the default device; where it has the record's first dtype also as a compiled function."""
    outputs = results(case)
    if not outputs:
        return
    weft.eval(*outputs)
    outputs[0].device.backend.synchronise()  # memory is given back
    if case.dtype == case.record.dtypes[0]:
        try:
            compiled(case)()
        except GraphError as error:
            if "inside weft.compile" not in str(error):  # shapes that depend on data
                raise


def lowers(record: Record) -> bool:
    try:
        for case in cases(record):
            lower(case)
    except GraphError as error:
        if "device with blocks" in str(error) or "made for the CPU" in str(error):
            return False
        raise
    return True


@pytest.mark.parametrize("name", GROUPS)
def test_kernels_compile(name):
    gpu = FakeCuda()
    with weft.device(gpu.device):
        missing = {record.name for record in GROUPS[name] if not lowers(record)}
    assert missing == NOT_YET & {record.name for record in GROUPS[name]}
    assert len(gpu.kernels()) > 20
    found = nvrtc.complaints(gpu.kernels(), nvrtc.QUICKLY)
    assert not found, "\n".join(found[:3])
