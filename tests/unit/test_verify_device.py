"""`weft.testing.verify` and `weft parity` on another device than that of the tensors: right kernels pass, and a wrong
one is named, with the numbers."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.fake_driver import FakeGpu, HandleDriver
from tests.unit.lockstep import Lockstep
from weft.backends import registry
from weft.cli import main
from weft.testing import verify

pytestmark = pytest.mark.unit


class Faulty(Lockstep):
    """Runs kernels; those whose name matches `wrong` leave one wrong number in what they write."""

    wrong = "$^"

    def launch(self, kernel, arrays, scalars, extent):
        super().launch(kernel, arrays, scalars, extent)
        if re.search(self.wrong, kernel.name):
            written = next(k for k, param in enumerate(kernel.buffers) if param.written and param.dtype.kind == "f")
            arrays[written][0] += 0.5


class FaultyPlatform:
    reason = ""

    def __init__(self) -> None:
        self.gpu = FakeGpu(kind=HandleDriver)
        self.gpu.driver.emulator = Faulty()

    def devices(self):
        return [self.gpu.device]


@pytest.fixture
def fake(monkeypatch):
    """A GPU of the kind `fake`, and the emulator that its kernels run on."""
    monkeypatch.setitem(registry.BACKENDS, "fake", (__name__, "FaultyPlatform"))
    platform = FaultyPlatform()
    monkeypatch.setitem(registry._loaded, "fake", platform)
    return platform.gpu.driver.emulator


def training_step():
    weft.manual_seed(0)
    model = weft.nn.Sequential(weft.nn.Linear(6, 9), weft.nn.Tanh(), weft.nn.Dropout(0.2), weft.nn.Linear(9, 4))
    optimizer = weft.optim.AdamW(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, step, (weft.randn(5, 6), weft.tensor(np.arange(5) % 4))


def recurrent(x):
    weft.manual_seed(1)
    return weft.loop(lambda h, x: ((h * 0.5 + x).tanh(),) * 2, weft.zeros(3), x)


PROGRAMS = {
    "softmax": (lambda x: x.softmax(-1), (np.random.default_rng(0).normal(size=(7, 40)).astype(np.float32),)),
    "loop": (recurrent, (np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),)),
    "sort": (lambda x: x.sort(0), (np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32),)),
    "indices": (lambda x, i: x[i].cumsum(0), (np.arange(8.0, dtype=np.float32), np.array([1, 5, 2]))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_cpu_on_another_device(name, fake):
    function, arrays = PROGRAMS[name]
    checked = verify(function, *map(weft.tensor, arrays), device="fake")
    assert checked and all(0 <= one.error <= 1 for one in checked)


def test_a_training_step_with_its_state_stays_where_it_is(fake):
    model, step, args = training_step()
    before = [param.numpy().copy() for param in model.parameters()]
    assert len(verify(step, *args, device="fake")) > 5
    for param, value in zip(model.parameters(), before, strict=True):
        assert param.device.name == "cpu" and param.grad is None
        np.testing.assert_array_equal(param.numpy(), value)


def test_a_wrong_kernel_is_named_with_the_numbers(fake):
    _, step, args = training_step()
    names = [one.name for one in verify(step, *args, device="fake")]
    assert len(set(names)) > 4
    for number, name in enumerate(names):
        if name in names[:number]:
            continue
        fake.wrong = f"^{re.escape(name)}$"
        with pytest.raises(AssertionError) as failure:
            verify(step, *args, device="fake")
        text = str(failure.value)
        assert f"step {number} of {len(names)}, {name}, differs from the reference on fake:0." in text
        assert re.search(r"is -?\d+\.\d+(e-?\d+)? and should be -?\d+\.\d+", text) and "It computes:" in text


def test_a_kernel_of_the_users_is_for_the_device_that_it_was_traced_for(fake):
    @weft.kernel(out=lambda x: (x.shape, x.dtype))
    def doubled(i, x, out):
        out[i] = x[i] * 2

    with pytest.raises(weft.DeviceError, match=r"traced for cpu; expected one for fake:0. Fix: move the arguments"):
        verify(doubled, weft.ones(5), device="fake")
    assert verify(doubled, weft.ones(5, device="fake"))


# --- the command ------------------------------------------------------------------------------------------------------

NETWORK = {
    "id": "small", "batch_size": 3,
    "layers": [{"type": "dense", "activation": "tanh", "input_height": 6, "output_height": 5}, {"type": "softmax"}],
}  # fmt: skip


def test_parity_names_the_kernel(fake, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")
    path = tmp_path / "net.json"
    path.write_text(json.dumps(NETWORK))
    arguments = ["parity", str(path), "--device", "fake", "--steps", "2", "--kernels"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert re.search(r"small: \d+ kernels on fake:0 agree with the reference; the largest error is", output)
    fake.wrong = "^rows|^steps"  # alone, and as a part of several
    assert main(arguments[:-1]) == 1
    output = capsys.readouterr().out
    assert "Differs by more than 0.0001: small on fake:0" in output
    assert re.search(r"small: verify: step \d+ of \d+, rows\S+, differs from the reference on fake:0", output)
