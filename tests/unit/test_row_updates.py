"""Rows of tables on the emulated GPU: every thread in step, and the whole kernel text through the same checks."""

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.fake_driver import FakeGpu

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
@pytest.mark.parametrize("count", [9, 600])
def test_rows_on_an_emulated_gpu(kind, count):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(2600, 8)).astype(np.float32)
    g, index = rng.normal(size=(count, 8)).astype(np.float32), rng.integers(0, 40, count)
    results = []
    for device in ("cpu", FakeGpu().device):
        with weft.device(device):
            table = weft.tensor(start, requires_grad=True)
            optimizer = getattr(weft.optim, kind)([table], lr=0.1)

            @weft.compile
            def step(index, g, table=table, optimizer=optimizer):
                (F.embedding(index, table) * g).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            for _ in range(2):
                step(weft.tensor(index), weft.tensor(g))
            results.append(table.numpy())
            assert max(kernel.bytes for kernel in step.plan.kernels()) < 2 * 2600 * 8 * 4
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)
