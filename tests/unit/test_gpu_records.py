"""Records of scans, sorts, indexing and graphs on an emulated GPU: values and gradients as NumPy has
them.

Thresholds are low, so that small samples take the ways of large ones: merged runs, pieces, sorted tables.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.records import Inputs, Record, Sample, flat, graphs, indexing, order, statistics
from tests.records.record import tensors_of
from tests.unit.lockstep import Lockstep
from weft.base.tuning import Tuning
from weft.kernels import numerics
from weft.kernels.gpu import sort as gpu_sort

pytestmark = pytest.mark.unit

MOST = 64  # elements of an input
EACH = 3  # samples of a record, those that differ most in their shapes
RECORDS = [*order.RECORDS, *indexing.RECORDS, *graphs.RECORDS, *statistics.RECORDS]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    for name, value in {
        "MAX_SCAN_TILES": 1,
        "MAX_SCAN_LANES": 4,
        "MAX_UNSORTED_ROWS": 2,
        "MAX_SERIAL_SCAN": 8,
        "MAX_LANE_SCAN": 4,
        "MIN_PIECEWISE_ROWS": 8,
    }.items():
        monkeypatch.setattr(numerics, name, value)
    monkeypatch.setattr(Lockstep, "tuning", Tuning(max_sorted_run=8))
    monkeypatch.setattr(gpu_sort, "MIN_TILE_WORDS", 32)


def few(record: Record) -> list[Sample]:
    fits = [one for one in record.samples if all(np.prod(arg.shape) <= MOST for arg in tensors_of(one))]
    return sorted(fits, key=lambda one: -sum(int(np.prod(arg.shape)) for arg in tensors_of(one)))[:EACH]


def results(record: Record, sample: Sample, dtype: str, device) -> list[np.ndarray]:
    """The values, and the gradients of all that can be differentiated."""
    with weft.device(device):
        floats = record.differentiable and dtype.startswith("float")
        inputs = Inputs(sample, dtype, requires_grad=floats)
        outputs = flat(record.fn(*inputs.weft_args, **sample.kwargs))
        found = [output.numpy() for output in outputs]
        for output in outputs:
            if output.dtype.is_floating_point and output.requires_grad:
                seed = 1 + np.cos(np.arange(np.prod(output.shape))).reshape(output.shape) / 2
                output.backward(weft.tensor(seed.astype(output.dtype.numpy)), retain_graph=True)
        return found + [leaf.grad.numpy() for leaf in inputs.weft_leaves if leaf.grad is not None]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_as_the_reference(record):
    dtype = "float32" if "float32" in record.dtypes else record.dtypes[0]
    device = Lockstep().device
    for sample in few(record):
        ours, expected = results(record, sample, dtype, device), results(record, sample, dtype, "reference")
        assert len(ours) == len(expected)
        for one, two in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, two, 1e-4, 1e-5, err_msg=f"{record.name} {sample}")
