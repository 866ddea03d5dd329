"""Data that live on a GPU, on emulated ones: the same batches as on the CPU, no transfers, kernels that compile."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.data as data
from tests.unit.fake_driver import FakeGpu
from tests.unit.lockstep import Lockstep
from weft.data import transforms as T

pytestmark = pytest.mark.unit

IMAGES = np.random.default_rng(0).integers(0, 256, (11, 3, 6, 6)).astype(np.uint8)


def loader(device):
    pipeline = T.Compose(
        T.ToFloat(), T.RandomCrop(5, padding=1), T.RandomHorizontalFlip(), T.RandomRotation(10), T.RandomHue(0.2),
        T.Cutout(2), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), T.Mixup(0.5, classes=11),
    )  # fmt: skip
    rows = data.TensorDataset(weft.tensor(IMAGES, device=device), weft.arange(11, device=device))
    return data.DataLoader(rows, 4, shuffle=True, seed=1, transform=pipeline, resident=True, device=device)


def values(loader):
    return [np.concatenate([part.numpy().reshape(len(part), -1) for part in batch], 1) for batch in loader]


def test_as_on_the_cpu():
    expected = values(loader("cpu"))
    found = values(loader(Lockstep().device))
    assert len(found) == 3
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("last", ["drop", "pad"])
def test_a_step_transfers_nothing(last):
    gpu = FakeGpu()
    with weft.device(gpu.device):
        resident = data.DataLoader(
            data.ArrayDataset(IMAGES, np.arange(11)), 4, shuffle=True, last=last, transform=T.RandomHorizontalFlip()
        ).resident(gpu.device)
        step = weft.compile(lambda: resident.next())
        for epoch in range(2):
            resident.start_epoch(epoch)
            for _ in range(resident.batches):
                step()
        before = weft.counters()
        resident.start_epoch(2)
        labels = [step()[1] for _ in range(resident.batches)]
        after = weft.counters()
        for name in ("uploads", "downloads", "traces", "plans_built"):
            assert after[name] == before[name], name
        taken = [one for part in labels for one in part.tolist()]
        assert len(set(taken[:11])) == min(len(taken), 11)


def test_streams_are_uploaded_by_the_worker():
    gpu = FakeGpu()
    rows = data.ArrayDataset(IMAGES, np.arange(11))
    stream = data.DataLoader(rows, 4, device=gpu.device, resident=False, num_workers=2)
    batches = list(stream)
    assert all(part.device is gpu.device for batch in batches for part in batch)
    assert [part.tolist() for _, part in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_what_does_not_fit_streams(monkeypatch):
    gpu = FakeGpu()
    rows = data.ArrayDataset(IMAGES, np.arange(11))
    monkeypatch.setattr(gpu, "memory", lambda: (2 * (IMAGES.nbytes + 88) - 2, 1 << 30))
    assert data.DataLoader(rows, 4, device=gpu.device).resident() is None
    assert len(list(data.DataLoader(rows, 4, device=gpu.device))) == 3
    with pytest.raises(weft.RangeError, match="resident=True"):
        data.DataLoader(rows, 4, device=gpu.device, resident=True).resident()
    monkeypatch.setattr(gpu, "memory", lambda: (2 * (IMAGES.nbytes + 88), 1 << 30))
    assert data.DataLoader(rows, 4, device=gpu.device).resident() is not None
