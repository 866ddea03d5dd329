"""Every case of every record on the GPU against the reference backend, eager and compiled; and what must be refused.

Floats are compared relative to the largest entry of a result: 1e-5 for float32. A result that is nothing but rounding,
such as the gradient of a number that a softmax adds to all its elements, is compared relative to the largest entry of
all results of its case; so are 16-bit floats, of which small results are differences of rounded large ones. Everything
else must be equal.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.records import RECORDS, Record
from tests.records.cases import Case, cases, compiled, results
from weft.errors import GraphError

# Largest error, relative to the largest entry of a result. 16-bit floats: units in the last place.
WITHIN = {"float32": 1e-5, "float64": 1e-10, "float16": 4 * 2.0**-10, "bfloat16": 4 * 2.0**-7}
ERRORS = [
    pytest.param(*error, id=f"{record.name}-{number}")
    for record in RECORDS
    for number, error in enumerate(record.errors)
]


def largest_of(*arrays: np.ndarray) -> float:
    """The largest finite entry of arrays of floats."""
    floats = [array.astype(np.float64) for array in arrays if array.dtype.name in WITHIN]
    return max([np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in floats], default=0.0)


def compare(found: np.ndarray, expected: np.ndarray, among: list[np.ndarray], case: Case, position: int) -> None:
    what = f"{case}, result {position}"
    assert found.shape == expected.shape and found.dtype == expected.dtype, what
    if found.dtype.name not in WITHIN:
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    a, b = found.astype(np.float64), expected.astype(np.float64)
    within, most = WITHIN[found.dtype.name], largest_of(*among)
    largest = largest_of(expected)
    if found.itemsize == 2 or largest < within * most:
        largest = max(largest, most)
    np.testing.assert_allclose(a, b, 0.0, within * largest, err_msg=what)


def computed(case: Case, device: str | weft.backends.base.Device) -> list[np.ndarray]:
    with weft.device(device):
        outputs = results(case)
        weft.eval(*outputs)
        return [output.detach().numpy() for output in outputs]


def compiled_bits(case: Case) -> list[bytes] | None:
    """What a case gives as a compiled function; None where it cannot be one."""
    try:
        return [output.detach().numpy().tobytes() for output in compiled(case)()]
    except GraphError as error:
        if "inside weft.compile" not in str(error):  # shapes that depend on data
            raise
        return None


@pytest.mark.parametrize("record", RECORDS, ids=[record.name for record in RECORDS])
def test_agrees_with_the_reference(record: Record, gpu):
    """Compiled, each case has the bits that it has eagerly; tried with the first dtype."""
    for case in cases(record):
        found, expected = computed(case, gpu), computed(case, "reference")
        for position, (a, b) in enumerate(zip(found, expected, strict=True)):
            compare(a, b, expected, case, position)
        if found and case.dtype == record.dtypes[0]:
            assert compiled_bits(case) in (None, [array.tobytes() for array in found]), f"{case}, compiled"


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS)
def test_refuses_what_the_cpu_refuses(call, kind, message, gpu):
    """Indices out of range are found when the device has run: at the latest when it is waited for."""
    with pytest.raises(kind, match=message):
        call()
        gpu.backend.synchronise()
