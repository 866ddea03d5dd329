"""Programs on emulated GPUs of AMD's shapes: subgroups of 64 lanes with MFMA, and of 32 with WMMA, through the whole
backend but its driver."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.unit.fake_hip import FakeHip
from tests.unit.programs import PROGRAMS, assert_equal_results, expected_results, results

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx1100"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, architecture):
    found = results(PROGRAMS[name], FakeHip(architecture, runs=True).device, small=True)
    assert_equal_results(found, expected_results(name, small=True))


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx1100"])
@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16])
def test_products_by_matrix_units(architecture, dtype):
    gpu = FakeHip(architecture, runs=True)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype("f") for shape in ((40, 33), (33, 70)))
    x, y = (weft.tensor(one, device=gpu.device, dtype=dtype) for one in (a, b))
    found = (x @ y).float().numpy()
    expected = x.float().numpy() @ y.float().numpy()
    np.testing.assert_allclose(found, expected, weft.finfo(dtype).eps, 1e-2)
    texts = [gpu.render(kernel).text for kernel in list(gpu.driver.kernels.values())]
    assert any("tile_product" in text for text in texts)
