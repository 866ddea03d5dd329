"""The Trainer on emulated GPUs: the same numbers as on the CPU, no transfers in a step, one launch of a graph."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.unit.fake_driver import FakeGpu
from tests.unit.lockstep import Lockstep
from weft.data import ResidentData
from weft.train import Callback, Trainer

pytestmark = pytest.mark.unit

X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 1)


def make(device, callbacks=(), schedule=True, **options):
    """A trainer and data on a device, with the same weights everywhere."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = weft.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = weft.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100) if schedule else None
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, ["accuracy", "f1", "confusion"], device=device, clip_norm=1.0,
        scheduler=scheduler, callbacks=callbacks, **options,
    )  # fmt: skip
    data = ResidentData([weft.tensor(X, device=device), weft.tensor(Y, device=device)], 16, seed=1)
    return trainer, data


def run(device, epochs, **options):
    trainer, data = make(device, **options)
    rows = trainer.fit(data, validation=data, epochs=epochs).rows
    left_out = ("seconds", "wait_seconds")
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows], trainer


def test_as_on_the_cpu():
    (expected, ours), (found, theirs) = run("cpu", 2), run(Lockstep().device, 2)
    for row, other in zip(expected, found, strict=True):
        for name, value in row.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-4, err_msg=name)
    for name, value in ours.model.state_dict().items():
        np.testing.assert_allclose(theirs.model.state_dict()[name].numpy(), value.numpy(), atol=1e-5, err_msg=name)


def test_a_loss_over_the_data_of_the_epoch():
    """One kernel reads the position in the data, checks the rows behind it, adds up the loss and moves on."""
    found = []
    for device in ("cpu", Lockstep().device):
        weft.manual_seed(0)
        model = nn.Linear(5, 1).to(device)
        trainer = Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.1), device=device)
        data = ResidentData([weft.tensor(X, device=device), weft.tensor(X[:, :1].copy(), device=device)], 8)
        losses = []
        for epoch in range(3):
            trainer.fit(data, epochs=epoch + 1)
            losses.append(trainer.evaluate(data)["loss"])
        found.append(losses)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.parametrize("resident", [True, False])
def test_an_error_is_known_once(resident):
    """A GPU tells of a bad label when later steps have been given to it: neither they nor the search for the label
    leave an error for the next call."""
    device = FakeGpu().device
    trainer, _ = make(device, schedule=False)
    bad = Y.copy()
    bad[[5, 9, 20, 30]] = 7

    def data(labels):
        if resident:
            return ResidentData([weft.tensor(X, device=device), weft.tensor(labels, device=device)], 8, shuffle=False)
        return [(X[k : k + 8], labels[k : k + 8]) for k in range(0, 40, 8)]

    given = "the label 7 at position 5, for 3 classes" if resident else "an index outside an axis of extent 3"
    with pytest.raises(weft.IndexRangeError, match=f"given {given}"):
        trainer.fit(data(bad))
    assert np.isfinite(trainer.fit(data(Y), epochs=2)["loss"]).all()
    weft.synchronize(device)


def test_a_bad_step_is_left_out():
    gpu = Lockstep()
    results = []
    for bad in (True, False):
        trainer, _ = make(gpu.device, schedule=False, on_nan="skip")
        batches = [(X[k : k + 16], Y[k : k + 16]) for k in (0, 16)]
        if bad:
            batches.insert(1, (X[:16] * np.float32("inf"), Y[:16]))
        weft.manual_seed(0)
        trainer.model[3].p = 0.0  # dropout would draw for the bad step, too
        trainer.fit(batches)
        results.append([value.tolist() for value in trainer.model.state_dict().values()])
        assert trainer.history["skipped"] == [int(bad)]
    assert results[0] == results[1]


class Transfers(Callback):
    def __init__(self):
        self.seen = []

    def on_epoch_begin(self, trainer, epoch, metrics):
        self.before = weft.counters()

    def on_batch_end(self, trainer, batch, metrics):
        if batch == trainer.planned["batches"] - 1:
            after = weft.counters()
            names = ("uploads", "downloads", "traces", "plans_built")
            self.seen.append([after[name] - self.before[name] for name in names])


def test_a_step_transfers_nothing():
    transfers = Transfers()
    trainer, data = make(FakeGpu().device, [transfers])
    trainer.fit(data, epochs=4)
    assert transfers.seen[1:] == [[0, 0, 0, 0]] * 3
