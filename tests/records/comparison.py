"""Cases of records on one device beside another's results.

Floats are compared relative to the largest entry of a result: 1e-5 for float32. A result that is nothing but rounding,
such as the gradient of a number that a softmax adds to all its elements, is compared relative to the largest entry of
all results of its case; so are 16-bit floats, of which small results are differences of rounded large ones. Everything
else must be equal.
"""

from __future__ import annotations

import numpy as np

import weft
from tests.records.cases import Case, results

# Largest error, relative to the largest entry of a result. 16-bit floats: units in the last place.
WITHIN = {"float32": 1e-5, "float64": 1e-10, "float16": 4 * 2.0**-10, "bfloat16": 4 * 2.0**-7}


def largest_of(*arrays: np.ndarray) -> float:
    """The largest finite entry of arrays of floats."""
    floats = [array.astype(np.float64) for array in arrays if array.dtype.name in WITHIN]
    return max([np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in floats], default=0.0)


def compare(found: np.ndarray, expected: np.ndarray, among: list[np.ndarray], case: Case | str, position: int) -> None:
    """One result of a case beside the expected one, `among` all that are expected of the case."""
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


def computed(case: Case, device: str | weft.plan.device.Device) -> list[np.ndarray]:
    with weft.device(device):
        outputs = results(case)
        weft.eval(*outputs)
        return [output.detach().numpy() for output in outputs]
