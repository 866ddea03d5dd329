"""Kernels that users write, on GPUs: run by the emulator, compared with the NumPy evaluation."""

import numpy as np
import pytest

from tests.unit.lockstep import Lockstep
from weft import kernel
from weft.base import dtypes
from weft.kernels.custom.definition import Array, Number, define
from weft.kernels.ir.normalize import normalise

pytestmark = pytest.mark.unit


def rows(i, j, x, factor, p, q):
    total = kernel.sum(j + 1, lambda k: x[i, k])
    p[i, j] = total * factor
    q[j, i] = kernel.where(total > 0.0, kernel.exp(-total), x.load(i - 1, j, other=2.0))


def test_blocks():
    shape = (9, 40)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    forms = ((shape, dtypes.float32), (shape[::-1], dtypes.float32))
    made = define(rows, shape, (Array(shape, dtypes.float32), Number(dtypes.float32)), forms, workgroups=True)
    expected = made.run_reference([x], [0.5], np.dtype("float32"))
    flat = np.zeros_like(expected)
    cut = made.sizes[0]
    arrays = [x.ravel(), flat[:cut], flat[cut:]]
    Lockstep(2).launch(normalise(made.kernel), arrays, made.scalars([0.5]), made.points)
    np.testing.assert_allclose(flat, expected, rtol=1e-5)
