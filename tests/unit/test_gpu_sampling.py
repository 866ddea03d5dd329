"""Samples on an emulated GPU: the numbers that the reference draws, but for the last digits of functions."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.unit.lockstep import Lockstep

pytestmark = pytest.mark.unit

LONG = weft.int64
DRAWN = {
    "randperm": lambda x: weft.randperm(37),
    "multinomial": lambda x: weft.multinomial(x, 4),
    "multinomial again": lambda x: weft.multinomial(x, 4, replacement=True),
    "normal": lambda x: weft.normal(x, x),
    "bernoulli": lambda x: weft.bernoulli(x),
    "poisson": lambda x: weft.poisson(x * 20),
    "randint": lambda x: weft.randint(-(1 << 40), 1 << 40, (9,)),
    "random": lambda x: weft.empty(9, dtype=LONG).random_(-(2**63), None),
    "random uint64": lambda x: weft.empty(9, dtype=weft.uint64).random_(),
    "uniform": lambda x: (x * 1).uniform_(-2, 3),
    "log_normal": lambda x: (x * 1).log_normal_(),
    "exponential": lambda x: (x * 1).exponential_(0.5),
    "cauchy": lambda x: (x * 1).cauchy_(),
    "geometric": lambda x: weft.empty(9, dtype=LONG).geometric_(0.1),
    "bernoulli_": lambda x: (x * 1).bernoulli_(0.4),
    "float64": lambda x: weft.randn(9, dtype=weft.float64),
    "uniform of bfloat16": lambda x: weft.empty(9, dtype=weft.bfloat16).uniform_(0.5, 1.0),
    "logspace": lambda x: weft.logspace(0, 1, 7),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_as_the_reference(draw):
    found = []
    for device in (Lockstep().device, "reference"):
        with weft.device(device):
            weft.manual_seed(5)
            found.append(draw(weft.tensor(np.linspace(0.1, 0.9, 24, dtype=np.float32).reshape(3, 8))).numpy())
    ours, expected = (part.astype(np.float64) if part.dtype.kind not in "iu" else part for part in found)
    if ours.dtype.kind in "iu":
        assert (ours == expected).all()
    else:
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16])
def test_kernels_compile(dtype):
    """To machine code of NVIDIA's GPUs, without a warning."""
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed: pip install 'weft[cuda-compile]'")
    from tests.unit import nvrtc
    from tests.unit.fake_cuda import FakeCuda

    gpu = FakeCuda()
    with weft.device(gpu.device):
        for draw in DRAWN.values():
            weft.eval(draw(weft.full((3, 8), 0.5, dtype=dtype)))
            weft.compile(draw)(weft.full((3, 8), 0.5, dtype=dtype))
        gpu.device.backend.synchronise()
    assert len(gpu.kernels()) > 10
    found = nvrtc.complaints(gpu.kernels(), nvrtc.QUICKLY)
    assert not found, "\n".join(found[:3])
